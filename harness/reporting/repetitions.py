"""Memory growth over the repetitions of a case, for reports. Information only, no verdict. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.checks import trend as soak
from harness.checks.meters import format_quantity
from harness.checks.trend import LevelSample, MeterSeries, TrendShape
from harness.journal.events import Levels
from harness.journal.ledger import Ledger
from harness.reporting.plot import plot


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
    by_case: dict[str, list[Levels]] = {}
    for line in ledger.levels:
        by_case.setdefault(line.case, []).append(line)
    cases = [verdict.case for verdict in ledger.verdicts if verdict.case in by_case]
    return [entry for case in cases for entry in repeated(case, by_case[case])]


def repeated(case: str, lines: Iterable[Levels]) -> list[Repeated]:
    """Return the entry of a case with these ``levels`` lines, or nothing if no meter could be read."""
    series = soak.trend_series(LevelSample(line.executor, line.values) for line in lines)
    if not series:
        return []
    first, *others = series
    grown = [other for other in others if other.trend.shape is TrendShape.GROWS and other.executor == first.executor]
    return [Repeated(case, first, tuple(grown) if first.trend.shape is TrendShape.GROWS else ())]
