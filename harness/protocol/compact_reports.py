"""The reports that xdist's workers send to the controller: a passed case is one text in one message.

execnet packs and unpacks each value separately, in Python, and wakes two threads for each message. A report has some
thirty values. A case has three reports, and two more messages for its begin and its end. Therefore a worker sends the
three reports of a passed case as one message, and the controller makes five calls from it. Both use pytest's own hooks
for serialisation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from harness import _compat
from harness.protocol.phase_page import PHASES
from harness.protocol.reports import is_plain_pass

# Created once: json.dumps and json.loads create or look up a codec at each call.
_as_text = json.JSONEncoder(separators=(",", ":")).encode
_from_text = json.JSONDecoder().decode
#: The key of compact reports.
_KEY = "harness_reports"
#: The attribute of a report that has the earlier reports of the same case.
_BEFORE = "harness_before"
#: The hooks that are called for each case, for each of which xdist's worker sends a message.
_HOOKS = ("pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish")
REPORT_BUNDLER = pytest.StashKey["ReportBundler"]()


class ReportBundler:
    """Reports a case in an xdist worker: to all plugins as pytest does, but to the controller in one message."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        #: The hooks of all plugins except the sender. None if they differ between cases.
        self._hooks: Sequence[Callable[..., object]] | None = None
        self._is_known = False
        #: The reports of the current case, while the last of them is sent.
        self._sent: Sequence[pytest.TestReport] = ()

    def log(self, item: pytest.Item, shown: Sequence[pytest.TestReport]) -> bool:
        """Report a case if it has passed with nothing else to report, and return True. Otherwise return False."""
        if [report.when for report in shown] != [*PHASES] or not all(map(_is_compact, shown)):
            return False
        if not self._is_known:
            self._hooks, self._is_known = self._of_others(), True
        if self._hooks is None:
            return False
        *before, last = shown
        start, report_of, finish = self._hooks
        start(nodeid=item.nodeid, location=last.location)
        for report in before:
            report_of(report=report)
        self._sent = shown
        self._config.hook.pytest_runtest_logreport(report=last)
        self._sent = ()
        finish(nodeid=item.nodeid, location=last.location)
        return True

    def sent_with(self, report: pytest.CollectReport | pytest.TestReport) -> Sequence[pytest.TestReport]:
        """Return the reports that are sent to the controller with this one.

        They are all reports of its case, or only this one.
        """
        return self._sent if self._sent and self._sent[-1] is report else ()

    def _of_others(self) -> Sequence[Callable[..., object]] | None:
        """Return the hooks of the other plugins. A hook of a conftest may only be called for cases of its folder."""
        sender = _compat.xdist_sender(self._config)
        plugins = [
            implementation.plugin
            for name in _HOOKS
            for implementation in getattr(self._config.hook, name).get_hookimpls()
        ]
        of_folders = any(str(getattr(plugin, "__file__", "")).endswith("conftest.py") for plugin in plugins)
        if sender is None or of_folders:
            return None
        return [self._config.pluginmanager.subset_hook_caller(name, [sender]) for name in _HOOKS]


class CompactReportsPlugin:
    """A plugin for an xdist worker only: in other processes, a plugin may write such data to a file."""

    def __init__(self, config: pytest.Config) -> None:
        self._bundling = config.stash[REPORT_BUNDLER] = ReportBundler(config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_to_serializable(self, report: pytest.CollectReport | pytest.TestReport) -> dict[str, str] | None:
        return compact_report(report, self._bundling.sent_with(report))


class ExpandReportsPlugin:
    """A plugin for the controller."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_from_serializable(self, data: dict[str, Any]) -> pytest.TestReport | None:
        return expand_report(data)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        before: Sequence[pytest.TestReport] | None = vars(report).pop(_BEFORE, None)
        if before is None:
            return (yield)
        node = report.node
        hook = node.config.hook
        hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
        for earlier in before:
            earlier.node = node  # type: ignore[attr-defined]
            hook.pytest_runtest_logreport(report=earlier)
        result = yield
        hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
        return result


def compact_report(
    report: pytest.CollectReport | pytest.TestReport, whole: Sequence[pytest.TestReport] = ()
) -> dict[str, str] | None:
    """Return a plain pass as one text. For the last report of a case, return the `whole` case.

    None for other reports.
    """
    if not isinstance(report, pytest.TestReport) or not _is_compact(report):
        return None
    phases = [_phase(phase_report) for phase_report in whole or (report,)]
    return {_KEY: _as_text((report.nodeid, report.location, report.keywords, bool(whole), phases))}


def expand_report(data: dict[str, Any]) -> pytest.TestReport | None:
    """Return the last of the reports in `data`, which `compact_report` made, with xdist's additions.

    None for other data.
    """
    if _KEY not in data:
        return None
    added = {name: value for name, value in data.items() if name != _KEY}
    nodeid, location, keywords, is_bundle, phases = _from_text(data[_KEY])
    *before, last = (
        pytest.TestReport(
            nodeid=nodeid,
            location=tuple(location),
            keywords=keywords,
            outcome="passed",
            longrepr=None,
            when=when,
            sections=[(name, text) for name, text in sections],
            duration=duration,
            start=start,
            stop=stop,
            **added,
        )
        for when, sections, duration, start, stop in phases
    )
    if is_bundle:
        setattr(last, _BEFORE, before)
    return last


def _is_compact(report: pytest.TestReport) -> bool:
    return is_plain_pass(report) and not report.user_properties


def _phase(report: pytest.TestReport) -> tuple[object, ...]:
    return report.when, report.sections, report.duration, report.start, report.stop
