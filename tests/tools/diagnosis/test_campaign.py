"""The fault campaign: what counts as a catch, and the table, with plain ledgers; whole runs are acceptance tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.journal.ledger import Ledger
from harness.sim.native.faults import Injection
from harness.tools.diagnosis.campaign import (
    RECORD,
    TABLE,
    CampaignError,
    CampaignTally,
    FaultRow,
    OrdersCampaign,
    orders_json,
    orders_text,
    row,
    run_orders,
    tally_cases,
)
from tests.reporting import build

A, B, C, D = (f"suites/streams/test_a.py::{name}" for name in "abcd")


def ledger(*lines: build.Line) -> Ledger:
    return build.ledger(build.run(devices=["SOFT-0"]), build.collected(A, B, C, D), *lines)


def ended(case: str, outcome: Outcome = Outcome.PASSED, **changes: object) -> list[build.Line]:
    return [build.start(case), build.finish(case, outcome, **changes)]


def test_a_case_that_was_lost_or_never_ran_is_no_catch() -> None:
    lines = [*ended(A), *ended(B, Outcome.CRASHED), build.start(C)]  # C is lost, D has not run
    assert tally_cases(ledger(*lines)) == CampaignTally(frozenset({A}), {B: "crashed"})


def test_a_red_case_in_which_the_fault_was_not_seen_to_occur_is_doubtful() -> None:
    lines = [*ended(A, Outcome.FAILED, struck={"slow": 1}), *ended(B, Outcome.FAILED, struck={"device_lost": 1})]
    lines += [*ended(C, Outcome.TIMEOUT), *ended(D, Outcome.LEAKED)]  # C could not report
    assert tally_cases(ledger(*lines), "slow").doubtful == {B, D}


_HELPER = "suites/streams/busy.py:90: RuntimeError"
_OWN = "suites/streams/test_a.py:7: in seen\n    event.query()"


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
def test_a_case_in_which_a_helper_failed_is_no_catch(message: str, detail: str, counts: bool, outcome: Outcome) -> None:
    faulty = tally_cases(ledger(*ended(A, outcome, message=message, detail=detail, struck={"slow": 1})), "slow")
    found = row("slow", "takes long", CampaignTally(frozenset({A}), {}), faulty)
    assert found.caught is counts
    assert found.stumbled == (() if counts else (A,))


def test_a_crash_below_a_helper_is_a_catch() -> None:
    faulty = tally_cases(ledger(*ended(A, Outcome.CRASHED, message="SIGSEGV", detail=_HELPER)), "slow")
    assert row("slow", "takes long", CampaignTally(frozenset({A}), {}), faulty).caught


def test_a_run_counts_how_often_its_own_fault_struck() -> None:
    lines = [*ended(A, struck={"slow": 2, "device_lost": 7}), *ended(B, struck={"slow": 3}), *ended(C), *ended(D)]
    assert tally_cases(ledger(*lines), "slow").struck == 5


@pytest.mark.parametrize(
    ("clean", "faulty", "caught"),
    [
        (CampaignTally(frozenset({A, B}), {}), CampaignTally(frozenset({A}), {B: "failed"}), {B: "failed"}),
        (CampaignTally(frozenset({A}), {B: "failed"}), CampaignTally(frozenset({A}), {B: "failed"}), {}),
        (
            CampaignTally(frozenset({A}), {B: "failed"}),
            CampaignTally(frozenset(), {A: "timeout", B: "failed"}),
            {A: "timeout"},
        ),
        (CampaignTally(frozenset({A}), {}), CampaignTally(frozenset({A}), {C: "failed"}), {}),  # gated without it
    ],
)
def test_a_case_that_passed_without_a_fault_and_is_red_with_it_catches_it(
    clean: CampaignTally, faulty: CampaignTally, caught: dict[str, str]
) -> None:
    assert row("slow", "takes long", clean, faulty) == FaultRow("slow", "takes long", caught, 0)


CAUGHT = FaultRow("slow", "takes long", {A: "timeout", B: "failed", C: "failed", D: "failed"}, 9)
MISSED = FaultRow("event_early:0.5", "an event is early", {}, 4, stumbled=(A, B))
UNSEEN = FaultRow("device_lost", "the device fails", {}, 0)


def test_the_table() -> None:
    campaign = OrdersCampaign(4, {D: "leaked"}, (CAUGHT, MISSED, UNSEEN))
    assert orders_text(campaign) == (
        "fault            caught by\n"
        "slow                     4  test_a.py::a (timeout), test_a.py::b (failed), test_a.py::c (failed), …\n"
        "event_early:0.5     MISSED  an event is early (occurred 4 times)\n"
        "device_lost         MISSED  the device fails (never occurred)\n"
        "\n"
        "on the software device without a fault: 4 cases passed, 1 red\n"
        f"    leaked {D}\n"
        "1 of 3 faults caught; missed: event_early:0.5, device_lost\n"
        f"not counted for event_early:0.5: 2 cases in which a call in a helper raised: {A}, {B}\n"
    )
    values = json.loads(orders_json(campaign))
    assert values["device"] == "soft"
    assert values["missed"] == ["event_early:0.5", "device_lost"]
    assert values["faults"][0] == {
        "fault": "slow",
        "breaks": "takes long",
        "caught_by": {A: "timeout", B: "failed", C: "failed", D: "failed"},
        "struck": 9,
        "not_counted": [],
        "stumbled": [],
    }


@pytest.mark.parametrize(
    ("campaign", "green"),
    [
        (OrdersCampaign(4, {}, (CAUGHT,)), True),
        (OrdersCampaign(4, {D: "failed"}, (CAUGHT,)), False),
        (OrdersCampaign(4, {}, (CAUGHT, MISSED)), False),
        (OrdersCampaign(4, {}, (CAUGHT,), not_run=("slow",)), False),
    ],
)
def test_green_is_all_caught_and_nothing_red_without(campaign: OrdersCampaign, green: bool) -> None:
    assert campaign.green is green


def test_a_campaign_runs_each_fault_and_leaves_its_record(tmp_path: Path) -> None:
    clean = ledger(*ended(A), *ended(B), *ended(C), *ended(D))
    slow = ledger(*ended(A, Outcome.TIMEOUT), *ended(B), *ended(C), *ended(D))
    ran: list[tuple[str, ...]] = []
    reported: list[str] = []

    def run(name: str, *options: str, cases: Sequence[str] = ()) -> Ledger:
        ran.append((name, *options, *cases))
        return slow if name == "slow" else clean

    injections = [Injection("slow", 0.5), Injection("event_early")]
    found = run_orders(injections, run, tmp_path, device="soft", first=True, log=reported.append)
    assert found.missed == ("event_early",)
    assert found.rows[0].caught_by == {A: "timeout"}
    assert ran == [
        ("clean",),
        ("slow", "--inject=slow:0.5", "--maxfail=1"),
        ("event_early", "--inject=event_early", "--maxfail=1"),
    ]
    assert reported == ["clean: 4 passed, 0 red", "slow:0.5: caught by 1", "event_early: MISSED"]
    assert (tmp_path / TABLE).read_text(encoding="utf-8") == orders_text(found)
    assert (tmp_path / RECORD).read_text(encoding="utf-8") == orders_json(found)


def test_a_run_that_ended_at_a_helper_is_made_again_as_a_whole(tmp_path: Path) -> None:
    stumbled = ended(A, Outcome.FAILED, message="RuntimeError: 1", detail=_HELPER, struck={"slow": 1})
    seen = ended(B, Outcome.FAILED, message="assert 1 == 2", struck={"slow": 1})
    runs = {
        "clean": ledger(*ended(A), *ended(B)),
        "slow": ledger(*stumbled),
        "slow-whole": ledger(*stumbled, *seen),
    }
    found = run_orders(
        [Injection("slow")], lambda name, *_: runs[name], tmp_path, device="soft", first=True, log=lambda _: None
    )
    assert (found.rows[0].caught_by, found.rows[0].stumbled) == ({B: "failed"}, (A,))


@pytest.mark.parametrize("first", [False, True])
def test_a_doubtful_case_runs_again_alone_and_counts_if_it_is_red_again(tmp_path: Path, first: bool) -> None:
    """B failed by chance, and C in a process that B started."""
    struck = {"slow": 1}
    runs = {
        "clean": ledger(*ended(A), *ended(B), *ended(C), *ended(D)),
        "slow": ledger(*ended(A, Outcome.FAILED, struck=struck), *ended(B, Outcome.FAILED), *ended(C, Outcome.FAILED)),
        "slow-alone": ledger(*ended(B), *ended(C, Outcome.FAILED)),
    }
    ran: list[tuple[object, ...]] = []

    def run(name: str, *options: str, cases: Sequence[str] = ()) -> Ledger:
        ran.append((name, *options, *cases))
        return runs[name]

    found = run_orders([Injection("slow")], run, tmp_path, device="soft", first=first, log=lambda _: None)
    assert found.rows[0].caught_by == {A: "failed", C: "failed"}
    assert found.rows[0].not_counted == (B,)
    assert ran[2:] == [("slow-alone", "--inject=slow", "--isolation=case", B, C)]
    last = orders_text(found).splitlines()[-1]
    assert last == f"not counted for slow: 1 case in which it did not occur, green alone: {B}"


def test_the_table_names_a_few_of_the_cases_that_do_not_count() -> None:
    text = orders_text(OrdersCampaign(9, {}, (FaultRow("slow", "takes long", {A: "timeout"}, 9, (B, C, D, A)),)))
    expected = f"not counted for slow: 4 cases in which it did not occur, green alone: {B}, {C}, {D}, …"
    assert text.splitlines()[-1] == expected


def test_a_run_that_ended_at_a_case_that_does_not_count_is_done_again_whole(tmp_path: Path) -> None:
    runs = {
        "clean": ledger(*ended(A), *ended(B), *ended(C), *ended(D)),
        "slow": ledger(*ended(A, Outcome.FAILED)),
        "slow-alone": ledger(*ended(A)),
        "slow-whole": ledger(*ended(A), *ended(B, Outcome.FAILED, struck={"slow": 1}), *ended(C), *ended(D)),
    }
    ran: list[tuple[str, ...]] = []

    def run(name: str, *options: str, cases: Sequence[str] = ()) -> Ledger:
        ran.append((name, *options, *cases))
        return runs[name]

    found = run_orders([Injection("slow")], run, tmp_path, device="soft", first=True, log=lambda _: None)
    assert found.rows[0].caught_by == {B: "failed"}
    assert [each[0] for each in ran] == list(runs)
    assert ran[-1] == ("slow-whole", "--inject=slow")


def test_a_campaign_that_is_stopped_keeps_the_record_of_what_it_has_run(tmp_path: Path) -> None:
    def run(name: str, *_: str) -> Ledger:
        if name == "event_early":
            raise KeyboardInterrupt
        return ledger(*ended(A, Outcome.TIMEOUT if name == "slow" else Outcome.PASSED))

    injections = [Injection("slow"), Injection("event_early")]
    with pytest.raises(KeyboardInterrupt):
        run_orders(injections, run, tmp_path, device="soft", first=False, log=lambda _: None)
    record = json.loads((tmp_path / RECORD).read_bytes())
    assert [row["fault"] for row in record["faults"]] == ["slow"]
    assert record["not_run"] == ["event_early"]
    text = (tmp_path / TABLE).read_text(encoding="utf-8")
    assert text.endswith("1 of 1 faults caught\nnot run: event_early\n")


def test_cases_of_which_none_passes_catch_nothing(tmp_path: Path) -> None:
    def run(*_: str) -> Ledger:
        return ledger(*ended(A, Outcome.FAILED))

    with pytest.raises(CampaignError, match="no case passes without a fault"):
        run_orders([Injection("slow")], run, tmp_path, device="soft", first=False, log=lambda _: None)
