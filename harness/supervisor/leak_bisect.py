"""Finds the cases of a batch that leak: runs each case alone, or all together and then ever smaller sets of them.

Pure functions: the caller supplies the trial. Growth in one trial is a leak only if a second trial confirms it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from harness.checks.growth import (
    CountedRounds,
    Leak,
    leak_excess,
    leaks_of_case,
    leaks_together,
    may_case_leak,
    may_leak_together,
)
from harness.core.errors import HarnessError

#: Returns whether further rounds after these could still show a leak.
Open = Callable[[CountedRounds], bool]
#: Runs these cases (ids, in order) round after round in one process, while `Open` is true. Returns the rounds that
#: count; empty if there are none. Raises SpentError.
Trial = Callable[[Sequence[str], Open], CountedRounds]


class SpentError(HarnessError):
    """The time for trials is used up."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """Cases that leak, in the order in which they ran, and what they leak in each round, clearest cause first.

    `grows` is the case in which the growth appears; "" if it appears in several or in no particular one. `certain`: two
    processes have shown that the leak needs each of the cases, or, without `grows`, that each contributes to it. If not
    `certain`, the trials ended before this was known.
    """

    cases: tuple[str, ...]
    grows: str
    leaks: tuple[Leak, ...]
    certain: bool


def alone(cases: Sequence[str], trial: Trial, enough: Callable[[Sequence[str]], bool]) -> list[Culprits]:
    """Find the cases that leak in a process of their own.

    The cases are tried in this order, until `enough` is true of the tried ones, or the time for trials is used up.
    """
    culprits: list[Culprits] = []
    for number, case in enumerate(cases):
        if enough(cases[:number]):
            break
        try:
            leaks = tuple(_grows_in([case], 0, trial))
        except SpentError:
            break
        if leaks:
            culprits += _confirmed([Culprits((case,), case, leaks, certain=True)], trial)
    return culprits


def find_culprits(cases: Sequence[str], trial: Trial) -> list[Culprits]:
    """Find all leaking cases of a batch, including those that leak only together with others."""
    return _confirmed(_all_culprits(cases, trial), trial)


def _confirmed(candidates: Sequence[Culprits], trial: Trial) -> list[Culprits]:
    """Return the culprits without those that do not leak again. Those for which no trial was left become uncertain."""
    kept = []
    for candidate in candidates:
        if not candidate.certain:
            kept.append(candidate)
            continue
        place = candidate.cases.index(candidate.grows) if candidate.grows else None
        try:
            if leaks := tuple(_grows_in(candidate.cases, place, trial)):
                kept.append(replace(candidate, leaks=leaks))
        except SpentError:
            kept.append(replace(candidate, certain=False))
    return kept


def _grows_in(members: Sequence[str], place: int | None, trial: Trial) -> list[Leak]:
    """Return what these cases leak in their own process: the one at `place`, or, if None, all together.

    Raises SpentError.
    """
    everyone = range(len(members))
    if place is None:
        rounds = trial(members, lambda rounds: may_leak_together(rounds, everyone))
        return leaks_together(rounds, everyone)
    rounds = trial(members, lambda rounds: may_case_leak(rounds, place))
    return leaks_of_case(rounds, place, everyone)


def _all_culprits(cases: Sequence[str], trial: Trial) -> list[Culprits]:
    rest = list(range(len(cases)))

    def growing(rounds: CountedRounds) -> dict[int, tuple[Leak, ...]]:
        """Return the cases of `rest` that grow, with their leaks, largest growth first."""
        leaks_at = {position: tuple(leaks_of_case(rounds, position, rest)) for position in rest}
        most = {position: max(map(leak_excess, leaks)) for position, leaks in leaks_at.items() if leaks}
        return {position: leaks_at[position] for position in sorted(most, key=lambda index: (-most[index], index))}

    try:
        rounds = trial(
            cases, lambda rounds: may_leak_together(rounds, rest) or any(may_case_leak(rounds, index) for index in rest)
        )
    except SpentError:
        return []
    if not rounds:
        return []
    culprit_sets: list[Culprits] = []
    cleared: set[int] = set()
    while suspects := {position: leaks for position, leaks in growing(rounds).items() if position not in cleared}:
        position, leaks = next(iter(suspects.items()))
        try:
            culprits = _smallest_set(cases, position, leaks, trial)
        except SpentError:
            culprits = Culprits(tuple(cases[suspect] for suspect in sorted(suspects)), "", leaks, certain=False)
        if culprits is None:
            cleared.add(position)
        else:
            culprit_sets.append(culprits)
            rest = [index for index in rest if cases[index] not in culprits.cases]
    rest = [position for position in rest if position not in cleared]
    if leaks := tuple(leaks_together(rounds, rest)):
        culprit_sets.append(_narrowed([cases[position] for position in rest], leaks, trial))
    return culprit_sets


def _smallest_set(cases: Sequence[str], position: int, leaks: tuple[Leak, ...], trial: Trial) -> Culprits | None:
    """Return the growing case at `position` and the fewest other cases that it needs to grow.

    None if it no longer grows.

    Raises SpentError if not even one trial was possible.
    """
    case = cases[position]
    others = [other for other in cases if other != case]
    kept, seen, asked = others, leaks, False

    def grows_with(part: Sequence[str]) -> bool:
        nonlocal kept, seen, asked
        members = [member for member in cases if member == case or member in part]
        leaking = _grows_in(members, members.index(case), trial)
        asked = True
        if leaking:
            kept, seen = list(part), tuple(leaking)
        return bool(leaking)

    certain = True
    try:
        minimise(others, grows_with)
    except SpentError:
        if not asked:
            raise
        certain = False
    if not others and seen is leaks:
        return None
    members = tuple(member for member in cases if member == case or member in kept)
    return Culprits(members, case, seen, certain)


def _narrowed(cases: Sequence[str], leaks: tuple[Leak, ...], trial: Trial) -> Culprits:
    """Narrow down cases that grow together but not enough alone: halve them while exactly one half grows."""
    kept, seen = list(cases), leaks

    def leaks_in(part: Sequence[str]) -> bool:
        nonlocal kept, seen
        leaking = _grows_in(part, None, trial) if part else []
        if leaking and len(part) < len(kept):
            kept, seen = list(part), tuple(leaking)
        return bool(leaking)

    try:
        while len(kept) > 1:
            whole, amounts = kept, seen
            middle = len(whole) // 2
            first, second = leaks_in(whole[:middle]), leaks_in(whole[middle:])
            if first and second:  # many cases contribute
                return Culprits(tuple(whole), "", amounts, certain=True)
            if not first and not second:
                minimise(whole, leaks_in)
                break
    except SpentError:
        return Culprits(tuple(kept), "", seen, certain=False)
    return Culprits(tuple(kept), "", seen, certain=True)


T = TypeVar("T")


def minimise(items: Sequence[T], does: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a part of `items`, in order, for which `does` holds, but no longer if any one item is left out.

    `does` must hold for all `items`; this is not checked. `does` is never called twice with the same items. Delta
    debugging (A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): a single culprit
    among n items takes about 2 log n calls, the worst case about n squared.
    """
    asked: dict[tuple[int, ...], bool] = {}

    def holds(positions: Sequence[int]) -> bool:
        key = tuple(positions)
        if key not in asked:
            asked[key] = does([items[position] for position in key])
        return asked[key]

    kept = list(range(len(items)))
    if holds([]):
        return []
    parts = 2
    while len(kept) > 1:
        chunks = _chunks(kept, parts)
        smaller = next((chunk for chunk in chunks if holds(chunk)), None)
        if smaller is not None:
            kept, parts = smaller, 2
            continue
        rests = ([position for position in kept if position not in chunk] for chunk in chunks)
        smaller = next((rest for rest in rests if holds(rest)), None)
        if smaller is not None:
            kept, parts = smaller, max(parts - 1, 2)
        elif parts >= len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    return [items[position] for position in kept]


def _chunks(positions: Sequence[int], parts: int) -> list[list[int]]:
    """Return `positions` in `parts` chunks of nearly equal length.

    The last chunk is first: the latest cases are the likeliest causes.
    """
    edges = [len(positions) * part // parts for part in range(parts + 1)]
    return [list(positions[begin:end]) for begin, end in itertools.pairwise(edges)][::-1]
