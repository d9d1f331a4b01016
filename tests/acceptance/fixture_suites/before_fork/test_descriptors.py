"""Descriptors of an executor: standard input is empty, and a program gets none of the harness's."""

import os
import subprocess
import sys

import pytest

EXPECTED = {"test_closes_low_descriptors": "passed", "test_standard_input": "passed", "test_a_program": "passed"}


def test_closes_low_descriptors() -> None:
    os.closerange(3, 256)


def test_standard_input() -> None:
    with pytest.raises(OSError, match="standard input"):
        input()
    with pytest.raises(OSError, match="standard input"):
        sys.stdin.read()
    assert os.read(0, 10) == b""


def test_a_program() -> None:
    """``ls`` itself opens the folder that it lists, as descriptor 3."""
    listed = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True, check=True, close_fds=False)
    assert listed.stdout.split() == ["0", "1", "2", "3"]
