"""Decides whether growth is a leak. Pure: takes plain numbers, returns plain texts.

A suspected case is repeated: growth in every repetition is a leak, growth in the first ones only is lazy
initialisation. If no single case grew enough to be suspected, a sum over the whole life of the process raises the
suspicion, and cases run in rounds in fresh processes. Growth is then a leak only if it continues from round to round.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median_low

from harness.checks.keeping import Keeps
from harness.checks.meters import METERS, add_amounts, format_quantity, inflect_noun, meter_of, noun_of
from harness.checks.trend import MIN_REPETITIONS, WARMUP_REPETITIONS, format_slope, sustained_slope

#: Repetitions that count. Random growth in half of the runs would have to occur four times in a row.
COUNTED_REPETITIONS = 4
#: A meter that sees the same leak less directly may show up to this many bytes more: headers, rounding, records.
_ROUNDING = 16 << 10

_ORDER = {meter.name: position for position, meter in enumerate(METERS)}


@dataclass(frozen=True, slots=True)
class Leak:
    """A meter that grows whenever the case runs, by `amount` (bytes or objects) each time. `text` is one line."""

    meter: str
    amount: int
    text: str


def confirmed_leaks(first: Mapping[str, int], repeated: Sequence[Mapping[str, int]]) -> list[Leak]:
    """Return the leaks of a case. The one that points most clearly at its cause comes first.

    `first`: the growths in the original run, which made the case suspected. `repeated`: all growths of each repetition,
    in one fresh process. Only the repetitions that count decide: a meter that grows each time is a leak even if it was
    not suspected. Growth that comes and goes is none: a cache that is filled and emptied, or a slow thread. A leak that
    another meter sees more directly is left out.
    """
    counted = repeated[WARMUP_REPETITIONS:]
    leaks = []
    for name in {name for growths in counted for name in growths}:
        series = [growths.get(name, 0) for growths in counted]
        smallest, middle, largest = min(series), median_low(series), max(series)
        if smallest <= meter_of(name).confirm:
            continue
        unit = meter_of(name).unit
        text = f"{format_quantity(middle, unit)} more {inflect_noun(noun_of(name), middle)}"
        text += f" after each of {len(series)} repetitions"
        if smallest != largest:
            text += f" ({format_quantity(smallest, unit)} to {format_quantity(largest, unit)})"
        if name in first:
            text += f", {format_quantity(first[name], unit)} more after the original run"
        leaks.append(Leak(name, middle, text))
    return drop_covered_leaks(leaks)


def may_still_leak(repeated: Sequence[Mapping[str, int]]) -> bool:
    """Return whether further repetitions could still show a leak: some meter has grown in each counted one so far."""
    return len(repeated) <= WARMUP_REPETITIONS or bool(confirmed_leaks({}, repeated))


def drop_covered_leaks(leaks: Iterable[Leak]) -> list[Leak]:
    """Return the leaks in the order of the table, without those that another meter sees more directly."""
    by_meter = {leak.meter: leak for leak in sorted(leaks, key=lambda leak: _position(leak.meter))}
    return [leak for leak in by_meter.values() if not _is_covered(leak, by_meter)]


def _position(name: str) -> tuple[int, str]:
    return _ORDER[meter_of(name).name], name


def _is_covered(leak: Leak, leaks: Mapping[str, Leak]) -> bool:
    base, bracket, index = leak.meter.partition("[")
    direct = [name + bracket + index for name in meter_of(base).covered_by]
    covered = sum(leaks[name].amount for name in direct if name in leaks)
    return covered > 0 and leak.amount <= 2 * covered + _ROUNDING


#: For each counted round, for each of its cases, the growth by meter.
CountedRounds = Sequence[Sequence[Mapping[str, int]]]


#: Rounds that do not count, because they make what later rounds reuse, and rounds that do.
WARMUP_ROUNDS = WARMUP_REPETITIONS
COUNTED_ROUNDS = MIN_REPETITIONS - WARMUP_REPETITIONS
#: After this many counted rounds, a suspicion is given up if the growth is within the allowance so far.
_LEAST = 3

#: The most times that cases are worth repeating in one process.
_MOST_RUNS = 100


#: Above this number of cases, the allowance of a batch rises more per case: the cases come from suites that share less.
MANY = 100


def allowed_in_batch(name: str, cases: int) -> int | None:
    """Return how much a meter may grow over a batch of this many cases; None if it raises no suspicion for a batch."""
    meter = meter_of(name)
    rule = meter.batch
    if rule is None:
        return 0 if meter.suspect is not None else None
    if rule.batch is None:
        return None
    return rule.batch[0] + cases * rule.batch[1] + max(0, cases - MANY) * rule.beyond


def allowed_in_repetition(name: str, cases: int) -> int:
    """Return how much a meter may grow whenever this many cases run once more."""
    meter = meter_of(name)
    rule = meter.batch
    return meter.confirm if rule is None else rule.repetition[0] + cases * rule.repetition[1]


class KeptMemory:
    """The memory that cases with the mark `keeps` have kept. It does not count.

    When they free memory, only decreases beyond it count.

    A decrease of other memory must count: if such a case empties a cache, the next case fills the cache again, and does
    not leak.
    """

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}

    def beyond(self, changes: Mapping[str, int], keeps: Keeps) -> dict[str, int]:
        """Return the changes that count of one of these cases.

        Growth counts beyond its limits, a decrease beyond all kept memory.
        """
        counted = keeps.beyond(changes)
        for name, change in changes.items():
            total = self._kept.get(name, 0) + change - max(0, counted.get(name, 0))
            self._kept[name] = max(0, total)
            if change < 0:
                counted.pop(name, None)
            if total < 0:
                counted[name] = total
        return counted


class BatchGrowth:
    """Adds up the growth of a process, case after case, that raised no suspicion when it was measured.

    The growth of a suspected case does not count. The case runs again immediately, and the growth of the second run
    counts instead. If the second run looks like a leak too, neither counts: that leak is judged on its own. This leaves
    out nearly everything that is allocated once, above all in the first case (0.3 MiB of malloc memory with torch), but
    not a leak of the first case.

    A decrease takes back earlier growth, so a sum never falls below 0. The tear-down of a large fixture can hide older
    growth.
    """

    def __init__(self) -> None:
        self.cases = 0
        self._grown: dict[str, int] = {}
        self._by_case: dict[str, dict[str, int]] = {}
        self._last = ""

    @property
    def several(self) -> bool:
        """Whether more than one case has run."""
        return self.cases > 1

    def add_case(self, case: str, changes: Mapping[str, int], suspicions: Mapping[str, int]) -> None:
        """Add the changes of a case that has run."""
        self.cases += 1
        self._last = case
        if not suspicions:
            self.add_to_case(self._last, changes)

    def add_rerun(self, changes: Mapping[str, int], suspicions: Mapping[str, int]) -> None:
        """Add the changes of the second run of the same case. `suspicions`: those of the first run."""
        confirmed = any(changes.get(name, 0) > meter_of(name).confirm for name in suspicions)
        if not confirmed:
            self.add_to_case(self._last, changes)

    def add_to_case(self, case: str, changes: Mapping[str, int], *, counted: bool = False) -> None:
        """Add changes that this case, or a fixture that it set up, has caused. `counted`: the sum has them already."""
        if not counted:
            self._add(changes)
        add_amounts(self._by_case.setdefault(case, {}), changes)

    def by_case(self, meters: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return the growth of each case that grew, in all its runs, by these meters.

        Cases are in the order in which they ran.
        """
        asked = list(meters)
        growth_by_case = {}
        for case, changes in self._by_case.items():
            if grown := {name: changes[name] for name in asked if changes.get(name, 0) > 0}:
                growth_by_case[case] = grown
        return growth_by_case

    def sum_with(self, changes: Mapping[str, int]) -> dict[str, int]:
        """Return the sum by meter so far, with these changes."""
        return self._grown | {name: max(0, self._grown.get(name, 0) + change) for name, change in changes.items()}

    def total(
        self, collected: Mapping[str, int], torn_down: Mapping[str, int], *, readable: Container[str]
    ) -> dict[str, int]:
        """Return the sum by meter; empty for a single case.

        `readable`: the meters of the last reading. Meters of the process that cannot be read once a device is in use
        are missing there, and are left out. `collected`: the changes by the garbage collection. `torn_down`: the
        changes by the subsequent tear-down of shared fixtures. A decrease there belongs to the set-up of some case and
        is ignored. Growth there has not been counted yet.
        """
        if not self.several:
            return {}
        self._add(collected)
        self._add({name: change for name, change in torn_down.items() if change > 0})
        return {name: amount for name, amount in self._grown.items() if amount and name in readable}

    def _add(self, changes: Mapping[str, int]) -> None:
        self._grown = self.sum_with(changes)


