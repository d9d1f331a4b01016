"""Cases whose fixtures crash."""

import os
import signal
from collections.abc import Iterator

import pytest

EXPECTED = {
    "test_before": "passed",
    "test_setup": "crashed: SIGSEGV in setup",
    "test_between": "passed",
    "test_teardown": "crashed: SIGSEGV in teardown",
    "test_finalizer": "crashed: exit status 4 in teardown",
    "test_interrupted_setup": "error: raised KeyboardInterrupt",
    "test_interrupted_teardown": "error: raised KeyboardInterrupt",
    "test_after": "passed",
}
# pytest counts them in the same way as unknown outcomes.
COUNTS = {"error": -2, "failed": 2}


@pytest.fixture
def dies_in_setup() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.fixture
def dies_in_teardown() -> Iterator[None]:
    yield
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.fixture
def interrupted() -> None:
    raise KeyboardInterrupt


def test_before() -> None:
    pass


@pytest.mark.usefixtures("dies_in_setup")
def test_setup() -> None:
    pass


def test_between() -> None:
    pass


@pytest.mark.usefixtures("dies_in_teardown")
def test_teardown() -> None:
    pass


def test_finalizer(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: os._exit(4))


@pytest.mark.usefixtures("interrupted")
def test_interrupted_setup() -> None:
    pass


@pytest.fixture
def interrupted_at_its_end() -> Iterator[None]:
    yield
    raise KeyboardInterrupt


@pytest.mark.usefixtures("interrupted_at_its_end")
def test_interrupted_teardown() -> None:
    pass


def test_after() -> None:
    pass
