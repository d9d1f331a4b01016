"""The plugins and conftests of others: which of them need real test items, and which may keep results of tests.

Test items are made in their own process from imported test files. Supervisors have stand-ins for the items of cases.
These have ids, marks and keywords, but no function and no fixtures.

Hooks around a test are called in executors. Hooks at the end of a session are called in the process that the user
started.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

#: Hooks that get items or collectors in a supervisor. Hooks that run a test are called only in executors.
ITEM_HOOKS = (
    *("pytest_pycollect_makemodule", "pytest_make_collect_report", "pytest_collectreport", "pytest_itemcollected"),
    *("pytest_collection_modifyitems", "pytest_deselected", "pytest_collection_finish"),
    *("pytest_report_collectionfinish", "pytest_runtestloop", "pytest_runtest_protocol"),
)
#: Packages whose plugins work with stand-ins. execnet gives xdist's worker the name ``__channelexec__``.
_WORKING_WITH_STAND_INS = frozenset(
    {"_pytest", "pytest", "xdist", "__channelexec__", "harness", "hypothesis", "_hypothesis_pytestplugin", "anyio"}
)


def plugins_that_need_items(manager: pytest.PytestPluginManager, root: Path) -> list[str]:
    """Return one reason for each plugin that needs real items. Paths are relative to `root`."""
    hooks_by_plugin: dict[str, list[str]] = {}
    for hook in ITEM_HOOKS:
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            plugin = implementation.plugin
            if not is_known(plugin):
                hooks_by_plugin.setdefault(plugin_text(plugin, root), []).append(hook)
    return [needs_items_reason(name, hooks) for name, hooks in sorted(hooks_by_plugin.items())]


def is_known(plugin: object) -> bool:
    """Return whether a plugin belongs to a package whose plugins work with stand-ins."""
    return module_of_plugin(plugin).partition(".")[0] in _WORKING_WITH_STAND_INS


def needs_items_reason(plugin: str, hooks: Sequence[str]) -> str:
    """Return why a plugin needs real items."""
    return f"{plugin} implements {', '.join(hooks)}"


def collects_itself_text(reasons: Iterable[str]) -> str:
    """Return a sentence for the user about a run in which each process collects for itself."""
    return f"each pytest process imports and collects the tests itself, since {'; '.join(reasons)}"


def module_of_plugin(plugin: object) -> str:
    """Return the name of the module of a plugin."""
    if isinstance(plugin, ModuleType):
        return plugin.__name__
    return (plugin if isinstance(plugin, type) else type(plugin)).__module__


def plugin_text(plugin: object, root: Path) -> str:
    """Return a plugin's name for users: for a conftest, its path relative to `root`."""
    file = plugin.__file__ if isinstance(plugin, ModuleType) else None
    if file is not None and os.path.basename(file) == "conftest.py":
        return os.path.relpath(file, root)
    return f"the plugin {module_of_plugin(plugin)}"


_DURING_A_TEST = (
    *("pytest_runtest_protocol", "pytest_runtest_makereport", "pytest_runtest_setup", "pytest_runtest_call"),
    *("pytest_runtest_teardown", "pytest_fixture_setup", "pytest_pyfunc_call"),
)
_AT_THE_END = ("pytest_sessionfinish", "pytest_terminal_summary", "pytest_unconfigure")
#: Packages whose plugins have hooks of both kinds but keep nothing, or behave as in plain pytest. `benchmarks.plugins`
#: has shown this for those in the second row.
_KEEPING_NOTHING = frozenset(
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
        f"the plugin {name}" if conftest == "" else conftest
        for name, conftest in (during & end)
        if name not in _KEEPING_NOTHING
    )


def _owner(plugin: object, root: Path) -> tuple[str, str]:
    """Return the package of a plugin, and its path if the plugin is a conftest."""
    shown = plugin_text(plugin, root)
    return module_of_plugin(plugin).partition(".")[0], "" if shown.startswith("the plugin ") else shown


def kept_results_text(names: Iterable[str]) -> str:
    """Return a sentence for the user about these plugins."""
    return (
        f"{', '.join(names)} may keep results of tests until the session ends, but tests run in other processes, so "
        f"these results are lost; see {PAGE}, or use --isolation=none"
    )
