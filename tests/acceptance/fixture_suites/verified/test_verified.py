"""Cases that keep state, that come and go, and others."""

import os
import signal
from pathlib import Path

import pytest

EXPECTED = {
    "test_good": "passed: verified: passed 6 times, the slowest in ",
    "test_keeps_state": "failed: not verified: passed 1 of 3 times in one process and 3 of 3 times in fresh",
    "test_comes_and_goes": "failed: not verified: passed 3 of 3 times in one process and 2 of 3 times in fresh p",
    "test_crashes_once": "failed: not verified: passed 2 of 3 times in one process and 3 of 3 times in fresh",
    "test_skips": "skipped: Skipped: not today",
    "test_expected": "waived: expected failure: known",
    "test_gated": "gated: memory",
}


def times(name: str) -> int:
    with (Path(os.environ["PROBE_DIR"]) / name).open("a+") as file:
        file.write(f"{os.getpid()}\n")
        file.seek(0)
        return len(file.readlines())


STATE: list[int] = []


def test_good() -> None:
    times("good")


def test_keeps_state() -> None:
    STATE.append(1)
    assert len(STATE) == 1


def test_comes_and_goes() -> None:
    assert times("comes") != 5


def test_crashes_once() -> None:
    if times("once") == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def test_skips() -> None:
    pytest.skip("not today")


@pytest.mark.xfail(reason="known")
def test_expected() -> None:
    assert int("1") == 2


@pytest.mark.requires(memory=">=1000TiB")
def test_gated() -> None:
    pass
