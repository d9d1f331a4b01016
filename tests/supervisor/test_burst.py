"""Several cases per request: each attempt is the same as alone, and cases that have not begun are not blamed."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.protocol.phase_page import PHASES
from harness.protocol.wire import encode_message
from harness.supervisor.attempt import CaseRequest
from harness.supervisor.burst import Burst
from tests.supervisor.fakes import DIES, FakeExecutor, case, handle_on


def three(limit: float = 60.0) -> Sequence[CaseRequest]:
    return [CaseRequest(case(name, limit=limit)) for name in ("a", "b", "c")]


def begin(executor: FakeExecutor, case: str, at: float, out: int = 0) -> None:
    executor.write_fact(encode_message({"op": "begun", "case": case, "t": at, "out": [out, 0]}))


def test_the_attempts_of_cases_that_passed(tmp_path: Path) -> None:
    began: list[float] = []

    def script(executor: FakeExecutor) -> None:
        executor.print("of a")
        executor.report(*PHASES)
        began.append(time.time())
        begin(executor, "b", began[0], len("of a"))
        executor.print("of b")
        executor.report(*PHASES)
        began.append(time.time())
        begin(executor, "c", began[1], len("of aof b"))
        executor.report(*PHASES)
        executor.send("done")

    before = time.time()
    with handle_on(tmp_path, script, DIES) as (handle, zygote):
        burst = Burst(handle, three(), (1, 2, 1))
        made = [burst.result(place) for place in range(3)]
        assert burst.over
        assert burst.last is made[2]
        assert handle.cases == ["a", "b", "c"]
        assert zygote.executors[0].requests == ["run"]
    assert [attempt.outcome for attempt in made] == [Outcome.PASSED] * 3
    assert [attempt.usable for attempt in made] == [True] * 3
    assert [attempt.number for attempt in made] == [1, 2, 1]
    assert [attempt.alone for attempt in made] == [True, False, False]
    assert [attempt.stdout for attempt in made] == ["of a", "of b", ""]
    assert made[1].reports[0].sections == [("Captured stdout setup", "of b")]
    assert [burst.begun_at(1), burst.begun_at(2)] == [made[0].ended, made[1].ended] == began
    assert made[1].duration == began[1] - began[0]
    assert before <= burst.begun_at(0) <= began[0] <= began[1] <= made[2].ended <= time.time()


def test_phases_on_the_page_are_of_the_case_that_wrote_them(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.page.begin(1)
        executor.print("of a")
        executor.pass_phases(*PHASES)
        passed = executor.page.written
        executor.write_fact(encode_message({"op": "begun", "case": "b", "t": 4e9, "out": [4, 0], "passed": passed}))
        executor.page.begin(2)
        executor.pass_phases("setup")
        executor.exit(-11)

    with handle_on(tmp_path, script, DIES) as (handle, _):
        burst = Burst(handle, three(), (1, 1, 1))
        first, second = burst.result(0), burst.result(1)
    assert (first.outcome, [report.when for report in first.reports]) == (Outcome.PASSED, list(PHASES))
    assert first.reports[0].sections == [("Captured stdout setup", "of a")]
    assert (second.outcome, second.judgement.message) == (Outcome.CRASHED, "SIGSEGV in call")


def test_an_attempt_in_silence_may_be_made_after_the_files_were_emptied(tmp_path: Path) -> None:
    """The next request is sent first, so that the executor need not wait."""

    def script(executor: FakeExecutor) -> None:
        executor.page.begin(len(executor.requests))
        if len(executor.requests) == 1:
            executor.pass_phases(*PHASES)
            passed = executor.page.written
            executor.write_fact(encode_message({"op": "begun", "case": "b", "t": 4e9, "out": [0, 0], "passed": passed}))
            executor.page.begin(2)
            executor.print("x" * (2 << 20))
        else:
            executor.page.begin(3)
            executor.print("of c")
        executor.pass_phases(*PHASES)
        executor.send("done")

    a, b, c = three()
    with handle_on(tmp_path, script, DIES) as (handle, _):
        burst = Burst(handle, [a, b], (1, 1))
        second = burst.result(1)
        assert burst.last is second
        following = Burst(handle, [c], (1,))
        third = following.result(0)
        marks = handle.marks
        first = burst.result(0)
        assert (burst.result(0), handle.marks) == (first, marks)
    assert [attempt.outcome for attempt in (first, second, third)] == [Outcome.PASSED] * 3
    assert [report.when for report in first.reports] == list(PHASES)
    assert (first.stdout, len(second.stdout) > 1000, third.stdout) == ("", True, "of c")
    assert [report.sections for report in first.reports] == [[], [], []]


def test_a_case_that_died_before_it_wrote_to_the_page_has_no_phases(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.page.begin(1)
        executor.pass_phases(*PHASES)
        passed = executor.page.written
        executor.write_fact(encode_message({"op": "begun", "case": "b", "t": 4e9, "out": [0, 0], "passed": passed}))
        executor.exit(-11)

    with handle_on(tmp_path, script, DIES) as (handle, _):
        burst = Burst(handle, three(), (1, 1, 1))
        second = burst.result(1)
    assert (second.outcome, second.judgement.message) == (Outcome.CRASHED, "SIGSEGV in setup")


def test_a_request_to_stop_lets_no_further_case_begin(tmp_path: Path) -> None:
    """The running case ends within the grace, and the executor is reported before that."""
    held: list[bool] = []

    def script(executor: FakeExecutor) -> None:
        zygote.request_stop(grace=3600)
        deadline = time.monotonic() + 60
        while not executor.page.held and time.monotonic() < deadline:
            time.sleep(0.001)
        held.append(executor.page.held)
        executor.pass_case()

    with handle_on(tmp_path, script, DIES) as (handle, zygote):
        burst = Burst(handle, three(limit=3600), (1, 1, 1))
        assert burst.result(0).outcome is Outcome.PASSED
        assert burst.over
        assert burst.ran == 1
    assert held == [True]


@pytest.mark.parametrize("passed", [3, "abc", [3], [[0, 1.0]]])
def test_phases_that_are_none_contaminate_the_case_before(tmp_path: Path, passed: object) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report(*PHASES)
        executor.write_fact(encode_message({"op": "begun", "case": "b", "t": 4e9, "out": [0, 0], "passed": passed}))

    with handle_on(tmp_path, script, DIES) as (handle, _):
        burst = Burst(handle, three(), (1, 1, 1))
        assert burst.result(0).outcome is Outcome.CONTAMINATED
        assert burst.ran == 1


@pytest.mark.parametrize("at", [0.0, -1.0, 1e300, float("nan"), float("inf")])
def test_a_clock_that_a_case_has_changed_changes_no_time_of_the_journal(tmp_path: Path, at: float) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report(*PHASES)
        begin(executor, "b", at)
        executor.report(*PHASES)
        executor.send("done")

    before = time.time()
    with handle_on(tmp_path, script, DIES) as (handle, _):
        burst = Burst(handle, three(), (1, 1, 1))
        assert [burst.result(place).outcome for place in range(2)] == [Outcome.PASSED] * 2
        assert before <= burst.begun_at(0) <= burst.begun_at(1) <= time.time()


def test_the_first_case_is_known_to_have_ended_while_the_second_one_runs(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report(*PHASES)
        begin(executor, "b", 4e9)

    with handle_on(tmp_path, script, DIES) as (handle, zygote):
        burst = Burst(handle, three(), (1, 1, 1))
        assert burst.result(0).outcome is Outcome.PASSED
        assert not burst.over
        assert burst.last is None
        zygote.executors[0].report(*PHASES)
        zygote.executors[0].send("done")
        assert burst.result(1).outcome is Outcome.PASSED
        assert burst.over
        assert burst.ran == 2


def test_the_case_that_ran_is_blamed_for_the_end_of_the_process(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report(*PHASES)
        begin(executor, "b", 4e9)
        executor.report("setup")
        executor.exit(-11, ["a daemon"])

    with handle_on(tmp_path, script, DIES) as (handle, _):
        burst = Burst(handle, three(), (1, 1, 1))
        first, second = burst.result(0), burst.result(1)
        assert burst.ran == 2
        assert burst.last is None
        assert handle.cases == ["a", "b"]
    assert (first.outcome, first.usable, first.notes) == (Outcome.PASSED, True, ())
    assert (second.outcome, second.judgement.message) == (Outcome.CRASHED, "SIGSEGV in call")
    assert second.notes == ("killed processes that it left running: a daemon",)


def test_what_is_said_at_the_end_is_of_the_last_case_that_began(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report(*PHASES)
        begin(executor, "b", 4e9)
        executor.report(*PHASES)
        executor.send("done", problems=[["contaminated", "left a mess"]])

    with handle_on(tmp_path, script, DIES) as (handle, _):
        burst = Burst(handle, three(), (1, 1, 1))
        assert burst.result(0).outcome is Outcome.PASSED
        assert burst.last is None
        second = burst.result(1)
    assert (second.outcome, second.usable) == (Outcome.CONTAMINATED, False)


def test_a_case_that_is_late_is_killed(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report(*PHASES)
        begin(executor, "b", 4e9)
        executor.report("setup")

    with handle_on(tmp_path, script, DIES) as (handle, zygote):
        requests = three()
        burst = Burst(handle, [requests[0], CaseRequest(case("b", limit=-4.9)), requests[2]], (1, 1, 1))
        assert burst.result(0).outcome is Outcome.PASSED
        assert burst.result(1).outcome is Outcome.TIMEOUT
        assert zygote.signals == [signal.SIGTERM]


def test_a_file_of_facts_that_a_case_has_written_to_is_not_believed(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report("setup")
        executor.write_fact(b"what a case writes\n")
        begin(executor, "b", 4e9)

    with handle_on(tmp_path, script, DIES) as (handle, _):
        burst = Burst(handle, three(), (1, 1, 1))
        assert burst.result(0).outcome is Outcome.CONTAMINATED
        assert burst.ran == 1
        assert burst.over


def test_a_case_that_was_not_asked_for_is_not_believed(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report(*PHASES)
        begin(executor, "another", 4e9)

    with handle_on(tmp_path, script, DIES) as (handle, _):
        burst = Burst(handle, three(), (1, 1, 1))
        assert burst.result(0).outcome is Outcome.CONTAMINATED
