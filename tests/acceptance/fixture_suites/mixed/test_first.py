"""Various cases, for runs that test other things: distribution of cases, and options."""

import os
import signal

import pytest

EXPECTED = {
    "test_passes": "passed",
    "test_crashes": "crashed: SIGSEGV in call",
    "test_innocent": "passed",
    "test_fails": "failed: AssertionError: on purpose",
    "test_exits": "crashed: exit status 0 in call",
    "test_last": "passed",
}


def test_passes() -> None:
    pass


@pytest.mark.xdist_group("one")
def test_crashes() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.xdist_group("one")
def test_innocent() -> None:
    print("to standard output, by an innocent case")


def test_fails() -> None:
    raise AssertionError("on purpose")


def test_exits() -> None:
    os._exit(0)


def test_last() -> None:
    pass
