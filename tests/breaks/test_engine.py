"""Who noticed a break, with plain ledgers: noticed breaks, missed ones, and those that could not be tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.journal.ledger import Ledger
from tests.breaks.breaks import Break, BreakError
from tests.breaks.engine import Observed, Red, environment, judge, observed, run_breaks
from tests.breaks.table import Result, Table
from tests.reporting import build

SUITE = "suites/streams/test_pace.py"
A, B, C, D = (f"{SUITE}::{name}" for name in "abcd")
FAULT = Break("slow", "takes long", (SUITE,), device="soft", fault="slow")
CHANGE = Break("off", "is off", (SUITE,), apply=lambda: None, shows=lambda: 1)


def ledger(*lines: build.Line) -> Ledger:
    return build.ledger(build.run(devices=["SOFT-0"]), build.collected(A, B, C, D), *lines)


def ended(case: str, outcome: Outcome = Outcome.PASSED, **changes: object) -> list[build.Line]:
    return [build.start(case), build.finish(case, outcome, **changes)]


ALL_PASSED = ledger(*ended(A), *ended(B), *ended(C), *ended(D))


# What a run observed


def test_a_case_that_was_lost_or_never_ran_observed_nothing() -> None:
    seen = observed(ledger(*ended(A), *ended(B, Outcome.CRASHED), build.start(C)))  # C is lost, D has not run
    assert seen.passed == {A}
    assert {case: end.outcome for case, end in seen.red.items()} == {B: "crashed"}
    assert seen.ran == {A, B}


def test_a_red_case_in_which_the_fault_was_not_seen_to_occur_is_doubtful() -> None:
    lines = [*ended(A, Outcome.FAILED, struck={"slow": 1}), *ended(B, Outcome.FAILED, struck={"device_lost": 1})]
    lines += [*ended(C, Outcome.TIMEOUT), *ended(D, Outcome.CRASHED)]  # D could not report
    assert observed(ledger(*lines), "slow").doubtful == {B, C}


def test_a_run_counts_how_often_its_own_fault_struck() -> None:
    lines = [*ended(A, struck={"slow": 2, "device_lost": 7}), *ended(B, struck={"slow": 3}), *ended(C), *ended(D)]
    assert observed(ledger(*lines), "slow").struck == 5


_HELPER = "suites/streams/busy.py:90: RuntimeError"
_OWN = f"{SUITE}:7: in seen\n    event.query()"


@pytest.mark.parametrize(
    ("message", "detail", "counts"),
    [
        ("RuntimeError: CUDA error: device not ready", f"{_OWN}\n{_HELPER}", False),
        ("RuntimeError: CUDA error: device not ready", f"{_OWN}\ntorch/cuda/streams.py:3: RuntimeError", True),
        ("AssertionError: never pending", f"{_OWN}\n{_HELPER.replace('Runtime', 'Assertion')}", True),
        ("assert False", f"{_OWN}\n{_HELPER}", True),
        ("Failed: DID NOT RAISE RuntimeError", f"{_OWN}\n{_HELPER}", True),
        ("suites.operators.comparison.WrongValueError: 3 wrong", f"{_OWN}\n{_HELPER}", True),
        ("harness.RanksError: rank 1 raised AssertionError: 3", f"{_OWN}\n{_HELPER}", True),
        ("harness.RanksError: rank 1 raised RuntimeError: 3", f"{_OWN}\n{_HELPER}", False),
        ("RuntimeError: without a traceback", "", True),
    ],
)
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ERROR])
def test_a_case_in_which_a_helper_failed_stumbles_over_a_fault(
    message: str, detail: str, counts: bool, outcome: Outcome
) -> None:
    found = observed(ledger(*ended(A, outcome, message=message, detail=detail, struck={"slow": 1})), "slow")
    result = judge(FAULT, {A}, found, counts=True)
    assert result.verdict == ("noticed" if counts else "stumbled")
    assert dict(result.stumbled) == ({} if counts else {A: message})
    assert judge(CHANGE, {A}, found).verdict == "noticed"


def test_a_crash_below_a_helper_is_noticed() -> None:
    found = observed(ledger(*ended(A, Outcome.CRASHED, message="SIGSEGV", detail=_HELPER)), "slow")
    assert judge(FAULT, {A}, found, counts=True).verdict == "noticed"


# Who noticed


def seen(passed: str = "", red: Mapping[str, Red] | None = None, struck: int = 0) -> Observed:
    names = frozenset(f"{SUITE}::{name}" for name in passed)
    return Observed(names, red or {}, names | {*(red or {})}, struck)


@pytest.mark.parametrize(
    ("entry", "with_it", "expected"),
    [
        (
            CHANGE,
            seen("a", {B: Red("failed", "AssertionError: 2 != 1")}),
            Result("off", "is off", "cpu", {B: "failed"}),
        ),
        (
            CHANGE,
            seen("a", {B: Red("failed", "RuntimeError: the seed")}),
            Result("off", "is off", "cpu", {B: "failed"}),
        ),
        (
            CHANGE,
            seen("a", {B: Red("failed", "TypeError: wanted a tensor")}),
            Result("off", "is off", "cpu", stumbled={B: "TypeError: wanted a tensor"}),
        ),
        (FAULT, seen("a", {B: Red("failed", "TypeError: x")}), Result("slow", "takes long", "soft", {B: "failed"})),
        (CHANGE, seen("ab", {C: Red("failed")}), Result("off", "is off", "cpu")),  # red, or gated, without it
    ],
    ids=["failed", "an_error_of_torch", "an_error_of_the_break", "a_fault_has_no_code", "red_without_it"],
)
def test_a_case_that_passed_without_a_break_and_is_red_with_it_noticed_it(
    entry: Break, with_it: Observed, expected: Result
) -> None:
    found = judge(entry, {A, B}, with_it)
    assert found.ran == {A, B}
    assert (found.noticed_by, found.stumbled) == (expected.noticed_by, expected.stumbled)
    assert (found.name, found.breaks, found.device) == (expected.name, expected.breaks, expected.device)


@pytest.mark.parametrize(
    ("entry", "with_it", "unusable"),
    [
        (FAULT, seen("a", struck=3), ""),
        (FAULT, seen("a"), "the fault never occurred"),
        (FAULT, seen("", {A: Red("crashed")}), ""),  # its process could not report what struck
        (FAULT, seen(""), "none of its cases ran with it: see the output of its run"),
        (CHANGE, seen("c"), "none of its cases ran with it: see the output of its run"),
        (CHANGE, Observed(unfit="a generator became a function"), "a generator became a function"),
    ],
)
def test_why_a_break_was_not_tried(entry: Break, with_it: Observed, unusable: str) -> None:
    assert judge(entry, {A, B}, with_it, counts=bool(entry.fault)).unusable == unusable


# All breaks


class Runs:
    """Returns plain ledgers by the name of the run, and keeps what was asked."""

    def __init__(self, **ledgers: Ledger) -> None:
        self._ledgers = {name.replace("_", "-"): each for name, each in ledgers.items()}
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, name: str, device: str, cases: Sequence[str], entry: Break | None, *options: str) -> Observed:
        self.asked.append((name, device, *cases, *options))
        return observed(self._ledgers[name], entry.fault if entry else "")


def conduct(
    runs: Callable[..., Observed], *breaks: Break, first: bool = False, unusable: Mapping[str, str] | None = None
) -> tuple[Table, list[Table], list[str]]:
    """Return the table, those that were kept on the way, and the log."""
    kept: list[Table] = []
    log: list[str] = []
    found = run_breaks(breaks, runs, unusable or {}, jobs=1, first=first, log=log.append, keep=kept.append)
    return found, kept, log


def test_each_break_runs_after_its_cases_without_one() -> None:
    runs = Runs(clean_cpu=ALL_PASSED, clean_soft=ALL_PASSED, off=ledger(*ended(A, Outcome.FAILED)), slow=ALL_PASSED)
    shown = Break("shown", "is nothing", (SUITE,), apply=lambda: None, shows=lambda: 1)

    table, kept, log = conduct(runs, CHANGE, shown, FAULT, first=True, unusable={"shown": "it shows nothing"})

    assert runs.asked == [
        ("clean-cpu", "cpu", SUITE),
        ("clean-soft", "soft", SUITE),
        ("off", "cpu", SUITE, "--maxfail=1"),
        ("slow", "soft", SUITE, "--maxfail=1"),
    ]
    assert [row.name for row in table.rows] == ["off", "shown", "slow"]
    assert dict(table.unusable) == {"shown": "it shows nothing", "slow": "the fault never occurred"}
    assert (table.passed, table.rows[0].noticed_by) == (8, {A: "failed"})
    assert [each.not_run for each in kept] == [("slow",), ()]
    assert kept[-1] == table
    assert log == [
        "cpu without a break: 4 passed, 0 red",
        "soft without a break: 4 passed, 0 red",
        "off: noticed by 1 of 1",
        "slow: the fault never occurred",
    ]


@pytest.mark.parametrize("first", [False, True])
def test_a_doubtful_case_runs_again_alone_and_counts_if_it_is_red_again(first: bool) -> None:
    """B failed by chance, and C in a process that B started."""
    struck = {"slow": 1}
    slow = [*ended(A, Outcome.FAILED, struck=struck), *ended(B, Outcome.FAILED), *ended(C, Outcome.FAILED)]
    alone = ledger(*ended(B), *ended(C, Outcome.FAILED))
    runs = Runs(clean_soft=ALL_PASSED, slow=ledger(*slow), slow_alone=alone)

    table, _, _ = conduct(runs, FAULT, first=first)

    assert table.rows[0].noticed_by == {A: "failed", C: "failed"}
    assert table.rows[0].not_counted == (B,)
    assert runs.asked[2:] == [("slow-alone", "soft", B, C, "--isolation=case")]


def test_a_run_that_ended_at_a_case_that_does_not_count_is_done_again_whole() -> None:
    whole = ledger(*ended(A), *ended(B, Outcome.FAILED, struck={"slow": 1}), *ended(C), *ended(D))
    runs = Runs(
        clean_soft=ALL_PASSED, slow=ledger(*ended(A, Outcome.FAILED)), slow_alone=ledger(*ended(A)), slow_whole=whole
    )

    table, _, _ = conduct(runs, FAULT, first=True)

    assert table.rows[0].noticed_by == {B: "failed"}
    assert [each[0] for each in runs.asked] == ["clean-soft", "slow", "slow-alone", "slow-whole"]
    assert runs.asked[-1] == ("slow-whole", "soft", SUITE)


def test_a_run_that_ended_at_a_helper_is_done_again_whole() -> None:
    stumbled = ended(A, Outcome.FAILED, message="RuntimeError: 1", detail=_HELPER, struck={"slow": 1})
    noticed = ended(B, Outcome.FAILED, message="assert 1 == 2", struck={"slow": 1})
    runs = Runs(clean_soft=ALL_PASSED, slow=ledger(*stumbled), slow_whole=ledger(*stumbled, *noticed))

    table, _, _ = conduct(runs, FAULT, first=True)

    assert (table.rows[0].noticed_by, table.rows[0].stumbled) == ({B: "failed"}, {A: "RuntimeError: 1"})


def test_a_stopped_call_keeps_the_table_of_what_it_has_run() -> None:
    def run(name: str, device: str, cases: Sequence[str], entry: Break | None, *options: str) -> Observed:  # noqa: ARG001
        if name == "device_lost":
            raise KeyboardInterrupt
        return observed(ledger(*ended(A, Outcome.TIMEOUT if name == "slow" else Outcome.PASSED)))

    kept: list[Table] = []
    lost = Break("device_lost", "is lost", (SUITE,), device="soft", fault="device_lost")
    with pytest.raises(KeyboardInterrupt):
        run_breaks([FAULT, lost], run, {}, jobs=1, first=False, log=lambda _: None, keep=kept.append)
    assert [(tuple(row.name for row in each.rows), each.not_run) for each in kept] == [(("slow",), ("device_lost",))]


def test_cases_of_which_none_passes_notice_nothing() -> None:
    with pytest.raises(BreakError, match="no case passes without a break on 'soft'"):
        conduct(Runs(clean_soft=ledger(*ended(A, Outcome.FAILED))), FAULT)


def test_a_suite_that_does_not_exist_is_named() -> None:
    with pytest.raises(BreakError, match="the suite 'suites/no_such' does not exist"):
        conduct(Runs(), Break("off", "is off", ("suites/no_such",), apply=lambda: None, shows=lambda: 1))


def test_processes_find_the_engine_after_what_the_user_named() -> None:
    made = environment({"PYTHONPATH": "/mine", "HARNESS_SEED": "3", "HOME": "/home/me"})
    assert made == {"PYTHONPATH": f"/mine:{Path(__file__).parents[2]}", "HOME": "/home/me"}
