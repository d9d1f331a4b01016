"""A file is written completely or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.atomic import WriteError, write_atomically

# A limit on file size simulates the full disk.
FULL = """
import resource, sys
from pathlib import Path
from harness.core.atomic import WriteError, write_atomically

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(Path(sys.argv[1]), b"x" * 2000)
except WriteError as error:
    sys.exit(str(error))
"""


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "report"
    assert write_atomically(path, b"one") == path
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o044, "others may read a report, as the umask allows"


def test_nothing_is_written_through_a_link_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who can write to the folder of a report may guess the name of the temporary file."""
    monkeypatch.setattr(os, "urandom", bytes)
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    path = tmp_path / "report"
    temporary = path.with_name(f".{path.name}.{bytes(6).hex()}.tmp")
    temporary.symlink_to(other)
    write_atomically(path, b"one")
    assert (other.read_bytes(), path.read_bytes(), path.is_symlink()) == (b"precious", b"one", False)
    temporary.mkdir()
    with pytest.raises(WriteError):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"


def test_a_full_disk_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_bytes(b"old")
    command = [sys.executable, "-c", FULL, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"cannot write {str(path)!r}; make the folder writable and free space there: " in done.stderr
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="/nowhere/report'; make the folder writable"):
        write_atomically(tmp_path / "nowhere" / "report", b"")
