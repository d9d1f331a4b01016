"""Cases that never end: in Python, in C with the GIL released, and in C with the GIL held."""

import ctypes
import threading
from collections.abc import Iterator

import pytest

EXPECTED = {
    "test_before": "passed",
    "test_python": "timeout: did not finish within 0.5 s (in call)",
    "test_between": "passed",
    "test_c_without_lock": "timeout: did not finish within 0.5 s (in call)",
    "test_c_with_lock": "timeout: did not finish within 0.5 s (in call)",
    "test_setup": "timeout: did not finish within 0.5 s (in setup)",
    "test_teardown": "timeout: did not finish within 0.5 s (in teardown)",
    "test_after": "passed",
}


@pytest.fixture
def hangs_in_setup() -> None:
    threading.Event().wait()


@pytest.fixture
def hangs_in_teardown() -> Iterator[None]:
    yield
    threading.Event().wait()


def test_before() -> None:
    pass


@pytest.mark.timeout(0.5)
def test_python() -> None:
    print("waiting in Python")
    threading.Event().wait()


def test_between() -> None:
    pass


@pytest.mark.timeout(0.5)
def test_c_without_lock() -> None:
    ctypes.CDLL(None).pause()


@pytest.mark.timeout(0.5)
def test_c_with_lock() -> None:
    ctypes.PyDLL(None).pause()


@pytest.mark.timeout(0.5)
@pytest.mark.usefixtures("hangs_in_setup")
def test_setup() -> None:
    pass


@pytest.mark.timeout(0.5)
@pytest.mark.usefixtures("hangs_in_teardown")
def test_teardown() -> None:
    pass


def test_after() -> None:
    pass
