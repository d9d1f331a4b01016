"""Memory growth over the repetitions of a case, and over many cases, for reports. Pure functions.

Information only: proven leaks have a verdict or a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.checks import trend as soak
from harness.checks.meters import format_growths, format_quantity
from harness.checks.trend import LevelSample, MeterSeries, TrendShape
from harness.core.text import format_count, single_line
from harness.journal.events import Batch, Levels
from harness.journal.ledger import Ledger

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLAIN = " .:#"
_AXES = {_BLOCKS: "│", _PLAIN: "|"}


def can_encode_blocks(encoding: str | None) -> bool:
    """Return whether this encoding has the block characters of a plot."""
    try:
        (_BLOCKS + _AXES[_BLOCKS]).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def plot(
    values: Sequence[int], *, blocks: bool, label: Callable[[int], str], width: int = 60, height: int = 3
) -> list[str]:
    """Return a plot with one bar per value: `height` lines (two or more) with an axis and at most `width` columns.

    The axis shows the smallest and the largest value, formatted by `label`. If both labels are equal, the top label is
    the difference. If there are more values than columns, a column shows the largest of its values. With `blocks`, bars
    are drawn in eighths of a line, otherwise in thirds, in plain ASCII. Without values there are no lines.
    """
    if not values:
        return []
    low, high = min(values), max(values)
    top, bottom = label(high), label(low)
    if top == bottom and high != low:
        top = f"+{label(high - low)}"
    columns = (
        [max(values[column * len(values) // width : (column + 1) * len(values) // width]) for column in range(width)]
        if len(values) > width
        else list(values)
    )
    signs = _BLOCKS if blocks else _PLAIN
    steps = len(signs) - 1
    # The smallest value gets a small bar, so that no column is empty.
    filled = [1 + (value - low) * (steps * height - 1) // max(high - low, 1) for value in columns]
    margin = max(len(top), len(bottom))
    lines = []
    for row in reversed(range(height)):
        text = top if row == height - 1 else bottom if row == 0 else ""
        bars = "".join(signs[min(max(fill - row * steps, 0), steps)] for fill in filled)
        lines.append(f"{text:>{margin}} {_AXES[signs]}{bars}".rstrip())
    return lines


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


@dataclass(frozen=True, slots=True)
class Repeated:
    """A case that ran several times: its most informative series, and other growing series of the same process."""

    case: str
    series: MeterSeries
    also: tuple[MeterSeries, ...]

    @property
    def grows(self) -> bool:
        """Whether the series grew steadily."""
        return self.series.trend.shape is TrendShape.GROWS

    @property
    def word(self) -> str:
        """The word in reports: ``GROWS``."""
        return self.series.trend.shape.upper()

    @property
    def text(self) -> str:
        """One line, without the case."""
        text = f"{self.series.text}, in executor {self.series.executor}"
        others = (f"{series.meter} by {soak.format_slope(series.trend.slope, series.unit)}" for series in self.also)
        return f"{text}; also {', '.join(others)}" if self.also else text

    def plot(self, *, blocks: bool) -> list[str]:
        """Return the series as a few lines of text, in plain ASCII unless `blocks`."""
        unit = self.series.unit
        return plot(self.series.values, blocks=blocks, label=lambda value: format_quantity(value, unit))


def repetitions(ledger: Ledger) -> list[Repeated]:
    """Return every case that has levels in the journal, in the order of the verdicts."""
    return [entry for verdict, levels in ledger.cases() for entry in repeated(verdict.case, levels)]


def repeated(case: str, lines: Iterable[Levels]) -> list[Repeated]:
    """Return the entry of a case with these ``levels`` lines, or nothing if no meter could be read."""
    series = soak.trend_series(LevelSample(line.executor, line.values) for line in lines)
    if not series:
        return []
    first, *others = series
    grown = [other for other in others if other.trend.shape is TrendShape.GROWS and other.executor == first.executor]
    return [Repeated(case, first, tuple(grown) if first.trend.shape is TrendShape.GROWS else ())]
