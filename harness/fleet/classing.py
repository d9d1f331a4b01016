"""Classify failures by what the red results of one case have in common, with the certainty of the class.

Pure functions.

An observation is the verdict of one run on the case. `ResultPlace` is the place of an observation. An explanation is a
value that a place can have, such as a driver. It is complete if all observations with it are red and no others are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from harness.fleet.statistics import hypergeometric


class Factor(StrEnum):
    """A property of a place that can explain a failure. The narrowest comes first, because it claims the least.

    The later factors distinguish runs on the same machine: a change by a person, or the time of a change.
    """

    UUID = "uuid"
    HOST = "host"
    DEVICE = "device"
    DRIVER = "driver"
    TORCH = "torch"
    OPTION = "option"
    COMMIT = "commit"
    SETTING = "setting"
    SINCE = "since"
    UNTIL = "until"


class CauseClass(StrEnum):
    """The class of a failure, in the order of reports."""

    EVERYWHERE = "everywhere"
    ONE_TORCH = "one_torch"
    ONE_DRIVER = "one_driver"
    ONE_DEVICE = "one_device"
    ONE_HOST = "one_host"
    ONE_UUID = "one_uuid"
    ONE_OPTION = "one_option"
    ONE_COMMIT = "one_commit"
    ONE_SETTING = "one_setting"
    SINCE = "since"
    UNTIL = "until"
    MIXED = "mixed"
    FLAKE = "flake"


_KINDS = {
    factor: CauseClass(factor.value if factor.value in ("since", "until") else f"one_{factor.value}")
    for factor in Factor
}
#: The differences between runs on one machine.
CONDITIONS = (Factor.OPTION, Factor.COMMIT, Factor.SETTING)
TIMES = (Factor.SINCE, Factor.UNTIL)
_MACHINE = tuple(factor for factor in Factor if factor not in (*CONDITIONS, *TIMES))


class Sure(StrEnum):
    """How sure a class is. See `sureness`."""

    STRONG = "strong"
    WEAK = "weak"
    ONE = "one observation"


#: A class is strong if the probability of such results by chance, corrected for the number of red cases, is below this.
SIGNIFICANCE = 0.01
#: Maximum number of values of one factor in a mixed class.
MOST_VALUES = 3
#: Maximum number of combinations of two factors.
MOST_PAIRS = 3
#: Maximum number of further conditions: a run that differs in one fact often differs in many.
MOST_CONDITIONS = 4


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """The place of an observation.

    `devices`, `uuids`: the kinds and the UUIDs of the devices. `conditions`: the values of facts in which the runs
    differ. `rank`: the place of the run in the order of begins. `run`: the name of the run with its begin.
    """

    host: str
    devices: tuple[str, ...] = ()
    driver: str = ""
    torch: str = ""
    uuids: tuple[str, ...] = ()
    conditions: frozenset[tuple[Factor, str]] = frozenset()
    rank: int = 0
    run: str = ""

    def values(self, factor: Factor) -> tuple[str, ...]:
        """Return the place's values of a factor. There are several only if a case ran on several devices."""
        if factor is Factor.UUID:
            return self.uuids
        if factor is Factor.DEVICE:
            return self.devices
        if factor in CONDITIONS:
            return tuple(sorted(value for of, value in self.conditions if of is factor))
        if factor in TIMES:
            return ()
        value = self.host if factor is Factor.HOST else self.driver if factor is Factor.DRIVER else self.torch
        return (value,) if value else ()

    @property
    def machine(self) -> tuple[object, ...]:
        """The place without UUIDs and without facts of the run."""
        return (self.host, self.devices, self.driver, self.torch)

    @property
    def spot(self) -> tuple[object, ...]:
        """The same devices, without facts of the run."""
        return (*self.machine, self.uuids)


@dataclass(frozen=True, slots=True)
class Tally:
    """The observations of one place."""

    red: int = 0
    flaky: int = 0
    green: int = 0

    @property
    def bad(self) -> int:
        return self.red + self.flaky

    @property
    def all(self) -> int:
        return self.red + self.flaky + self.green

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.red + other.red, self.flaky + other.flaky, self.green + other.green)


