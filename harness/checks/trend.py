"""What a process had in use after each repetition of a case: whether it stands still, fills up, or grows without end.

Pure, and no verdict: what is a leak is decided by `harness.checks.growth`, whose thresholds are for one run. This looks
at many, and so sees what is far too small for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from statistics import median, median_low
from typing import Literal

from harness.checks.meters.table import meter_of, quantity

#: The first repetitions do not count: a first call makes what the later ones use.
WARMUP = 3
#: Fewer repetitions in one process say nothing: the counted ones are compared by thirds, each of three at least.
LEAST = WARMUP + 9
#: Readings that a slope is taken of; of more, the medians of so many stretches.
_MOST = 200

_KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Watched:
    """A meter that tells something over many repetitions: growth of more than `step`, bytes or things, in each counts.

    `words` say what is measured.
    """

    step: int
    words: str
    unit: Literal["bytes", "count"]


def _metered(name: str, step: int) -> Watched:
    meter = meter_of(name)
    return Watched(step, meter.counts, meter.unit)


# The order is that in which growth is told: what points most clearly at its cause comes first. Steps that are not zero
# stand well above what 407 cases left behind that run 30 times on the CPU: 160 bytes of malloc's, 24 of Python's
# blocks, 7 KiB of memory in use. CUDA's have not been measured.
WATCHED: Mapping[str, Watched] = {
    "tensor_bytes": _metered("tensor_bytes", 0),
    "cuda_allocated": _metered("cuda_allocated", 0),
    "soft_allocated": _metered("soft_allocated", 0),
    "pinned_bytes": _metered("pinned_bytes", 0),
    "threads": _metered("threads", 0),
    "descriptors": _metered("descriptors", 0),
    "heap_bytes": _metered("heap_bytes", _KIB),
    "python_blocks": _metered("python_blocks", 100),
    "cuda_reserved": _metered("cuda_reserved", 16 * _KIB),
    "cuda_driver": _metered("cuda_driver", 16 * _KIB),
    "soft_reserved": _metered("soft_reserved", 16 * _KIB),
    "mapped_bytes": _metered("mapped_bytes", 16 * _KIB),
    "resident_bytes": Watched(32 * _KIB, "memory that the process has in use", "bytes"),
}
_ORDER = {name: position for position, name in enumerate(WATCHED)}


def watched(name: str) -> Watched | None:
    """What is known of a meter by its name in a reading, ``cuda_allocated[0]`` say; None when it is not watched."""
    return WATCHED.get(name.partition("[")[0])


class Shape(StrEnum):
    """What a series looks like, worst first."""

    GROWS = "grows"
    UNSTEADY = "unsteady"
    SETTLED = "settled"
    FLAT = "flat"
    SHORT = "short"


_RANK = {shape: rank for rank, shape in enumerate(Shape)}


@dataclass(frozen=True, slots=True)
class Trend:
    """The judgement on one series: in words, and where it grows by how much in each repetition (`slope`, else 0)."""

    shape: Shape
    slope: float
    text: str


def judge(values: Sequence[int], *, step: int = 0, unit: Literal["bytes", "count"] = "count") -> Trend:
    """What the values after each repetition, in order and of one process, come to.

    It *grows* when Theil and Sen's slope of the counted repetitions (the median of the slopes between any two) is
    above `step`, and the medians of their thirds rise both times, by half of what that slope foretells at least: a
    single step, a spike or a saw-tooth does not do so. Otherwise it is *flat* or *settled* when the latter half stays
    within `step` for each repetition, the highest and lowest tenth of it left aside: settled where that half lies
    higher than the beginning. All else is *unsteady*. Fewer than `LEAST` values are too *short* a series.
    """
    count = len(values)
    if count < LEAST:
        return Trend(Shape.SHORT, 0.0, f"{count} repetitions in one process are too few to tell, {LEAST} are enough")
    lowest, highest = quantity(min(values), unit), quantity(max(values), unit)
    span = f"at {lowest}" if lowest == highest else f"between {lowest} and {highest}"
    allowed = step * (count - WARMUP)
    flat = Trend(Shape.FLAT, 0.0, f"flat over {count} repetitions, {span}")
    if max(values) - min(values) <= allowed:
        return flat
    slope = _slope(values[WARMUP:])
    if slope > step and _rises(values[WARMUP:], slope):
        ends = f"from {quantity(values[0], unit)} to {quantity(values[-1], unit)}"
        return Trend(Shape.GROWS, slope, f"grew over {count} repetitions by {rate(slope, unit)} each, {ends}")
    half = values[WARMUP + (count - WARMUP) // 2 :]
    if _spread(half) > step * len(half):
        return Trend(Shape.UNSTEADY, 0.0, f"unsteady over {count} repetitions, {span}")
    level = median_low(half)
    if level - values[0] <= allowed:
        return flat
    since = next(number for number, value in enumerate(values, start=1) if value >= level - allowed)
    more = quantity(level - values[0], unit)
    return Trend(Shape.SETTLED, 0.0, f"grew by {more} until repetition {since} of {count}, then no more")


def rate(slope: float, unit: Literal["bytes", "count"]) -> str:
    """A slope for people: ``4.1 KiB``, ``504``, ``0.5``."""
    if unit == "bytes" or slope >= 10:
        return quantity(round(slope), unit)
    return f"{slope:.2f}".rstrip("0").rstrip(".")


def _slope(values: Sequence[int]) -> float:
    length = -(-len(values) // _MOST)
    middles = [median_low(values[start : start + length]) for start in range(0, len(values) - length + 1, length)]
    pairs = combinations(enumerate(middles), 2)
    return median((later - earlier) / (j - i) for (i, earlier), (j, later) in pairs) / length


def _rises(values: Sequence[int], slope: float) -> bool:
    third = len(values) // 3
    low, middle, high = (median(values[start : start + third]) for start in (0, third, len(values) - third))
    return min(middle - low, high - middle) >= slope * third / 2


def _spread(values: Sequence[int]) -> int:
    aside = len(values) // 10
    inner = sorted(values)[aside : len(values) - aside]
    return inner[-1] - inner[0]


@dataclass(frozen=True, slots=True)
class Look:
    """What was in use after one attempt: by meter, in the executor of this name."""

    executor: str
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Series:
    """One meter over the repetitions of a case in one executor, and what it comes to."""

    meter: str
    executor: str
    values: tuple[int, ...]
    trend: Trend
    about: Watched

    @property
    def unit(self) -> Literal["bytes", "count"]:
        return self.about.unit

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.meter} ({self.about.words}) {self.trend.text}"


def series(looks: Iterable[Look]) -> list[Series]:
    """All series of a case, from its looks in order: worst shape first, then the longest, then the clearest cause.

    There is one for each executor, whose values say nothing of another's. What does not grow comes in the order of how
    far it moved, measured by its own step. Meters that are not watched are left out.
    """
    values: dict[tuple[str, str], list[int]] = {}
    for look in looks:
        for name, value in look.values.items():
            values.setdefault((look.executor, name), []).append(value)
    found = []
    for (executor, name), each in values.items():
        if (about := watched(name)) is not None:
            trend = judge(each, step=about.step, unit=about.unit)
            found.append(Series(name, executor, tuple(each), trend, about))
    return sorted(found, key=_place)


def _place(each: Series) -> tuple[int, float, int, int, str]:
    rank = _RANK[each.trend.shape]
    moved = (max(each.values) - min(each.values)) / max(each.about.step, 1)
    if each.trend.shape in (Shape.GROWS, Shape.SHORT):
        moved = 0.0
    return rank, -moved, -len(each.values), _ORDER[each.meter.partition("[")[0]], each.meter