def suspicious_batch_growth(grown: Mapping[str, int], cases: int) -> dict[str, int]:
    """Return the growth of a batch of this many cases that is a reason to run them again."""
    suspicious = {}
    for name, amount in grown.items():
        allowed = allowed_in_batch(name, cases)
        if allowed is not None and amount > allowed:
            suspicious[name] = amount
    return suspicious


def rank_by_growth(by_case: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the cases that grew, first the case whose growth most exceeds the allowance of a single case."""

    def rank(case: str) -> float:
        return -max(amount / (_slack(name) + 1) for name, amount in by_case[case].items())

    return sorted(by_case, key=rank)


def is_explained(
    suspected: Mapping[str, int], by_case: Mapping[str, Mapping[str, int]], acquitted: Container[str], cases: int
) -> bool:
    """Return whether a batch of this many cases is no longer suspicious without the growth of the `acquitted` cases."""
    rest = dict(suspected)
    for case, grown in by_case.items():
        if case in acquitted:
            add_amounts(rest, grown, -1)
    return not suspicious_batch_growth(rest, cases)


def runs_to_suspect(leak: Leak, cases: int) -> int:
    """Return how often this many cases must run in one process until half of their common leak would be suspected.

    Return 1 if no number of runs is enough.
    """
    growths = (
        suspicious_batch_growth({leak.meter: times * leak.amount // 2}, times * cases) for times in range(1, _MOST_RUNS)
    )
    return next((times for times, grown in enumerate(growths, start=1) if grown), 1)


def leaks_together(rounds: CountedRounds, among: Sequence[int]) -> list[Leak]:
    """Return what the cases at these positions leak together, round after round.

    Empty with fewer than `COUNTED_ROUNDS` rounds.
    """
    return _leaks(_sums(rounds, among), lambda name: allowed_in_repetition(name, len(among)))


def leaks_of_case(rounds: CountedRounds, position: int, among: Sequence[int]) -> list[Leak]:
    """Return what the case at `position` leaks, round after round.

    Growth that the cases in `among` free again does not count. `among`: the positions of all cases that ran, including
    this one. Empty with fewer than `COUNTED_ROUNDS` rounds.
    """
    leaks = _leaks([growths[position] for growths in rounds], _slack)
    if not leaks or len(among) == 1:
        return leaks
    stays = {leak.meter for leak in _leaks(_sums(rounds, among), _slack)}
    return [leak for leak in leaks if leak.meter in stays]


def may_leak_together(rounds: CountedRounds, among: Sequence[int]) -> bool:
    """Return whether further rounds could still show that these cases leak together."""
    return _may_leak(_sums(rounds, among), lambda name: allowed_in_repetition(name, len(among)))


def may_case_leak(rounds: CountedRounds, position: int) -> bool:
    """Return whether further rounds could still show that the case at `position` leaks."""
    return _may_leak([growths[position] for growths in rounds], _slack)


def leak_excess(leak: Leak) -> float:
    """Return the leak as a multiple of the allowance of one case."""
    return leak.amount / (_slack(leak.meter) + 1)


def _slack(name: str) -> int:
    return allowed_in_repetition(name, 1)


def _sums(rounds: CountedRounds, among: Sequence[int]) -> list[dict[str, int]]:
    return [_sum([growths[position] for position in among]) for growths in rounds]


def _sum(changes: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for growths in changes:
        add_amounts(total, growths)
    return total


def _leaks(series: Sequence[Mapping[str, int]], allowed: Callable[[str], int]) -> list[Leak]:
    """Return the leaks: meters whose growth continues over the rounds of `series`."""
    if len(series) < COUNTED_ROUNDS:
        return []
    leaks = []
    for name in {name for growths in series for name in growths}:
        levels = list(accumulate((growths.get(name, 0) for growths in series), initial=0))
        if (slope := sustained_slope(levels, allowed(name))) is None:
            continue
        unit, amount = meter_of(name).unit, max(1, round(slope.estimate))
        gain = f"{format_slope(slope.estimate, unit)} more {inflect_noun(noun_of(name), amount)}"
        low, high = format_slope(slope.low, unit), format_slope(slope.high, unit)
        between = "" if low == high else f" ({low} to {high})"
        leaks.append(Leak(name, amount, f"{gain} per round over {len(series)} rounds{between}"))
    return drop_covered_leaks(leaks)


def _may_leak(series: Sequence[Mapping[str, int]], allowed: Callable[[str], int]) -> bool:
    if len(series) < _LEAST:
        return True
    return any(amount > allowed(name) * len(series) for name, amount in _sum(series).items())
