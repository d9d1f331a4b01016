"""Only one run writes to a run directory at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.scheduling.resume import RunLock, RunLockedError

HOLDER = """
import sys
from pathlib import Path
from harness.scheduling.resume import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_the_second_is_refused_and_death_releases(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunLockedError, match="another run writes to it now: wait for its end, or stop it"):
            RunLock(tmp_path)
        holder.kill()
    RunLock(tmp_path).release()


def test_it_can_be_taken_again(tmp_path: Path) -> None:
    RunLock(tmp_path).release()
    RunLock(tmp_path).release()


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        RunLock(tmp_path / "file")
