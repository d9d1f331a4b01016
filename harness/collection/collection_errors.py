"""What pytest reports on files and folders that it could not collect, in the words of the harness. Pure functions."""

from __future__ import annotations

import pytest

from harness.core.text import single_line, truncate_middle

#: Maximum characters of the text of a finding.
_MOST_TEXT = 1 << 16


def collection_error(report: pytest.CollectReport) -> str:
    """Return the text of a finding on a collector that failed: its file and the error on one line, then all of it."""
    text = report.longreprtext
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    cause = single_line(errors[-1] if errors else text)
    what = f"{report.nodeid} could not be collected: " if report.nodeid else ""
    return truncate_middle(f"{what}{cause}\n{text}", _MOST_TEXT)


def internal_error(text: str) -> str:
    """Return the text of a finding on an exception that ended pytest's session, given pytest's own text."""
    cause = single_line(text.rstrip().rpartition("\n")[2])
    return truncate_middle(f"pytest ended with an internal error: {cause}\n{text}", _MOST_TEXT)


def skip_reason(report: pytest.CollectReport) -> str:
    """Return the reason of a file or class that skipped itself, on one line."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return single_line(text.removeprefix("Skipped: ")) or "no reason"
