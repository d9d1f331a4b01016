"""Judges what a process had in use after each repetition of a case: it stays flat, settles, or keeps growing.

Pure, and no verdict. `harness.checks.growth` decides what is a leak; its thresholds are for one run. This module looks
at many runs, and so detects growth far below those thresholds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low

from harness.checks.meters.table import Unit, inflect, meter_of, quantity
from harness.checks.slope import goes_on

#: The first repetitions do not count: they create what the later ones reuse.
WARMUP = 3
#: Fewer repetitions in one process say nothing: the counted ones are compared by thirds, of at least three each.
MIN_REPETITIONS = WARMUP + 9

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
    return Watched(step, inflect(meter.noun, 0), meter.unit)


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


class Shape(StrEnum):
    """What a series looks like, worst first."""

    GROWS = "grows"
    UNSTEADY = "unsteady"
    SETTLED = "settled"
    FLAT = "flat"
    SHORT = "short"


_SHAPE_RANK = {shape: rank for rank, shape in enumerate(Shape)}


@dataclass(frozen=True, slots=True)
class Trend:
    """The judgement on one series, as a text. `slope`: the growth per repetition; 0 if it does not grow."""

    shape: Shape
    slope: float
    text: str


def judge(values: Sequence[int], *, step: int = 0, unit: Unit = "count") -> Trend:
    """Judge the values after each repetition, in order, from one process.

    - *grows*: the counted repetitions go on growing by more than `step` (`harness.checks.slope.goes_on`).
    - *flat* or *settled*: the second half stays within `step` per repetition, without its highest and lowest tenth. It
      is settled if that half is higher than the beginning.
    - *unsteady*: everything else.
    - *short*: fewer than `MIN_REPETITIONS` values.
    """
    count = len(values)
    if count < MIN_REPETITIONS:
        few = f"{count} {inflect('repetition{s}', count)}"
        return Trend(Shape.SHORT, 0.0, f"had only {few} in one process, {MIN_REPETITIONS} are needed")
    lowest, highest = quantity(min(values), unit), quantity(max(values), unit)
    span = f"at {lowest}" if lowest == highest else f"between {lowest} and {highest}"
    allowed = step * (count - WARMUP)
    flat = Trend(Shape.FLAT, 0.0, f"stayed flat over {count} repetitions, {span}")
    if max(values) - min(values) <= allowed:
        return flat
    if (slope := goes_on(values[WARMUP:], step)) is not None:
        grew = f"grew by {rate(slope.estimate, unit)} per repetition over {count} repetitions"
        ends = f"from {quantity(values[0], unit)} to {quantity(values[-1], unit)}"
        return Trend(Shape.GROWS, slope.estimate, f"{grew}, {ends}")
    half = values[WARMUP + (count - WARMUP) // 2 :]
    if _spread(half) > step * len(half):
        return Trend(Shape.UNSTEADY, 0.0, f"went up and down over {count} repetitions, {span}")
    level = median_low(half)
    if level - values[0] <= allowed:
        return flat
    since = next(number for number, value in enumerate(values, start=1) if value >= level - allowed)
    more = quantity(level - values[0], unit)
    return Trend(Shape.SETTLED, 0.0, f"grew by {more} until repetition {since} of {count}, then stopped")


def rate(slope: float, unit: Unit) -> str:
    """A slope as a report shows it: ``4.1 KiB``, ``504``, ``0.5``."""
    if unit == "bytes" or slope >= 10:
        return quantity(round(slope), unit)
    return f"{slope:.2f}".rstrip("0").rstrip(".")


def _spread(values: Sequence[int]) -> int:
    aside = len(values) // 10
    inner = sorted(values)[aside : len(values) - aside]
    return inner[-1] - inner[0]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was in use after one attempt, by meter, in the executor of this name."""

    executor: str
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Series:
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


def series(samples: Iterable[Sample]) -> list[Series]:
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
            trend = judge(each, step=about.step, unit=about.unit)
            found.append(Series(name, executor, tuple(each), trend, about))
    return sorted(found, key=_rank)


def _rank(each: Series) -> tuple[int, float, int, int, str]:
    rank = _SHAPE_RANK[each.trend.shape]
    moved = (max(each.values) - min(each.values)) / max(each.about.step, 1)
    if each.trend.shape in (Shape.GROWS, Shape.SHORT):
        moved = 0.0
    return rank, -moved, -len(each.values), _ORDER[each.meter.partition("[")[0]], each.meter
