"""All cases of this suite compile, of which torch keeps something; and none may leave memory in a graph's pool."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from .kept import KEEPS, KEPT

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Mark each case."""
    made = yield
    for item in made if isinstance(made, list) else ():
        item.add_marker(pytest.mark.keeps(KEEPS, **KEPT))
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fixtures can ask whether their case has failed."""
    item.stash[_FAILED] = call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception)
    return (yield)


@pytest.fixture(autouse=True)
def pools_are_empty_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """The best oracle for leaks of trees: no manager, no live block and no segment once all is dropped.

    A case that has failed is not asked: pytest has its traceback, and so all that its functions held.
    """
    from . import _torch_private, trees  # here, since supervisors import this file and must not import torch

    _torch_private.begin_case()
    yield
    if not request.node.stash[_FAILED]:
        trees.assert_nothing_left()
