"""All cases of this suite compile, of which torch keeps something; and none may leave memory in a graph's pool."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

KEEPS = "torch's compiler keeps guards, code and fake tensors of what it compiled, more of it with each reset"


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Mark each case."""
    made = yield
    for item in made if isinstance(made, list) else ():
        item.add_marker(pytest.mark.keeps(KEEPS))
    return made


@pytest.fixture(autouse=True)
def pools_are_empty_afterwards() -> Iterator[None]:
    """The best oracle for leaks of trees: no manager, no live block and no segment once all is dropped."""
    from . import trees  # here, since supervisors import this file and must not import torch

    yield
    trees.assert_nothing_left()
