"""A crash in the tear-down of a shared fixture is attributed to the case after which it is torn down."""

import os
from collections.abc import Iterator

import pytest

EXPECTED = {
    "TestUsers::test_first": {"batch": "passed", "case": "crashed: SIGABRT in teardown"},
    "TestUsers::test_last": "crashed: SIGABRT in teardown",
    "test_after": "passed",
}


@pytest.fixture(scope="class")
def explosive() -> Iterator[None]:
    yield
    os.abort()


@pytest.mark.usefixtures("explosive")
class TestUsers:
    def test_first(self) -> None:
        pass

    def test_last(self) -> None:
        pass


def test_after() -> None:
    pass
