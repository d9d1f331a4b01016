"""Decides from repetitions whether a suspicion is a leak. Pure: takes plain numbers, returns plain texts.

Growth in every repetition is a leak. Growth in the first ones only is lazy initialisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low

from harness.checks.meters import METERS, Unit, format_quantity, inflect_noun, meter_of, noun_of
from harness.core.errors import HarnessError

#: Repetitions that do not count. Some things are made in the second or third call: torch.jit profiles its first runs,
#: torch.compile compiles again for a second shape, and free lists and dictionaries reach their size.
WARMUP_REPETITIONS = 3
#: Repetitions that count. Random growth in half of the runs would have to occur four times in a row.
COUNTED_REPETITIONS = 4
#: A meter that sees the same leak less directly may show up to this many bytes more: headers, rounding, records.
_ROUNDING = 16 << 10

_ORDER = {meter.name: position for position, meter in enumerate(METERS)}


#: Returns, for the name of a meter, the growth that it must exceed.
GrowthLimit = Callable[[str], int]


def confirm_limit(name: str) -> int:
    """Return the growth that one case must exceed in every repetition."""
    return meter_of(name).confirm


class GrowthError(HarnessError):
    """The repetitions cannot be judged."""


class GrowthShape(StrEnum):
    """The shape of a series of growths. Only `LEAK` changes the verdict of a case."""

    NONE = "none"
    LAZY = "lazy"
    UNSTEADY = "unsteady"
    LEAK = "leak"


@dataclass(frozen=True, slots=True)
class GrowthVerdict:
    """The judgement on one meter, as a text. `amount`: what a leak adds in each counted run; 0 if there is no leak."""

    shape: GrowthShape
    amount: int
    text: str


def classify_growth(
    series: Sequence[int],
    *,
    warmup: int,
    threshold: int = 0,
    unit: Unit = "count",
    noun: str = "object{s}",
) -> GrowthVerdict:
    """Judge the growths of one meter: one number for each repetition, in order.

    The first `warmup` repetitions do not count. Only a number above `threshold` is a growth.

    - Growth in every counted repetition is a leak.
    - Growth in the first repetitions only is lazy initialisation.
    - Growth that comes and goes is unsteady: a cache that is filled and emptied, a slow thread, or a rare leak that
      needs more repetitions to show.

    `noun` is what the text calls the growth. Raise GrowthError when no repetition is left to count.
    """
    counted = series[warmup:]
    if not counted:
        raise GrowthError(
            f"{len(series)} repetitions are too few: the first {warmup} do not count, run at least {warmup + 1}"
        )
    grew = [growth > threshold for growth in series]
    times = sum(grew)
    if all(grew[warmup:]):
        smallest, middle, largest = min(counted), median_low(counted), max(counted)
        more = f"{format_quantity(middle, unit)} more {inflect_noun(noun, middle)}"
        text = f"{more} after each of {len(counted)} repetitions"
        if smallest != largest:
            text += f" ({format_quantity(smallest, unit)} to {format_quantity(largest, unit)})"
        return GrowthVerdict(GrowthShape.LEAK, middle, text)
    if not times:
        return GrowthVerdict(GrowthShape.NONE, 0, "no growth")
    if all(grew[:times]):
        return GrowthVerdict(
            GrowthShape.LAZY,
            0,
            f"grew by {format_quantity(sum(series[:times]), unit)} in the first {times} repetitions, then stopped",
        )
    return GrowthVerdict(
        GrowthShape.UNSTEADY, 0, f"grew in {times} of {len(series)} repetitions, but not in all that count"
    )


@dataclass(frozen=True, slots=True)
class Leak:
    """A meter that grows whenever the case runs, by `amount` (bytes or objects) each time. `text` is one line."""

    meter: str
    amount: int
    text: str


def classify_meters(
    repeated: Sequence[Mapping[str, int]], *, warmup: int = WARMUP_REPETITIONS, allowed: GrowthLimit = confirm_limit
) -> dict[str, GrowthVerdict]:
    """Return the judgement on every meter that changed in a repetition, in the order of the table.

    `repeated`: the result of `growths` for each repetition. Raise GrowthError, as `classify_growth` does.
    """
    names = sorted({name for growths in repeated for name in growths}, key=_position)
    verdicts = {}
    for name in names:
        series = [growths.get(name, 0) for growths in repeated]
        unit, noun = meter_of(name).unit, noun_of(name)
        verdicts[name] = classify_growth(series, warmup=warmup, threshold=allowed(name), unit=unit, noun=noun)
    return verdicts


def confirmed_leaks(
    first: Mapping[str, int],
    repeated: Sequence[Mapping[str, int]],
    *,
    warmup: int = WARMUP_REPETITIONS,
    allowed: GrowthLimit = confirm_limit,
) -> list[Leak]:
    """Return the leaks of a case. The one that points most clearly at its cause comes first.

    `first`: the growths in the original run, which made the case suspected. `repeated`: all growths of each repetition,
    in one fresh process. Only the repetitions decide: a meter that grows each time is a leak even if it was not
    suspected, and a suspected meter that does not grow each time is no leak. A leak that another meter sees more
    directly is left out. Raise GrowthError.
    """
    return drop_covered_leaks(
        Leak(name, growth.amount, f"{growth.text}{_in_original_run(first, name)}")
        for name, growth in classify_meters(repeated, warmup=warmup, allowed=allowed).items()
        if growth.shape is GrowthShape.LEAK
    )


def may_still_leak(
    repeated: Sequence[Mapping[str, int]], *, warmup: int = WARMUP_REPETITIONS, allowed: GrowthLimit = confirm_limit
) -> bool:
    """Return whether further repetitions could still show a leak: some meter has grown in each counted one so far."""
    counted = repeated[warmup:]
    return not counted or any(all(growths.get(name, 0) > allowed(name) for growths in counted) for name in counted[0])


def drop_covered_leaks(leaks: Iterable[Leak]) -> list[Leak]:
    """Return the leaks in the order of the table, without those that another meter sees more directly."""
    by_meter = {leak.meter: leak for leak in sorted(leaks, key=lambda leak: _position(leak.meter))}
    return [leak for leak in by_meter.values() if not _is_covered(leak, by_meter)]


def _in_original_run(first: Mapping[str, int], name: str) -> str:
    return f", {format_quantity(first[name], meter_of(name).unit)} more after the original run" if name in first else ""


def _position(name: str) -> tuple[int, str]:
    return _ORDER[meter_of(name).name], name


def _is_covered(leak: Leak, leaks: Mapping[str, Leak]) -> bool:
    base, bracket, index = leak.meter.partition("[")
    direct = [name + bracket + index for name in meter_of(base).covered_by]
    covered = sum(leaks[name].amount for name in direct if name in leaks)
    return covered > 0 and leak.amount <= 2 * covered + _ROUNDING
