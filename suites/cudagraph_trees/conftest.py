"""All cases of this suite compile, of which torch keeps something; and none may leave memory in a graph's pool."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import trees

KEEPS = "torch's compiler keeps guards, code and fake tensors of what it compiled, more of it with each reset"


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.keeps(KEEPS))


@pytest.fixture(autouse=True)
def pools_are_empty_afterwards() -> Iterator[None]:
    """The best oracle for leaks of trees: no manager, no live block and no segment once all is dropped."""
    yield
    trees.assert_nothing_left()
