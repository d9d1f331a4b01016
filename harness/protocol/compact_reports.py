"""The reports that xdist's workers send to the controller: a plain pass is one text, in pytest's own hooks for that.

execnet packs and unpacks each value by itself, in Python. A report has some thirty values, a case has three reports.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.protocol.reports import is_plain_pass

# Created once: json.dumps and json.loads create or look up theirs at each call.
_as_text = json.JSONEncoder(separators=(",", ":")).encode
_from_text = json.JSONDecoder().decode
#: The key of a compact report.
_KEY = "harness_report"


class CompactingHooks:
    """A plugin for an xdist worker. Not for other processes: a plugin there may write such data to a file."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_to_serializable(self, report: pytest.CollectReport | pytest.TestReport) -> dict[str, str] | None:
        return compact(report)


class ExpandingHooks:
    """A plugin for the controller."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_from_serializable(self, data: dict[str, Any]) -> pytest.TestReport | None:
        return expanded(data)


def compact(report: pytest.CollectReport | pytest.TestReport) -> dict[str, str] | None:
    """Returns a plain pass as one text. None for any other report."""
    if not isinstance(report, pytest.TestReport) or not is_plain_pass(report) or report.user_properties:
        return None
    when, times = report.when, (report.duration, report.start, report.stop)
    return {_KEY: _as_text((report.nodeid, report.location, report.keywords, when, report.sections, *times))}


def expanded(data: dict[str, Any]) -> pytest.TestReport | None:
    """Returns the report that `compact` made `data` of, with what xdist has added. None for other data."""
    if _KEY not in data:
        return None
    added = {name: value for name, value in data.items() if name != _KEY}
    nodeid, location, keywords, when, sections, duration, start, stop = _from_text(data[_KEY])
    return pytest.TestReport(
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
