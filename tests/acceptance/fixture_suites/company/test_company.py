"""Cases whose outcome differs between running after other cases and running alone."""

import os
import signal
import subprocess
import threading

import pytest

EXPECTED = {
    "test_first": "passed",
    "test_crashes": {"batch": "flaky: crashed after other cases, passed alone: SIGSEGV in call", "case": "passed"},
    "test_second": "passed",
    "test_hangs": {
        "batch": "flaky: timeout after other cases, passed alone: did not finish within 0.5 s",
        "case": "passed",
    },
    "test_third": "passed",
    "test_leaves_a_child": {"batch": "flaky: leaked after other cases, passed alone", "case": "passed"},
    "test_fourth": "passed",
    "test_needs_to_be_first": {"batch": "failed: assert", "case": "passed"},
    "test_needs_the_one_before": {"batch": "passed", "case": "failed: assert"},
    "test_fails_otherwise_alone": {"batch": "failed", "case": "failed"},
    "test_last": "passed",
}
OPTIONS = ["--dist=loadfile"]

RAN: list[str] = []


@pytest.fixture(autouse=True)
def note_the_case(request: pytest.FixtureRequest) -> None:
    RAN.append(request.node.name)


def in_company() -> bool:
    return len(RAN) > 1


def test_first() -> None:
    pass


def test_crashes() -> None:
    if in_company():
        os.kill(os.getpid(), signal.SIGSEGV)


def test_second() -> None:
    pass


@pytest.mark.timeout(0.5)
def test_hangs() -> None:
    if in_company():
        threading.Event().wait()


def test_third() -> None:
    pass


def test_leaves_a_child() -> None:
    if in_company():
        subprocess.Popen(["sleep", "1000"])


def test_fourth() -> None:
    pass


def test_needs_to_be_first() -> None:
    assert not in_company()


def test_needs_the_one_before() -> None:
    assert in_company()


def test_fails_otherwise_alone() -> None:
    if in_company():
        os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError("it fails alone")


def test_last() -> None:
    pass
