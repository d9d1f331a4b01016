"""Plugins and conftests that may keep results of tests for the end of the session, which happens in another process.

Hooks around a test are called in executors. Hooks at the end of a session are called in the process that the user
started.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from harness.collection import real_items

_DURING_A_TEST = (
    "pytest_runtest_protocol",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_runtest_call",
    "pytest_runtest_teardown",
    "pytest_fixture_setup",
    "pytest_pyfunc_call",
)
_AT_THE_END = ("pytest_sessionfinish", "pytest_terminal_summary", "pytest_unconfigure")
#: Packages whose plugins have hooks of both kinds but keep nothing, or behave as in plain pytest. `benchmarks.plugins`
#: has shown this for those in the second row.
_KNOWN = frozenset(
    (
        *("_pytest", "pytest", "xdist", "__channelexec__", "harness", "_hypothesis_pytestplugin", "anyio"),
        *("pytest_html", "pytest_jsonreport", "ctrf", "pytest_csv", "pytest_bdd", "pytest_cov", "pytest_rerunfailures"),
        *("xprocess", "pytest_twisted"),
    )
)
PAGE = "docs/foreign-suites.md"


def may_keep_results(manager: pytest.PytestPluginManager, root: Path) -> list[str]:
    """Return the name of each plugin or conftest with hooks of both kinds. Paths are relative to `root`."""
    during, end = (
        {
            _owner(implementation.plugin, root)
            for hook in hooks
            for implementation in getattr(manager.hook, hook).get_hookimpls()
        }
        for hooks in (_DURING_A_TEST, _AT_THE_END)
    )
    return sorted(
        f"the plugin {name}" if conftest == "" else conftest for name, conftest in (during & end) if name not in _KNOWN
    )


def _owner(plugin: object, root: Path) -> tuple[str, str]:
    """Return the package of a plugin, and its path if the plugin is a conftest."""
    shown = real_items.plugin_text(plugin, root)
    return real_items.module_of_plugin(plugin).partition(".")[0], "" if shown.startswith("the plugin ") else shown


def kept_results_text(names: Iterable[str]) -> str:
    """Return a sentence for the user about these plugins."""
    return (
        f"{', '.join(names)} may keep results of tests until the session ends, but tests run in other processes, so "
        f"these results are lost; see {PAGE}, or use --isolation=none"
    )