@dataclass(frozen=True, slots=True)
class Cause:
    """A value that the places of the red results have in common."""

    # For a time, `rank` is the rank of its run. The JSON of a matrix has the other fields.
    __pydantic_config__ = ConfigDict(extra="forbid")

    factor: Factor
    value: str
    rank: SkipJsonSchema[Annotated[int, Field(exclude=True)]] = 0

    def holds(self, place: ResultPlace) -> bool:
        if self.factor is Factor.SINCE:
            return place.rank >= self.rank
        if self.factor is Factor.UNTIL:
            return place.rank <= self.rank
        if self.factor in CONDITIONS:
            return (self.factor, self.value) in place.conditions
        return self.value in place.values(self.factor)


#: One cause, or two causes that act only together.
Explanation = tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class Classing:
    """The class of a failure.

    - `causes`: the causes that the class names. Empty for ``everywhere`` and ``flake``. For ``mixed``: two causes that
      act only together, or several values of one factor (`together` distinguishes these), or nothing if nothing
      explains the results.
    - `also`: further explanations that fit equally well, so that these observations cannot distinguish them.
    - `maybe_flake`: a flake fits as well, because the case was bad only once.
    - `always`: whether each observation with the causes is red.
    - `chance`: the probability of these bad results by chance, see `sureness`. 1 if unknown.
    - `total`: all observations; `inside`: those with the causes. `machines`: the number of machines with a bad one.
    """

    kind: CauseClass
    sure: Sure
    chance: float
    total: Tally
    machines: int
    inside: Tally = Tally()
    causes: Explanation = ()
    together: bool = False
    also: tuple[Explanation, ...] = ()
    maybe_flake: bool = False
    always: bool = True


def classify(tallies: Mapping[ResultPlace, Tally], tries: int = 1) -> Classing | None:
    """Return the class of a case; None if it is never red or flaky. `tries`: the number of classified cases."""
    seen = _Seen(tallies, max(1, tries))
    if not seen.bad:
        return None
    covering = seen.covering()
    if seen.total.red == seen.total.all:
        # A case that fails every second time is red in all of these runs with this probability.
        also = tuple((cause,) for cause in covering)
        return seen.classing(CauseClass.EVERYWHERE, inside=seen.total, chance=0.5**seen.total.red, also=also)
    complete = [cause for cause in covering if seen.is_complete((cause,))]
    if seen.is_single_on_mixed_machine():
        return _flake(seen, complete)
    if complete:
        first, *others = complete
        return _one(seen, first, _few(others))
    pairs = [pair for pair in combinations(covering, 2) if _is_pair(*pair) and seen.is_complete(pair)]
    if pairs:
        first_pair, *others_of_two = pairs[:MOST_PAIRS]
        single = seen.total.bad == 1
        return seen.classing(CauseClass.MIXED, first_pair, together=True, also=tuple(others_of_two), maybe_flake=single)
    significant = [cause for cause in covering if seen.chance((cause,)) * seen.tries <= SIGNIFICANCE]
    if significant:
        best = min(significant, key=lambda cause: seen.chance((cause,)))
        same = [other for other in significant if other != best and seen.alike(best, other)]
        return _one(seen, best, tuple((other,) for other in same), always=False)
    # On a machine with good results, one bad result on each of some devices is more likely a flake than several bad
    # devices.
    values = () if seen.mixed_places else seen.values_that_explain(2 if seen.mixed_machines else 1)
    if seen.mixed_machines and not values:
        return _flake(seen)
    single = seen.total.bad == 1
    return seen.classing(CauseClass.MIXED, values, inside=Tally(), chance=1.0, maybe_flake=single)


def _one(seen: _Seen, cause: Cause, also: tuple[Explanation, ...], *, always: bool = True) -> Classing:
    """Return the class of a case with a single cause."""
    by_chance = cause.factor in TIMES and seen.chance((cause,)) * seen.tries > SIGNIFICANCE
    maybe_flake = seen.total.bad == 1 or by_chance
    return seen.classing(_KINDS[cause.factor], (cause,), also=also, maybe_flake=maybe_flake, always=always)


def _flake(seen: _Seen, complete: Sequence[Cause] = ()) -> Classing:
    """Return the class of a flake: good and bad on the same devices. It is strong if this was observed repeatedly."""
    also = _few(complete)
    inside = seen.inside(also[0]) if also else Tally()
    sure = Sure.ONE if seen.total.bad == 1 else Sure.STRONG if seen.mixed_places else Sure.WEAK
    flake = seen.classing(CauseClass.FLAKE, inside=inside, chance=1.0, also=also, always=False)
    return replace(flake, sure=sure)


