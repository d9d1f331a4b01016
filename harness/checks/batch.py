"""What a process has grown by over all its cases, where no single one grew enough to be looked into. Pure.

First a sum over the whole life of the process, which raises a suspicion; then, of rounds of the same cases in a fresh
one, whether they leak together, and which of them does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.checks import growth
from harness.checks.growth import Leak
from harness.checks.meters.table import meter_of

_KIB, _MIB = 1 << 10, 1 << 20

#: For each counted round, for each of its cases, what grew with it by meter.
Counted = Sequence[Sequence[Mapping[str, int]]]


#: Times that it may be worth while to run cases again in one process.
_MOST_RUNS = 100


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much of a meter may grow without a suspicion over a batch, and without guilt in a repetition of it.

    Each is an amount, in bytes or things, and another for each case. `batch` None: it raises no suspicion by itself.
    `beyond`: what a batch may grow by for each case beyond `MANY` as well.
    """

    batch: tuple[int, int] | None
    repetition: tuple[int, int]
    why: str
    beyond: int = 0


#: Cases of a batch beyond which what each may leave is counted more generously: so many take minutes to run again, and
#: are of suites that share less.
MANY = 400

#: For every other meter the batch is allowed nothing, and a repetition what confirms a leak of a single case.
ALLOWANCES: Mapping[str, Allowance] = {
    "heap_bytes": Allowance(
        (64 * _KIB, 3 * _KIB // 2),
        (64 * _KIB, _KIB // 4),
        "in 400 cases with torch on the CPU a case leaves 0.6 KiB when it runs for the first time, and two dozen at "
        "most 82, nine at most 66; in 1,400, many with optimisers, 2.2; run again and again 0.03 to 0.1 each, and "
        "torch.compile anew 55",
        beyond=3 * _KIB // 2,
    ),
    "mapped_bytes": Allowance(
        (2 * _MIB, 16 * _KIB),
        (0, 4 * _KIB),
        "Python takes arenas of 1 MiB as it needs them; the same cases again need one in some rounds, not in each; 790 "
        "to 830 cases in any order, a third of them compiled or of optimisers, leave 21 to 26 KiB each",
        beyond=24 * _KIB,
    ),
    "cuda_driver": Allowance(
        (64 * _MIB, _MIB),
        (_MIB, 0),
        "kernels are loaded when first used, some MiB at a time, and never again; the driver gives memory in steps of "
        "2 MiB (chosen by what is known of drivers: not measured)",
    ),
    "python_blocks": Allowance(None, (2_000, 16), "pytest keeps less than one of a case that runs again"),
}


def allowed_in_batch(name: str, cases: int) -> int | None:
    """What a meter may grow by over a batch of so many cases; None for one that raises no suspicion there."""
    meter = meter_of(name)
    allowance = ALLOWANCES.get(meter.name)
    if allowance is None:
        return 0 if meter.suspect is not None else None
    if allowance.batch is None:
        return None
    return allowance.batch[0] + cases * allowance.batch[1] + max(0, cases - MANY) * allowance.beyond


def allowed_in_repetition(name: str, cases: int) -> int:
    """What a meter may grow by whenever so many cases run once more."""
    meter = meter_of(name)
    allowance = ALLOWANCES.get(meter.name)
    return meter.confirm if allowance is None else allowance.repetition[0] + cases * allowance.repetition[1]


class Tally:
    """Adds up what a process has grown by, case after case, that was not looked into at the time.

    What looked like a leak of one case does not count: that case is run again at once, and what it grows by then stands
    for it, unless this looks like a leak too, which is then judged by itself. So nearly all that is made once is left
    out, what the first case makes above all (0.3 MiB of malloc's with torch), and a leak of the first case is not.
    What falls is what has risen before, so that a sum never falls below nothing; large fixtures that go hide what is
    older.
    """

    def __init__(self) -> None:
        self._cases = 0
        self._grown: dict[str, int] = {}

    @property
    def several(self) -> bool:
        """Whether more than one case has run."""
        return self._cases > 1

    def case(self, changes: Mapping[str, int], suspicions: Mapping[str, int]) -> None:
        """Enter what changed with a case that has run."""
        self._cases += 1
        if not suspicions:
            self._add(changes)

    def again(self, changes: Mapping[str, int], suspicions: Mapping[str, int]) -> None:
        """Enter what changed when the same case ran a second time; `suspicions` are those of the first."""
        upheld = any(changes.get(name, 0) > meter_of(name).confirm for name in suspicions)
        if not upheld:
            self._add(changes)

    def end(self, collected: Mapping[str, int], torn_down: Mapping[str, int]) -> dict[str, int]:
        """By meter, the sum, once garbage was collected and then what cases shared was torn down. Nothing of one case.

        What the tear-down gives back was set up by some case; what it leaves more is nobody's yet.
        """
        if not self.several:
            return {}
        self._add(collected)
        self._add({name: change for name, change in torn_down.items() if change > 0})
        return {name: amount for name, amount in self._grown.items() if amount}

    def _add(self, changes: Mapping[str, int]) -> None:
        for name, change in changes.items():
            self._grown[name] = max(0, self._grown.get(name, 0) + change)


def suspicions(grown: Mapping[str, int], cases: int) -> dict[str, int]:
    """What of the growth of a batch of so many cases is worth running them again for."""
    found = {}
    for name, amount in grown.items():
        allowed = allowed_in_batch(name, cases)
        if allowed is not None and amount > allowed:
            found[name] = amount
    return found


def runs_to_suspect(leak: Leak, cases: int) -> int:
    """How often so many cases that leak together must run in one process until half of that would be suspected.

    Once, where no number of runs is enough.
    """
    growths = (suspicions({leak.meter: times * leak.amount // 2}, times * cases) for times in range(1, _MOST_RUNS))
    return next((times for times, found in enumerate(growths, start=1) if found), 1)


def leaks_together(rounds: Counted, among: Sequence[int]) -> list[Leak]:
    """What grows in each round with the cases at these positions together. Raises GrowthError without a round."""
    sums = [_sum([each[position] for position in among]) for each in rounds]
    return growth.verdict({}, sums, warmup=0, allowed=lambda name: allowed_in_repetition(name, len(among)))


def leaks_of(rounds: Counted, position: int, among: Sequence[int]) -> list[Leak]:
    """What grows in each round with the case at `position`, and is not given back by the others `among` which it is.

    Raises GrowthError without a round.
    """
    series = [each[position] for each in rounds]
    sums = [_sum([each[other] for other in among]) for each in rounds]
    found = growth.verdict({}, series, warmup=0, allowed=_slack)
    return [leak for leak in found if all(each.get(leak.meter, 0) > _slack(leak.meter) for each in sums)]


def excess(leak: Leak) -> float:
    """How many times as much leaks as a case is allowed."""
    return leak.amount / (_slack(leak.meter) + 1)


def _slack(name: str) -> int:
    return allowed_in_repetition(name, 1)


def _sum(changes: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in changes:
        for name, change in each.items():
            total[name] = total.get(name, 0) + change
    return total
