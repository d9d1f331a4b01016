"""Does a series of readings grow? Its slope, and whether repetitions stay flat, settle, or keep growing. Pure.

All questions of this kind come here: repetitions of a case, rounds of a batch, and durations over many runs.

The estimate is that of Theil and Sen: the median of the slopes between any two readings. Its interval and its
probability follow from Kendall's rank statistic (H. B. Mann, "Nonparametric Tests Against Trend", 1945; P. K. Sen,
"Estimates of the Regression Coefficient Based on Kendall's Tau", 1968), so they assume no distribution: single steps
and spikes hardly move them, and up to 29% of the readings may be outliers.

A trend gives no verdict: `harness.checks.growth` decides what is a leak, with thresholds for one run. Trends compare
many runs, and so detect growth far below those thresholds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from statistics import NormalDist, median, median_low

from harness.checks.meters import METERS, Meter, TrendRule, Unit, format_quantity, inflect_noun

#: The normal quantile of a two-sided interval of 99%.
_QUANTILE = 2.576
#: The most points of a slope: a longer series is cut into stretches, each with its median.
_MAX_POINTS = 200


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth per reading. With 99% confidence it is between `low` and `high`, which are infinite if unknown.

    `chance`: the one-sided probability that readings without a trend rise at least as much.
    """

    estimate: float
    low: float
    high: float
    chance: float