def _is_pair(first: Cause, second: Cause) -> bool:
    """Return whether two causes may act together. Pairs of two conditions, or with a time, fit by chance too often."""
    return first.factor in _MACHINE and second.factor in (*_MACHINE, *CONDITIONS) and first.factor is not second.factor


def _few(causes: Sequence[Cause]) -> tuple[Explanation, ...]:
    """Return explanations of one cause each, with only the first conditions."""
    conditions = [cause for cause in causes if cause.factor in CONDITIONS][:MOST_CONDITIONS]
    return tuple((cause,) for cause in causes if cause.factor not in CONDITIONS or cause in conditions)


class _Seen:
    """All observations of one case."""

    def __init__(self, tallies: Mapping[ResultPlace, Tally], tries: int) -> None:
        self.tallies = {place: tally for place, tally in tallies.items() if tally.all}
        self.bad = {place: tally for place, tally in self.tallies.items() if tally.bad}
        self.total = sum(self.tallies.values(), Tally())
        self.tries = tries
        self.machines: dict[object, Tally] = {}
        self.spots: dict[object, Tally] = {}
        for place, tally in self.tallies.items():
            for sums, key in ((self.machines, place.machine), (self.spots, place.spot)):
                before = sums.get(key)
                sums[key] = tally if before is None else before + tally

    @property
    def mixed_machines(self) -> int:
        """The number of machines with both good and bad results."""
        return sum(_is_mixed(tally) for tally in self.machines.values())

    @property
    def mixed_places(self) -> int:
        """The number of places (sets of devices) with both good and bad results."""
        return sum(_is_mixed(tally) for tally in self.spots.values())

    def is_single_on_mixed_machine(self) -> bool:
        """Return whether the case was bad once, and good in another run on the same machine."""
        return self.total.bad == 1 and self.mixed_machines > 0

    def covering(self) -> list[Cause]:
        """Return every cause that all bad places have, the narrowest first.

        A difference between runs of one machine is a cause only if one machine has good and bad results. Otherwise the
        differences between the machines are reported.
        """
        causes: list[Cause] = []
        factors = (*_MACHINE, *CONDITIONS) if self.mixed_machines else _MACHINE
        for factor in factors:
            first, *others = (place.values(factor) for place in self.bad)
            causes += [Cause(factor, value) for value in first if all(value in other for other in others)]
        if self.mixed_machines:
            first_bad = min(self.bad, key=lambda place: (place.rank, place.run))
            last_bad = max(self.bad, key=lambda place: (place.rank, place.run))
            causes += [
                Cause(Factor.SINCE, first_bad.run, first_bad.rank),
                Cause(Factor.UNTIL, last_bad.run, last_bad.rank),
            ]
        return causes

    def is_complete(self, causes: Explanation) -> bool:
        """Return whether exactly the observations with all these causes are red."""
        return all(
            tally.red == tally.all if all(cause.holds(place) for cause in causes) else not tally.bad
            for place, tally in self.tallies.items()
        )

    def alike(self, first: Cause, second: Cause) -> bool:
        """Return whether both explanations hold in the same places."""
        return all(first.holds(place) is second.holds(place) for place in self.tallies)

    def chance(self, causes: Explanation) -> float:
        """Return the probability that all bad results fall on places with these causes, given the place of the first.

        The units are machines for causes that several machines can have, otherwise observations: a machine that is red
        in ten runs is no more evidence about its driver than a machine that is red in one run.
        """
        wide = all(cause.factor in (Factor.DEVICE, Factor.DRIVER, Factor.TORCH) for cause in causes)
        inside = [place for place in self.tallies if all(cause.holds(place) for cause in causes)]
        if wide:
            machines = {place.machine for place in inside}
            bad = sum(self.machines[machine].bad > 0 for machine in machines)
            return hypergeometric(len(self.machines), len(machines), bad)
        return hypergeometric(
            self.total.all,
            sum(self.tallies[place].all for place in inside),
            sum(self.tallies[place].bad for place in inside),
        )

    def inside(self, causes: Explanation) -> Tally:
        """Return the observations with all these causes."""
        return sum((tally for place, tally in self.tallies.items() if all(c.holds(place) for c in causes)), Tally())

    def classing(
        self,
        kind: CauseClass,
        causes: Explanation = (),
        *,
        inside: Tally | None = None,
        chance: float | None = None,
        also: tuple[Explanation, ...] = (),
        together: bool = False,
        maybe_flake: bool = False,
        always: bool = True,
    ) -> Classing:
        """Return the class of the case. `inside` and `chance` follow from the causes, if there are any."""
        chance = self.chance(causes) if chance is None else chance
        return Classing(
            kind=kind,
            sure=sureness(self.total.bad, chance, self.tries),
            chance=chance,
            total=self.total,
            machines=sum(tally.bad > 0 for tally in self.machines.values()),
            inside=self.inside(causes) if inside is None else inside,
            causes=causes,
            together=together,
            also=also,
            maybe_flake=maybe_flake,
            always=always,
        )

    def values_that_explain(self, least: int) -> Explanation:
        """Return a few values of one factor that only red observations have, or nothing.

        Each value is in at least `least` observations. Of several such factors, return the widest.
        """
        for factor in reversed(_MACHINE):
            red: Counter[str] = Counter()
            for place, tally in self.bad.items():
                red.update(dict.fromkeys(place.values(factor), tally.red))
            if not 1 < len(red) <= MOST_VALUES or min(red.values()) < least:
                continue
            good = (place for place, tally in self.tallies.items() if tally.red < tally.all)
            known = all(place.values(factor) for place in self.bad)
            if known and not any(value in red for place in good for value in place.values(factor)):
                return tuple(Cause(factor, value) for value in sorted(red))
        return ()


