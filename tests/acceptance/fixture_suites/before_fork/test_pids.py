"""A process id that a file has read when it was imported, before the fork, is that of the executor."""

import os
import signal

EXPECTED = {
    "test_a_signal_to_itself": "passed",
    "test_kills_itself": "crashed: SIGKILL in call",
    "test_after": "passed",
}

PID = os.getpid()
#: As CPython's tests name their files: processes must not share one.
NAME = f"@test_{os.getpid()}_tmp"


class Holder:
    PID = os.getpid()


def test_a_signal_to_itself() -> None:
    received = []
    before = signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
    os.kill(PID, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    assert received == [1]
    assert PID == Holder.PID == os.getpid()
    assert type(PID) is int
    assert f"@test_{os.getpid()}_tmp" == NAME


def test_kills_itself() -> None:
    os.kill(PID, signal.SIGKILL)


def test_after() -> None:
    pass
