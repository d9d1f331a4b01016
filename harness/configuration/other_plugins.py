"""Well-known plugins that inspect what tests leave in pytest's own process, whereas cases run in executors."""

from __future__ import annotations

import sys

import pytest

#: Options of other plugins that change or compare what tests have left in the process of the session, and their names
#: there: syrupy, snapshottest, inline-snapshot, pytest-benchmark, pytest-testmon (which would select tests by the code
#: that the process of the session has run, which is none), pytest-memray, pytest-bdd.
IN_PROCESS_OPTIONS = (
    ("--snapshot-update", "update_snapshots"),
    ("--snapshot-update-new-only", "update_new_snapshots_only"),
    ("--snapshot-update", "snapshot_update"),
    ("--inline-snapshot", "inline_snapshot"),
    ("--benchmark-only", "benchmark_only"),
    ("--benchmark-json", "benchmark_json"),
    ("--benchmark-save", "benchmark_save"),
    ("--benchmark-autosave", "benchmark_autosave"),
    ("--benchmark-compare", "benchmark_compare"),
    ("--benchmark-compare-fail", "benchmark_compare_fail"),
    ("--benchmark-histogram", "benchmark_histogram"),
    ("--testmon", "testmon"),
    ("--testmon-forceselect", "testmon_forceselect"),
    ("--memray", "memray"),
    ("--cucumberjson", "cucumber_json_path"),
    ("--gherkin-terminal-reporter", "gherkin_terminal_reporter"),
)

#: Options that switch off a search for unused items, with the plugin, and the items that are no longer searched.
_SWITCHED_OFF = {
    "disable_unused_snapshots": ("syrupy", "unused snapshots"),
    "warn_unused_snapshots": ("syrupy before 5.1", "unused snapshots"),
}


def disable_unused_snapshot_checks(config: pytest.Config) -> list[str]:
    """Stop plugins from drawing conclusions about cases that ran in other processes. Return lines for the user."""
    for name, (plugin, target) in _SWITCHED_OFF.items():
        if getattr(config.option, name, None) is False:
            setattr(config.option, name, True)
            return [f"{plugin} does not look for {target}, since cases run in other processes; --isolation=none would"]
    return []


def leave_out_idle_hypothesis(config: pytest.Config) -> None:
    """Unregister hypothesis's plugin before the summary, if it has nothing to print there.

    It imports all of hypothesis to find out, which takes a tenth of the time of a run of one case.
    """
    plugin = config.pluginmanager.get_plugin("hypothesispytest")
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if plugin is None or reporter is None or "hypothesis" in sys.modules:
        return
    reports = (report for group in reporter.stats.values() for report in group)
    noted = any(name.startswith("_hypothesis") for report in reports for name in getattr(report, "__dict__", ()))
    if not noted and not config.getoption("hypothesis_show_statistics", False):
        config.pluginmanager.unregister(plugin)
