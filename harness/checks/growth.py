"""What repetitions say about a suspicion: growth every time is a leak, growth at first only is lazy initialisation.

Pure: plain numbers in, plain words out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low
from typing import Literal

from harness.checks.meters.table import METERS, meter_of, quantity
from harness.errors import HarnessError

#: Repetitions that do not count. Some things are made on the second or third call: torch.jit profiles its first runs,
#: torch.compile compiles anew for a second shape, free lists and dictionaries find their size.
WARMUP = 3
#: Repetitions that count. What comes and goes by chance, as often as not, would have to come four times in a row.
COUNTED = 4
#: Bytes that a leak seen from further away may be larger by and still be the same one: headers, rounding, records.
_ROUNDING = 16 << 10

_ORDER = {meter.name: position for position, meter in enumerate(METERS)}


#: By a meter's name, what must be exceeded.
Allowed = Callable[[str], int]


def confirming(name: str) -> int:
    """What one case must exceed in every repetition."""
    return meter_of(name).confirm


class GrowthError(HarnessError):
    """The repetitions cannot be judged."""


class Shape(StrEnum):
    """What a series of growths looks like. Only `LEAK` is held against a case."""

    NONE = "none"
    LAZY = "lazy"
    UNSTEADY = "unsteady"
    LEAK = "leak"


@dataclass(frozen=True, slots=True)
class Growth:
    """The judgement on one meter: in words, and for a leak what each counted run adds (`amount`, 0 otherwise)."""

    shape: Shape
    amount: int
    text: str


def judge(
    series: Sequence[int], *, warmup: int, threshold: int = 0, unit: Literal["bytes", "count"] = "count"
) -> Growth:
    """What one meter's growths, a number for each repetition in order, come to.

    The first `warmup` ones are not counted. A growth is one above `threshold`. Growth in every counted repetition is a
    leak. Growth in the first ones of the series, and then no more, is lazy initialisation. Growth that comes and goes
    is unsteady: a cache that is filled and emptied, a thread that takes its time, or a rare leak that more repetitions
    would have to show. Raises GrowthError when none is left to count.
    """
    counted = series[warmup:]
    if not counted:
        raise GrowthError(f"{len(series)} repetitions leave none to count after {warmup} to warm up: make more")
    grew = [growth > threshold for growth in series]
    times = sum(grew)
    if all(grew[warmup:]):
        smallest, middle, largest = min(counted), median_low(counted), max(counted)
        much = quantity(middle, unit)
        if smallest != largest:
            much += f" ({quantity(smallest, unit)} to {quantity(largest, unit)})"
        return Growth(Shape.LEAK, middle, f"{much} more after each of {len(counted)} repetitions")
    if not times:
        return Growth(Shape.NONE, 0, "no growth")
    if all(grew[:times]):
        return Growth(Shape.LAZY, 0, f"grew by {quantity(sum(series[:times]), unit)} at first and then no more")
    return Growth(Shape.UNSTEADY, 0, f"grew in {times} of {len(series)} repetitions, not in all that count")


@dataclass(frozen=True, slots=True)
class Leak:
    """A meter that grows whenever the case runs: by `amount` (bytes or things) each time. `text` is one line."""

    meter: str
    amount: int
    text: str


def judgements(
    repeated: Sequence[Mapping[str, int]], *, warmup: int = WARMUP, allowed: Allowed = confirming
) -> dict[str, Growth]:
    """The judgement on every meter that changed in any of the repetitions, in the order of the table.

    `repeated` has for each repetition what `meters.growths` found. Raises GrowthError, as `judge` does.
    """
    names = sorted({name for growths in repeated for name in growths}, key=_position)
    found = {}
    for name in names:
        meter = meter_of(name)
        series = [growths.get(name, 0) for growths in repeated]
        found[name] = judge(series, warmup=warmup, threshold=allowed(name), unit=meter.unit)
    return found


def verdict(
    first: Mapping[str, int],
    repeated: Sequence[Mapping[str, int]],
    *,
    warmup: int = WARMUP,
    allowed: Allowed = confirming,
) -> list[Leak]:
    """The leaks of a case, what points most clearly at its cause first.

    `first`: the growths that made it suspected. `repeated`: all growths, for each repetition in one fresh process.
    Both decide nothing alone: what never was suspected and grows each time is a leak as well, what was suspected and
    does not is none. A leak that only repeats another, seen from further away, is left out. Raises GrowthError.
    """
    leaks = {
        name: Leak(name, growth.amount, f"{meter_of(name).counts}: {growth.text}{_at_first(first, name)}")
        for name, growth in judgements(repeated, warmup=warmup, allowed=allowed).items()
        if growth.shape is Shape.LEAK
    }
    return [leak for leak in leaks.values() if not _repeats(leak, leaks)]


def _at_first(first: Mapping[str, int], name: str) -> str:
    return f", {quantity(first[name], meter_of(name).unit)} when first seen" if name in first else ""


def _position(name: str) -> tuple[int, str]:
    return _ORDER[meter_of(name).name], name


def _repeats(leak: Leak, leaks: Mapping[str, Leak]) -> bool:
    base, bracket, index = leak.meter.partition("[")
    nearer = [name + bracket + index for name in meter_of(base).covered_by]
    known = sum(leaks[name].amount for name in nearer if name in leaks)
    return known > 0 and leak.amount <= 2 * known + _ROUNDING
