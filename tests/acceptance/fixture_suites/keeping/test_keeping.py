"""Cases that declare how much memory the code under test keeps: all other growth is checked as usual."""

from __future__ import annotations

import os

import pytest
import torch

EXPECTED = {
    "test_that_says_so": "passed",
    "TestKeeping::test_of_a_class_that_says_so": "passed",
    "test_that_changes_state": "contaminated: did not restore the default dtype (now torch.float64, was torch.float32)",
    "test_that_says_nothing": "leaked: 1 more torch tensor",
    "test_that_keeps_what_it_says": "passed",
    "test_that_keeps_more_than_it_says": "leaked: 1 more torch tensor",
    "test_that_keeps_what_it_does_not_name": "leaked: 1 more open file descriptor",
    "test_that_keeps_without_limit_and_something_else": "leaked: 1 more open file descriptor",
}
SAYS = ["KEEPS 4 cases that may keep memory - a list that nobody empties"]

KEPT: list[torch.Tensor] = []


def keep(count: int) -> None:
    KEPT.extend(torch.zeros(1 << 18) for _ in range(count))


@pytest.mark.keeps("a list that nobody empties")
def test_that_says_so() -> None:
    keep(20)


@pytest.mark.keeps("a list that nobody empties")
class TestKeeping:
    def test_of_a_class_that_says_so(self) -> None:
        keep(20)


@pytest.mark.keeps("a list that nobody empties")
def test_that_changes_state() -> None:
    keep(20)
    torch.set_default_dtype(torch.float64)


def test_that_says_nothing() -> None:
    keep(1)


@pytest.mark.keeps("a list that nobody empties", tensors=2, host="3MiB")
def test_that_keeps_what_it_says() -> None:
    keep(2)


@pytest.mark.keeps("a list that nobody empties", tensors=2, host="4MiB")
def test_that_keeps_more_than_it_says() -> None:
    keep(3)


@pytest.mark.keeps("a list that nobody empties", tensors=2, host="4MiB")
def test_that_keeps_what_it_does_not_name() -> None:
    keep(2)
    os.open(os.devnull, os.O_RDONLY)


@pytest.mark.keeps("a list that nobody empties")
def test_that_keeps_without_limit_and_something_else() -> None:
    keep(2)
    os.open(os.devnull, os.O_RDONLY)
