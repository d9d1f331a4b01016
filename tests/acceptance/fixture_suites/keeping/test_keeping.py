"""Cases that say that what they run keeps memory: how much is nobody's concern, what else they leave is."""

from __future__ import annotations

import pytest
import torch

EXPECTED = {
    "test_that_says_so": "passed",
    "TestKeeping::test_of_a_class_that_says_so": "passed",
    "test_that_changes_state": "contaminated: did not restore the default dtype (now torch.float64, was torch.float32)",
    "test_that_says_nothing": "leaked: 1 more torch tensor",
}

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
