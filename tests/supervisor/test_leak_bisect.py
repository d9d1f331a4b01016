"""The leaking cases of a batch: trials in a fake process, and the small number of trials needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from harness.checks.growth import COUNTED_ROUNDS, CountedRounds
from harness.supervisor.leak_bisect import Culprits, Open, SpentError, alone, find_culprits

KIB = 1 << 10
LEAK = {"heap_bytes": 100 * KIB}
NOISE = {"heap_bytes": 200, "mapped_bytes": 0}

#: Returns a case's growth, given all cases that run in its process and the number of the counted round.
Grows = Callable[[str, Sequence[str], int], Mapping[str, int]]


class Process:
    """Answers trials by a rule."""

    def __init__(self, grows: Grows, most: int = 1000) -> None:
        self.tried: list[tuple[str, ...]] = []
        self.rounds = 0
        self._grows = grows
        self._most = most

    def trial(self, cases: Sequence[str], is_open: Open) -> CountedRounds:
        if len(self.tried) == self._most:
            raise SpentError("spent")
        self.tried.append(tuple(cases))
        rounds: list[list[Mapping[str, int]]] = []
        for number in range(COUNTED_ROUNDS):
            rounds.append([self._grows(case, cases, number) for case in cases])
            self.rounds += 1
            if not is_open(rounds):
                break
        return rounds


def names(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def leaker(*leaky: str) -> Grows:
    return lambda case, *_: LEAK if case in leaky else NOISE


def pair(first: str, second: str) -> Grows:
    return lambda case, together, _: LEAK if case == second and first in together else NOISE


def found(process: Process, count: int) -> list[tuple[tuple[str, ...], str, bool]]:
    return [(each.cases, each.grows, each.certain) for each in find_culprits(names(count), process.trial)]


def test_nothing_leaks() -> None:
    process = Process(leaker())
    assert found(process, 400) == []
    assert process.rounds == 3  # three counted rounds without growth are enough


def test_growth_that_stops_after_some_rounds_is_no_leak() -> None:
    process = Process(lambda *about: LEAK if about[-1] < COUNTED_ROUNDS // 2 else NOISE)
    assert found(process, 10) == []
    assert len(process.tried) == 1


@pytest.mark.parametrize("count", [1, 2, 24, 400])
def test_one_case_that_leaks_alone_takes_three_trials(count: int) -> None:
    process = Process(leaker(f"c{count // 2}"))
    (culprits,) = find_culprits(names(count), process.trial)
    assert (culprits.cases, culprits.certain) == ((f"c{count // 2}",), True)
    assert [leak.meter for leak in culprits.leaks] == ["heap_bytes"]
    assert process.tried[1:] == [culprits.cases] * 2


@pytest.mark.parametrize(("first", "second"), [("c3", "c4"), ("c0", "c23"), ("c9", "c2")])
def test_a_pair_is_named_in_the_order_in_which_it_ran(first: str, second: str) -> None:
    process = Process(pair(first, second))
    in_order = tuple(sorted((first, second), key=lambda case: int(case[1:])))
    assert found(process, 24) == [(in_order, second, True)]
    assert len(process.tried) <= 12


def test_a_pair_among_many_takes_few_trials() -> None:
    process = Process(pair("c7", "c300"))
    assert found(process, 400) == [(("c7", "c300"), "c300", True)]
    assert len(process.tried) <= 30


def test_three_that_leak_only_together() -> None:
    process = Process(lambda case, together, _: LEAK if case == "c9" and {"c1", "c5"} <= {*together} else NOISE)
    assert found(process, 12) == [(("c1", "c5", "c9"), "c9", True)]


def test_several_leaks_are_reported_separately() -> None:
    def grows(case: str, together: Sequence[str], number: int) -> Mapping[str, int]:
        if case == "c2":
            return {"mapped_bytes": 3 << 20}
        return pair("c8", "c5")(case, together, number) if case != "c0" else LEAK

    assert found(Process(grows), 12) == [
        (("c2",), "c2", True),
        (("c0",), "c0", True),
        (("c5", "c8"), "c5", True),
    ]


def test_a_case_that_takes_what_others_free_is_not_reported() -> None:
    def grows(case: str, together: Sequence[str], _: int) -> Mapping[str, int]:
        back = -sum(100 * KIB for each in together if each in ("c0", "c1"))
        return {"c0": LEAK, "c1": LEAK, "c5": {"heap_bytes": back}}.get(case, NOISE)

    assert found(Process(grows), 8) == []


def test_small_growth_of_all_names_all_cases_and_no_pair() -> None:
    process = Process(lambda *_: {"heap_bytes": 10 * KIB})
    (culprits,) = find_culprits(names(200), process.trial)
    assert culprits == Culprits(tuple(names(200)), "", culprits.leaks, certain=True)
    assert culprits.leaks[0].amount == 200 * 10 * KIB
    assert [len(tried) for tried in process.tried] == [200, 100, 100, 200]


def test_small_growth_of_some_is_narrowed_to_the_half_that_has_it() -> None:
    some = names(64)[32:48]
    process = Process(lambda case, *_: {"heap_bytes": 20 * KIB} if case in some else NOISE)
    assert found(process, 64) == [(tuple(some), "", True)]


def test_growth_that_appears_in_a_later_case_is_found_by_halving() -> None:
    """A thread frees late: the growth that c5 causes appears in a different case each time."""

    def grows(case: str, together: Sequence[str], number: int) -> Mapping[str, int]:
        return LEAK if "c5" in together and case == together[number % len(together)] else NOISE

    assert found(Process(grows), 16) == [(("c5",), "", True)]


def test_a_case_that_no_longer_grows_when_tried_is_cleared() -> None:
    class Once(Process):
        def trial(self, cases: Sequence[str], is_open: Open) -> CountedRounds:
            rounds = super().trial(cases, is_open)
            self._grows = leaker()
            return rounds

    assert found(Once(leaker("c0")), 1) == []


def test_a_trial_without_rounds_reports_no_case() -> None:
    assert find_culprits(names(5), lambda *_: []) == []


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        (0, []),
        # It is only known that c20 grows together with all the others.
        (1, [(("c20",), "", False)]),
        (2, [(tuple(names(24)), "c20", False)]),
    ],
)
def test_the_result_when_the_trials_are_used_up(trials: int, expected: list[tuple[tuple[str, ...], str, bool]]) -> None:
    assert found(Process(pair("c3", "c20"), most=trials), 24) == expected


def test_the_smallest_set_so_far_is_reported() -> None:
    process = Process(pair("c3", "c20"), most=6)
    ((cases, grows, certain),) = found(process, 24)
    assert (grows, certain) == ("c20", False)
    assert {"c3", "c20"} <= {*cases}
    assert len(cases) < 24


def test_all_untried_cases_are_reported_together() -> None:
    process = Process(leaker("c1", "c2", "c4"), most=2)
    assert found(process, 8) == [(("c1",), "c1", False), (("c2", "c4"), "", False)]


def test_growth_that_needs_two_cases_and_appears_in_any_is_found_across_the_halves() -> None:
    def grows(case: str, together: Sequence[str], number: int) -> Mapping[str, int]:
        return LEAK if {"c2", "c13"} <= {*together} and case == together[number % len(together)] else NOISE

    assert found(Process(grows), 16) == [(("c2", "c13"), "", True)]


def test_what_only_one_process_shows_is_no_leak() -> None:
    """The growth is accidental: the process that should confirm it does not grow."""

    class Chance(Process):
        def trial(self, cases: Sequence[str], is_open: Open) -> CountedRounds:
            if len(self.tried) == 2:
                self._grows = leaker()
            return super().trial(cases, is_open)

    process = Chance(leaker("c1"))
    assert found(process, 4) == []
    assert process.tried == [tuple(names(4)), ("c1",), ("c1",)]


def test_a_leak_that_there_was_no_time_to_confirm_is_uncertain() -> None:
    assert found(Process(leaker("c1"), most=2), 4) == [(("c1",), "c1", False)]


def tried_alone(process: Process, cases: Sequence[str], enough: int = 1000) -> list[tuple[tuple[str, ...], bool]]:
    leaking = alone(cases, process.trial, lambda tried: len(tried) >= enough)
    return [(each.cases, each.certain) for each in leaking]


def test_cases_are_tried_alone_in_the_order_given() -> None:
    process = Process(leaker("c1", "c2"))
    assert tried_alone(process, ["c2", "c0", "c1"]) == [(("c2",), True), (("c1",), True)]
    assert process.tried == [("c2",), ("c2",), ("c0",), ("c1",), ("c1",)]


def test_cases_are_tried_alone_until_that_is_enough() -> None:
    process = Process(leaker("c5"))
    assert tried_alone(process, names(9), enough=3) == []
    assert process.tried == [("c0",), ("c1",), ("c2",)]


@pytest.mark.parametrize(
    ("trials", "expected"), [(0, []), (1, [(("c0",), False)]), (2, [(("c0",), True)]), (3, [(("c0",), True)])]
)
def test_cases_are_tried_alone_while_there_is_time(trials: int, expected: list[tuple[tuple[str, ...], bool]]) -> None:
    assert tried_alone(Process(leaker("c0"), most=trials), names(5)) == expected
