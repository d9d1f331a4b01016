"""The fixtures and marks of this suite: torch keeps memory after each compilation, and graph pools must be empty."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from .kept import KEEPS, KEPT

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Add the `keeps` marker to each case."""
    made = yield
    for item in made if isinstance(made, list) else ():
        item.add_marker(pytest.mark.keeps(KEEPS, **KEPT))
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record whether the case failed, for fixtures."""
    item.stash[_FAILED] = call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception)
    return (yield)


@pytest.fixture(autouse=True)
def pools_are_empty_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check for leaks of trees: after a reset there must be no manager, no allocated block and no segment.

    The check does not run after a failure, because pytest then holds the traceback, and with it the locals of the case.
    """
    from . import _torch_private, trees  # imported here, because supervisors import this file and must not import torch

    _torch_private.begin_case()
    yield
    if not request.node.stash[_FAILED]:
        trees.assert_nothing_left()
