"""Report lines for processes that grew over many cases.

Proven leaks have a verdict or a finding; these lines only inform.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.checks.meters import format_growths
from harness.core.text import format_count, single_line
from harness.journal.events import Batch


def unproven_leaks(searches: Sequence[Batch]) -> list[str]:
    """Return one line per process whose growth has no explanation: not searched, or not to the end."""
    return [_line(search) for search in searches if search.unproven or search.failure]


def leak_search_cost(searches: Sequence[Batch]) -> str:
    """Return the number and the duration of the searches, for the line with the cost of isolation.

    Empty if there was none.
    """
    made = [search for search in searches if search.trials]
    return f", {format_count(len(made), 'leak search', 'leak searches')} in {_seconds(made):.1f} s" if made else ""


def _seconds(searches: Sequence[Batch]) -> float:
    return sum(search.seconds for search in searches)


def _line(search: Batch) -> str:
    cases = format_count(len(search.cases), "case")
    text = f"GREW executor {search.executor} by {format_growths(search.suspicions)} over {cases}"
    parts = [*search.unproven[:1], *([search.failure] if search.failure else [])]
    tried = f"{search.tried} of them ran again in {search.seconds:.1f} s" if search.trials else "none of them ran again"
    return single_line(f"{text}, not shown to be a leak: {'; '.join([tried, *parts])}", 600)
