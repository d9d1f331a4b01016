"""Cases killed by a signal, and their innocent neighbours."""

import ctypes
import mmap
import os
import signal
import tempfile

import pytest

EXPECTED = {
    "test_before": "passed",
    "test_segv": "crashed: SIGSEGV in call",
    "test_null_pointer": "crashed: SIGSEGV in call",
    "test_between": "passed",
    "test_abort": "crashed: SIGABRT in call",
    "test_kill": "crashed: SIGKILL in call",
    "test_bus": "crashed: SIGBUS in call",
    "test_own_process_group": "crashed: SIGKILL in call",
    "test_parametrised[15]": "crashed: SIGTERM in call",
    "test_parametrised[0]": "passed",
    "test_parametrised[10]": "crashed: SIGUSR1 in call",
    "test_after": "passed",
}


def test_before() -> None:
    pass


def test_segv() -> None:
    print("last words of test_segv")
    os.kill(os.getpid(), signal.SIGSEGV)


def test_null_pointer() -> None:
    ctypes.string_at(0)


def test_between() -> None:
    pass


def test_abort() -> None:
    os.abort()


def test_kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_bus() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        page[0] = 1


def test_own_process_group() -> None:
    os.killpg(0, signal.SIGKILL)


@pytest.mark.parametrize("number", [15, 0, 10])
def test_parametrised(number: int) -> None:
    os.kill(os.getpid(), number)


def test_after() -> None:
    pass
