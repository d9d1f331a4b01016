"""A pytest plugin that breaks torch in the processes that import test files: the zygote, and so executors.

`harness mutate` loads it with ``-p harness.tools.mutation.plugin``. The variable `VARIABLE` names the break, preceded
by the catalogue file and a colon if it is not the harness's catalogue.
"""

from __future__ import annotations

import os

import pytest

from harness.tools.mutation.source import chosen

VARIABLE = "HARNESS_MUTATION"


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Break torch before the first test file is imported. Supervisors import no test file, and must stay intact."""
    plugins = session.config.pluginmanager.get_plugins()
    if not any(getattr(plugin, "is_harness_zygote", False) for plugin in plugins):
        return
    apply = chosen(os.environ[VARIABLE]).apply
    assert apply is not None
    apply()
