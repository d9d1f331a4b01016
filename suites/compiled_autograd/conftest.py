"""All cases of this suite capture backward passes, of which torch keeps something."""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Mark each case. Only a process that imports the cases calls this hook, and so imports torch."""
    made = yield
    for item in made if isinstance(made, list) else ():
        from suites.compiled import KEEPS, KEPT

        item.add_marker(pytest.mark.keeps(KEEPS, **KEPT))
    return made