def theil_sen_slope(values: Sequence[float]) -> Slope:
    """Return the slope of at least two readings, in order.

    Fewer than seven have no finite interval, and fewer than four can rise by chance alone.
    """
    length = -(-len(values) // _MAX_POINTS)
    middles = [median_low(values[start : start + length]) for start in range(0, len(values) - length + 1, length)]
    slopes = sorted((later - earlier) / (j - i) for (i, earlier), (j, later) in combinations(enumerate(middles), 2))
    count = len(middles)
    spread = _QUANTILE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    outside = int((len(slopes) - spread) // 2)
    low, high = (slopes[outside - 1], slopes[-outside]) if outside >= 1 else (-math.inf, math.inf)
    return Slope(median(slopes) / length, low / length, high / length, _chance(middles, slopes))


def _chance(values: Sequence[float], slopes: Sequence[float]) -> float:
    """Return the one-sided probability of the Mann-Kendall test. `slopes`: those between any two values."""
    count = len(values)
    score = sum((slope > 0) - (slope < 0) for slope in slopes)
    if count < 4 or score <= 0:  # the least possible probability for 3 values is 1/6
        return 1.0
    ties = Counter(values).values()
    variance = (count * (count - 1) * (2 * count + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    return 1.0 if variance <= 0 else 1 - NormalDist().cdf((score - 1) / math.sqrt(variance))


def sustained_slope(values: Sequence[float], step: float) -> Slope | None:
    """Return the slope of readings that keep growing by more than `step` each time; None if they do not.

    They do if the whole interval of the slope is above `step`, and if the medians of the thirds rise both times, by at
    least half of what the slope predicts. A single step, a saw-tooth, and growth that slows down do not meet this.
    """
    if len(values) < 3:
        return None
    slope = theil_sen_slope(values)
    third = len(values) // 3
    low, middle, high = (median(values[start : start + third]) for start in (0, third, len(values) - third))
    rises = min(middle - low, high - middle) >= slope.estimate * third / 2
    return slope if slope.low > step and rises else None


#: Repetitions that do not count. Some things are made in the second or third call: torch.jit profiles its first runs,
#: torch.compile compiles again for a second shape, and free lists and dictionaries reach their size.
WARMUP_REPETITIONS = 3
#: Fewer repetitions in one process prove nothing: the counted ones are compared by thirds, of at least three each.
MIN_REPETITIONS = WARMUP_REPETITIONS + 9

#: Only trends use this meter. 407 cases that ran 30 times on the CPU left 7 KiB.
_RESIDENT = Meter(
    "resident_bytes",
    "resident memory of the process",
    unit="bytes",
    tier="full",
    suspect=None,
    why="read for trends only",
    trend=TrendRule(step=32 << 10, rank=13),
)
#: The meters that are useful over many repetitions, each with its rule.
TREND_RULES: Mapping[str, tuple[Meter, TrendRule]] = {
    meter.name: (meter, meter.trend) for meter in (*METERS, _RESIDENT) if meter.trend is not None
}


def trend_rule_of(name: str) -> tuple[Meter, TrendRule] | None:
    """Return meter and rule for a name in a reading, such as ``cuda_allocated[0]``; None if it has no trend."""
    return TREND_RULES.get(name.partition("[")[0])


class TrendShape(StrEnum):
    """The shape of a series, worst first."""

    GROWS = "grows"
    UNSTEADY = "unsteady"
    SETTLED = "settled"
    FLAT = "flat"
    SHORT = "short"


_SHAPE_RANK = {shape: rank for rank, shape in enumerate(TrendShape)}


@dataclass(frozen=True, slots=True)
class Trend:
    """The judgement on one series, as a text. `slope`: the growth per repetition; 0 if it does not grow."""

    shape: TrendShape
    slope: float
    text: str


def classify_trend(values: Sequence[int], *, step: int = 0, unit: Unit = "count") -> Trend:
    """Judge the values after each repetition, in order, from one process.

    - *grows*: the counted repetitions keep growing by more than `step` (`sustained_slope`).
    - *flat* or *settled*: the second half, without its highest and lowest tenth, stays within `step` per repetition.
      The series is settled if that half is higher than the beginning.
    - *unsteady*: everything else.
    - *short*: fewer than `MIN_REPETITIONS` values.
    """
    count = len(values)
    if count < MIN_REPETITIONS:
        few = f"{count} {inflect_noun('repetition{s}', count)}"
        return Trend(TrendShape.SHORT, 0.0, f"had only {few} in one process, {MIN_REPETITIONS} are needed")
    lowest, highest = format_quantity(min(values), unit), format_quantity(max(values), unit)
    span = f"at {lowest}" if lowest == highest else f"between {lowest} and {highest}"
    allowed = step * (count - WARMUP_REPETITIONS)
    flat = Trend(TrendShape.FLAT, 0.0, f"stayed flat over {count} repetitions, {span}")
    if max(values) - min(values) <= allowed:
        return flat
    if (slope := sustained_slope(values[WARMUP_REPETITIONS:], step)) is not None:
        grew = f"grew by {format_slope(slope.estimate, unit)} per repetition over {count} repetitions"
        ends = f"from {format_quantity(values[0], unit)} to {format_quantity(values[-1], unit)}"
        return Trend(TrendShape.GROWS, slope.estimate, f"{grew}, {ends}")
    half = values[WARMUP_REPETITIONS + (count - WARMUP_REPETITIONS) // 2 :]
    if _spread(half) > step * len(half):
        return Trend(TrendShape.UNSTEADY, 0.0, f"went up and down over {count} repetitions, {span}")
    level = median_low(half)
    if level - values[0] <= allowed:
        return flat
    since = next(number for number, value in enumerate(values, start=1) if value >= level - allowed)
    more = format_quantity(level - values[0], unit)
    return Trend(TrendShape.SETTLED, 0.0, f"grew by {more} until repetition {since} of {count}, then stopped")


def format_slope(slope: float, unit: Unit) -> str:
    """Return a slope as a report shows it: ``4.1 KiB``, ``504``, ``0.5``."""
    if unit == "bytes" or slope >= 10:
        return format_quantity(round(slope), unit)
    return f"{slope:.2f}".rstrip("0").rstrip(".")


def _spread(values: Sequence[int]) -> int:
    aside = len(values) // 10
    inner = sorted(values)[aside : len(values) - aside]
    return inner[-1] - inner[0]


@dataclass(frozen=True, slots=True)
class LevelSample:
    """The amounts in use after one attempt, by meter, in the executor of this name."""

    executor: str
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MeterSeries:
    """One meter over the repetitions of a case in one executor, and its trend."""

    meter: str
    executor: str
    values: tuple[int, ...]
    trend: Trend
    about: Meter
    rule: TrendRule

    @property
    def unit(self) -> Unit:
        return self.about.unit

    @property
    def text(self) -> str:
        """The series as one line."""
        return f"{self.meter}: {inflect_noun(self.about.noun, 0)} {self.trend.text}"


def trend_series(samples: Iterable[LevelSample]) -> list[MeterSeries]:
    """Return all series of a case, from its samples in order.

    They are sorted by shape (worst first), length (longest first) and cause (clearest first).

    There is one series per meter and executor: values of different processes cannot be compared. Series that do not
    grow are ordered by how far they moved, measured in steps of their meter. Meters without a trend rule are left out.
    """
    values: dict[tuple[str, str], list[int]] = {}
    for sample in samples:
        for name, value in sample.values.items():
            values.setdefault((sample.executor, name), []).append(value)
    all_series = []
    for (executor, name), levels in values.items():
        if (entry := trend_rule_of(name)) is not None:
            meter, rule = entry
            trend = classify_trend(levels, step=rule.step, unit=meter.unit)
            all_series.append(MeterSeries(name, executor, tuple(levels), trend, meter, rule))
    return sorted(all_series, key=_rank)


def _rank(series: MeterSeries) -> tuple[int, float, int, int, str]:
    rank = _SHAPE_RANK[series.trend.shape]
    moved = (max(series.values) - min(series.values)) / max(series.rule.step, 1)
    if series.trend.shape in (TrendShape.GROWS, TrendShape.SHORT):
        moved = 0.0
    return rank, -moved, -len(series.values), series.rule.rank, series.meter
