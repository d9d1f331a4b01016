"""All cases of this suite capture backward passes, after which torch keeps memory."""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Add the `keeps` marker to each case.

    Only processes that import the cases, and therefore torch, call this hook.
    """
    made = yield
    for item in made if isinstance(made, list) else ():
        from suites.compiled import KEEPS, KEPT

        item.add_marker(pytest.mark.keeps(KEEPS, **KEPT))
    return made
