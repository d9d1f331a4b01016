"""Only one process of a host at a time repeats a case for its shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.supervisor.leak_confirmation import shared_memory_turn

_ROOT = Path(__file__).parents[2]
_HOLD = """
import sys
from pathlib import Path
from harness.supervisor.leak_confirmation import shared_memory_turn
with shared_memory_turn(["shm_bytes"], over=lambda: False, folder=Path(sys.argv[1])):
    print("has it", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that has the turn."""
    command = [sys.executable, "-c", _HOLD, str(folder)]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has it\n"
        yield process
        process.kill()


def waits(folder: Path, meter: str = "shm_files") -> int:
    """Return how often this process polls before it continues; it gives up at the third time."""
    looks = 0

    def over() -> bool:
        nonlocal looks
        looks += 1
        return looks == 3

    with shared_memory_turn([meter], over=over, folder=folder):
        return looks


def test_a_leak_of_shared_memory_waits_for_other_processes(tmp_path: Path) -> None:
    assert waits(tmp_path) == 0
    with other(tmp_path) as process:
        assert waits(tmp_path) == 3
        assert waits(tmp_path, "tensors") == 0
        process.communicate()
        assert waits(tmp_path) == 0


def test_the_turn_ends_with_its_process(tmp_path: Path) -> None:
    with other(tmp_path) as process:
        process.kill()
        process.wait()
        assert waits(tmp_path) == 0


def test_what_a_case_has_left_does_not_keep_the_turn(tmp_path: Path) -> None:
    read, write = os.pipe()
    with shared_memory_turn(["shm_files"], over=lambda: False, folder=tmp_path):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    assert waits(tmp_path) == 0
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)


@pytest.mark.parametrize("patience", [0.0, 0.1])
def test_the_turn_is_not_waited_for_without_end(tmp_path: Path, patience: float) -> None:
    with other(tmp_path), shared_memory_turn(["shm_files"], over=lambda: False, folder=tmp_path, patience=patience):
        pass


def test_a_machine_without_shared_memory_has_no_turns(tmp_path: Path) -> None:
    assert waits(tmp_path / "missing") == 0
