"""Which cases of a batch make their process grow whenever they run, found by running fewer and fewer of them.

Pure: what a trial does is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.checks.batch import Counted, excess, leaks_of, leaks_together
from harness.checks.growth import Leak
from harness.diagnosis.minimise import minimise
from harness.errors import HarnessError

#: Says of the rounds so far whether it is still possible that something leaks.
Open = Callable[[Counted], bool]
#: Runs these cases, by their ids in order, round after round in one process, as long as the question is open; gives the
#: rounds that count, none where it came to none. Raises SpentError.
Trial = Callable[[Sequence[str], Open], Counted]


class SpentError(HarnessError):
    """No more trials may be made."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """Cases that leak, in the order in which they ran, and what they leak in each round, clearest cause first.

    `grows` is the one of them with which the growth comes; "" where it comes with several, or with none in particular.
    `certain`: each of them is needed for it, or, without `grows`, each has a part in it. Otherwise nobody has had the
    time to find out which of them are.
    """

    cases: tuple[str, ...]
    grows: str
    leaks: tuple[Leak, ...]
    certain: bool


def search(cases: Sequence[str], trial: Trial) -> list[Culprits]:
    """Find all that leak among the cases of a batch; none where nothing grows in every round."""
    rest = list(range(len(cases)))

    def growing(rounds: Counted) -> dict[int, tuple[Leak, ...]]:
        """Of the rest, which grow and what; those that grow most come first."""
        found = {position: tuple(leaks_of(rounds, position, rest)) for position in rest}
        most = {position: max(map(excess, leaks)) for position, leaks in found.items() if leaks}
        return {position: found[position] for position in sorted(most, key=lambda each: (-most[each], each))}

    try:
        rounds = trial(cases, lambda rounds: bool(leaks_together(rounds, rest) or growing(rounds)))
    except SpentError:
        return []
    if not rounds:
        return []
    found: list[Culprits] = []
    acquitted: set[int] = set()
    while suspects := {position: leaks for position, leaks in growing(rounds).items() if position not in acquitted}:
        position, leaks = next(iter(suspects.items()))
        try:
            culprits = _company(cases, position, leaks, trial)
        except SpentError:
            culprits = Culprits(tuple(cases[each] for each in sorted(suspects)), "", leaks, certain=False)
        if culprits is None:
            acquitted.add(position)
        else:
            found.append(culprits)
            rest = [each for each in rest if cases[each] not in culprits.cases]
    rest = [position for position in rest if position not in acquitted]
    if leaks := tuple(leaks_together(rounds, rest)):
        found.append(_narrowed([cases[position] for position in rest], leaks, trial))
    return found


def _company(cases: Sequence[str], position: int, leaks: tuple[Leak, ...], trial: Trial) -> Culprits | None:
    """The fewest of the other cases that the one at `position`, which grows, needs for it; None when it grows no more.

    Raises SpentError when it could not even be tried alone.
    """
    case = cases[position]
    others = [each for each in cases if each != case]
    kept, seen, asked = others, leaks, False

    def grows_with(part: Sequence[str]) -> bool:
        nonlocal kept, seen, asked
        members = [each for each in cases if each == case or each in part]
        place = members.index(case)
        everyone = range(len(members))
        rounds = trial(members, lambda rounds: bool(leaks_of(rounds, place, everyone)))
        asked = True
        leaking = leaks_of(rounds, place, everyone) if rounds else []
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
    members = tuple(each for each in cases if each == case or each in kept)
    return Culprits(members, case, seen, certain)


def _narrowed(cases: Sequence[str], leaks: tuple[Leak, ...], trial: Trial) -> Culprits:
    """Cases that grow together, and none of them enough by itself: halved, as long as only one half grows."""
    kept, seen = list(cases), leaks

    def leaks_in(part: Sequence[str]) -> bool:
        nonlocal kept, seen
        everyone = range(len(part))
        rounds = trial(part, lambda rounds: bool(leaks_together(rounds, everyone))) if part else []
        leaking = leaks_together(rounds, everyone) if rounds else []
        if leaking and len(part) < len(kept):
            kept, seen = list(part), tuple(leaking)
        return bool(leaking)

    try:
        while len(kept) > 1:
            whole, amounts = kept, seen
            middle = len(whole) // 2
            first, second = leaks_in(whole[:middle]), leaks_in(whole[middle:])
            if first and second:  # many have a part in it
                return Culprits(tuple(whole), "", amounts, certain=True)
            if not first and not second:
                minimise(whole, leaks_in)
                break
    except SpentError:
        return Culprits(tuple(kept), "", seen, certain=False)
    return Culprits(tuple(kept), "", seen, certain=True)
