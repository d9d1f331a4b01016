"""Shared fixtures that do not restore changed state: the report names the fixture."""

from __future__ import annotations

import os
import sys

import pytest

EXPECTED = {
    "TestHeld::test_first": {
        "batch": "passed",
        "case": "contaminated: the class fixture 'forgetful' did not restore the environment variable STATE_HELD",
    },
    "TestHeld::test_last": "contaminated: the class fixture 'forgetful' did not restore the environment variable "
    "STATE_HELD (now 'by a fixture', was absent)",
    "test_between": "passed",
    "test_with_limit": {
        "batch": "passed",
        "case": "contaminated: the module fixture 'limit' did not restore the recursion limit (now 4321, was ",
    },
    "test_last_of_the_module": "contaminated: the module fixture 'limit' did not restore the recursion limit (now 4321",
}


@pytest.fixture(scope="class")
def forgetful() -> None:
    os.environ["STATE_HELD"] = "by a fixture"


@pytest.fixture(scope="module")
def limit() -> int:
    sys.setrecursionlimit(4321)
    return 4321


@pytest.mark.usefixtures("forgetful")
class TestHeld:
    def test_first(self) -> None:
        assert os.environ["STATE_HELD"] == "by a fixture"

    def test_last(self) -> None:
        assert os.environ["STATE_HELD"] == "by a fixture"


def test_between() -> None:
    assert "STATE_HELD" not in os.environ


def test_with_limit(limit: int) -> None:
    assert sys.getrecursionlimit() == limit


def test_last_of_the_module(limit: int) -> None:
    assert sys.getrecursionlimit() == limit
