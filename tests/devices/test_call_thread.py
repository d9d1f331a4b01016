"""Calls that may never return, made in their own thread."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from harness.devices.call_thread import CallThread, StuckError

PATIENCE = 60.0


def test_calls_are_made_in_one_other_thread() -> None:
    calls = CallThread("asker", limit=PATIENCE)
    first, second = (calls.call(threading.current_thread) for _ in range(2))
    assert first is second
    assert first is not threading.current_thread()
    assert (first.name, first.daemon) == ("asker", True)
    calls.close()
    assert not first.is_alive()
    calls.close()


def test_what_a_call_raises_is_raised_and_the_next_is_made() -> None:
    calls = CallThread("asker", limit=PATIENCE)
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 // 0)
    assert calls.call(lambda: 7) == 7
    calls.close()


def test_without_a_call_there_is_no_thread() -> None:
    before = threading.active_count()
    calls = CallThread("asker", limit=PATIENCE)
    assert threading.active_count() == before
    calls.close()


def test_a_call_that_does_not_return_is_the_last() -> None:
    """This holds even after it has returned: its late answer must not be taken for that of a later call."""
    free = threading.Event()
    calls = CallThread("asker", limit=0.01)
    with pytest.raises(StuckError, match=r"no answer within 0\.01 s"):
        calls.call(free.wait)
    assert calls.stuck
    free.set()
    with pytest.raises(StuckError, match="an earlier call"):
        calls.call(lambda: 7)
    calls.close()


def test_a_process_ends_beside_a_call_that_does_not_return() -> None:
    program = """
import ctypes
from harness.devices.call_thread import CallThread, StuckError
calls = CallThread("asker", limit=0.01)
try:
    calls.call(ctypes.CDLL(None).pause)
except StuckError:
    calls.close()
    print("stuck")
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=PATIENCE, check=True)
    assert done.stdout == b"stuck\n"
