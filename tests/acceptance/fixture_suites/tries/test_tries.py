"""Cases that pass at the second attempt, or never."""

import os
import signal
from pathlib import Path

EXPECTED = {
    "test_passes": "passed",
    "test_passes_at_last": {
        "batch": "flaky: failed after other cases, passed alone: assert 1 >= 2",
        "case": "flaky: failed at first, passed on retry: assert 1 >= 2",
    },
    "test_never": "failed: assert 1 == 2",
    "test_between": "passed",
    "test_crashes_once": {
        "batch": "flaky: crashed after other cases, passed",
        "case": "flaky: crashed at first, passed",
    },
    "test_between_again": "passed",
    "test_crashes": "crashed: SIGKILL in call",
    "test_waived": "waived: waived: known",
    "test_last": "passed",
}


def times(name: str) -> int:
    with (Path(os.environ["PROBE_DIR"]) / name).open("a+") as file:
        file.write(f"{os.getpid()}\n")
        file.seek(0)
        return len(file.readlines())


def test_passes() -> None:
    pass


def test_passes_at_last() -> None:
    number = times("at_last")
    assert number >= 2


def test_never() -> None:
    times("never")
    assert int("1") == 2


def test_between() -> None:
    pass


def test_crashes_once() -> None:
    if times("once") == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def test_between_again() -> None:
    pass


def test_crashes() -> None:
    times("crashes")
    os.kill(os.getpid(), signal.SIGKILL)


def test_waived() -> None:
    times("waived")
    assert int("1") == 3


def test_last() -> None:
    pass