def _is_mixed(tally: Tally) -> bool:
    return tally.flaky > 0 or 0 < tally.red < tally.all


def sureness(bad: int, chance: float, tries: int) -> Sure:
    """Return ``strong`` if `chance` times the number of classified cases is at most `SIGNIFICANCE`, otherwise ``weak``.

    The factor is the Bonferroni correction: with many classified cases, chance has as many tries.
    """
    if bad == 1:
        return Sure.ONE
    return Sure.STRONG if chance * tries <= SIGNIFICANCE else Sure.WEAK


def together(classings: Mapping[int, Classing]) -> dict[int, Classing]:
    """Return the classes of all cases, each adjusted to the others.

    Cases that were bad once each, all on the same device, are not flakes: their class is ``one_uuid`` if the
    probability of this many cases on one device by chance is below `SIGNIFICANCE`.
    """
    suspects: dict[Cause, list[int]] = {}
    for case, classing in classings.items():
        cause = _suspect(classing)
        if cause is not None:
            suspects.setdefault(cause, []).append(case)
    adjusted = dict(classings)
    for cause, cases in suspects.items():
        chance = joint_chance([classings[case] for case in cases], len(classings))
        if len(cases) > 1 and chance <= SIGNIFICANCE:
            adjusted |= {case: _on_one_device(classings[case], cause, chance) for case in cases}
    return adjusted


def _suspect(classing: Classing) -> Cause | None:
    """Return the single device of all bad results of a case, if there is one."""
    cause = classing.causes[0] if classing.kind is CauseClass.ONE_UUID else None
    if classing.kind is CauseClass.FLAKE and classing.also:
        cause = classing.also[0][0]
    return cause if cause is not None and cause.factor is Factor.UUID else None


def joint_chance(classings: Sequence[Classing], tries: int) -> float:
    """Return the probability that, of `tries` red cases, this many have all bad results on the device of the first."""
    shares = [
        math.comb(classing.inside.all, classing.total.bad) / math.comb(classing.total.all, classing.total.bad)
        for classing in classings
    ]
    shares.remove(max(shares))
    return min(1.0, math.comb(tries - 1, len(shares)) * math.prod(shares))


def _on_one_device(classing: Classing, cause: Cause, chance: float) -> Classing:
    return replace(
        classing,
        kind=CauseClass.ONE_UUID,
        sure=Sure.STRONG,
        chance=min(classing.chance, chance),
        causes=(cause,),
        also=tuple(explanation for explanation in classing.also if explanation != (cause,)),
        maybe_flake=False,
        always=classing.inside.bad == classing.inside.all,
    )
