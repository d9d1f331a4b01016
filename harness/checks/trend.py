"""Judges what a process had in use after each repetition of a case: it stays flat, settles, or keeps growing.

Pure, and no verdict. `harness.checks.growth` decides what is a leak; its thresholds are for one run. This module looks
at many runs, and so detects growth far below those thresholds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low

from harness.checks.meters.table import Unit, format_quantity, inflect_noun, meter_of
from harness.checks.slope import sustained_slope

#: The first repetitions do not count: they create what the later ones reuse.
WARMUP_REPETITIONS = 3
#: Fewer repetitions in one process say nothing: the counted ones are compared by thirds, of at least three each.
MIN_REPETITIONS = WARMUP_REPETITIONS + 9

_KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Watched:
    """A meter that is useful over many repetitions. Growth counts if it exceeds `step` bytes or objects in each.

    `words`: what it measures.
    """

    step: int
    words: str
    unit: Unit


def _metered(name: str, step: int) -> Watched:
    meter = meter_of(name)
    return Watched(step, inflect_noun(meter.noun, 0), meter.unit)


# Growth is reported in this order: what points most clearly at its cause comes first. The steps above zero are well
# above what 407 cases left behind when they ran 30 times on the CPU: 160 bytes of malloc memory, 24 blocks of Python's
# allocator, 7 KiB of resident memory. The steps for CUDA have not been measured.
WATCHED: Mapping[str, Watched] = {
    "tensor_bytes": _metered("tensor_bytes", 0),
    "cuda_allocated": _metered("cuda_allocated", 0),
    "soft_allocated": _metered("soft_allocated", 0),
    "pinned_bytes": _metered("pinned_bytes", 0),
    "threads": _metered("threads", 0),
    "descriptors": _metered("descriptors", 0),
    "heap_bytes": _metered("heap_bytes", _KIB // 2),
    "python_blocks": _metered("python_blocks", 100),
    "cuda_reserved": _metered("cuda_reserved", 16 * _KIB),
    "cuda_driver": _metered("cuda_driver", 16 * _KIB),
    "soft_reserved": _metered("soft_reserved", 16 * _KIB),
    "mapped_bytes": _metered("mapped_bytes", 16 * _KIB),
    "resident_bytes": Watched(32 * _KIB, "resident memory of the process", "bytes"),
}
_ORDER = {name: position for position, name in enumerate(WATCHED)}


def watched(name: str) -> Watched | None:
    """The entry for a name in a reading, such as ``cuda_allocated[0]``; None when the meter is not watched."""
    return WATCHED.get(name.partition("[")[0])


class TrendShape(StrEnum):
    """What a series looks like, worst first."""

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

    - *grows*: the counted repetitions go on growing by more than `step` (`harness.checks.slope.sustained_slope`).
    - *flat* or *settled*: the second half stays within `step` per repetition, without its highest and lowest tenth. It
      is settled if that half is higher than the beginning.
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
    """A slope as a report shows it: ``4.1 KiB``, ``504``, ``0.5``."""
    if unit == "bytes" or slope >= 10:
        return format_quantity(round(slope), unit)
    return f"{slope:.2f}".rstrip("0").rstrip(".")


def _spread(values: Sequence[int]) -> int:
    aside = len(values) // 10
    inner = sorted(values)[aside : len(values) - aside]
    return inner[-1] - inner[0]


@dataclass(frozen=True, slots=True)
class LevelSample:
    """What was in use after one attempt, by meter, in the executor of this name."""

    executor: str
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MeterSeries:
    """One meter over the repetitions of a case in one executor, and its trend."""

    meter: str
    executor: str
    values: tuple[int, ...]
    trend: Trend
    about: Watched

    @property
    def unit(self) -> Unit:
        return self.about.unit

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.meter}: {self.about.words} {self.trend.text}"


def trend_series(samples: Iterable[LevelSample]) -> list[MeterSeries]:
    """All series of a case, from its samples in order: worst shape first, then the longest, then the clearest cause.

    There is one per meter and executor: values of different processes cannot be compared. Series that do not grow are
    ordered by how far they moved, measured in steps of their meter. Meters that are not watched are left out.
    """
    values: dict[tuple[str, str], list[int]] = {}
    for sample in samples:
        for name, value in sample.values.items():
            values.setdefault((sample.executor, name), []).append(value)
    found = []
    for (executor, name), each in values.items():
        if (about := watched(name)) is not None:
            trend = classify_trend(each, step=about.step, unit=about.unit)
            found.append(MeterSeries(name, executor, tuple(each), trend, about))
    return sorted(found, key=_rank)


def _rank(each: MeterSeries) -> tuple[int, float, int, int, str]:
    rank = _SHAPE_RANK[each.trend.shape]
    moved = (max(each.values) - min(each.values)) / max(each.about.step, 1)
    if each.trend.shape in (TrendShape.GROWS, TrendShape.SHORT):
        moved = 0.0
    return rank, -moved, -len(each.values), _ORDER[each.meter.partition("[")[0]], each.meter
