"""What has no effect: marks that come too late, and results that ended with the process of an earlier case."""

import os
import signal

import pytest

EXPECTED = {
    "test_late": "passed",
    "test_first": "passed",
    "test_crash": "crashed: SIGSEGV in call",
    "test_dependant": "skipped: Skipped: as pytest-dependency does",
}
SAYS = [
    "the mark 'timeout' was added while the case ran, too late",
    "the mark 'requires' was added while the case ran, too late",
    "test_dependant was skipped in executor main-e3: results that it depends on may have ended",
]


@pytest.fixture
def late(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.timeout(1))
    request.node.add_marker(pytest.mark.requires(device="cuda"))


@pytest.mark.usefixtures("late")
def test_late() -> None:
    pass


def test_first() -> None:
    pass


def test_crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.dependency(depends=["test_crash"])
def test_dependant() -> None:
    pytest.skip("as pytest-dependency does where it knows of no test_crash that has passed")
