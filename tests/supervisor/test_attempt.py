"""One attempt at a case: executors that are late, send invalid data, exit or fail."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.protocol.endings import EXIT_HARNESS_ERROR, RemoteFailure
from harness.supervisor.attempt import GRACE, Attempt, leave
from harness.supervisor.burst import run_attempt
from harness.supervisor.judgement import Judgement
from tests.supervisor.fakes import BINDING, DIES, FakeExecutor, FakeZygote, Script, handle_on, request

#: A limit whose deadline, which is GRACE later, is now.
OVER_AT_ONCE = -GRACE
HEAP = {"heap_bytes": 1 << 20}


def attempt(folder: Path, script: Script, **wanted: bool | float) -> tuple[Attempt, FakeZygote]:
    """Return an attempt in an executor that acts as `script` says and ends on request."""
    with handle_on(folder, script, DIES) as (handle, zygote):
        limit, last = float(wanted.get("limit", 60.0)), bool(wanted.get("leave", False))
        return run_attempt(handle, request(limit=limit, leave=last), 1), zygote


def passes(executor: FakeExecutor) -> None:
    """Act as an executor whose cases pass."""
    if executor.last_request == "run":
        executor.pass_case()
    elif executor.last_request == "exit":
        executor.send("bye")
        executor.exit(0)


def test_a_case_that_passes_leaves_its_executor_fit_for_the_next(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.print("printed")
        passes(executor)

    made, zygote = attempt(tmp_path, script)
    assert (made.outcome, made.usable, made.alone) == (Outcome.PASSED, True, True)
    assert (made.stdout, made.reports[0].sections) == ("printed", [("Captured stdout setup", "printed")])
    assert zygote.signals == []


def test_the_end_of_the_process_belongs_to_the_attempt_that_it_leaves_after(tmp_path: Path) -> None:
    made, zygote = attempt(tmp_path, passes, leave=True)
    assert (made.outcome, made.usable, made.evidence.exit_status) == (Outcome.PASSED, False, 0)
    assert zygote.executors[0].requests == ["run", "exit"]


def test_an_end_that_takes_too_long_is_a_time_out(tmp_path: Path) -> None:
    with handle_on(tmp_path, lambda _: None, DIES) as (handle, zygote):
        # Sent before the request, so that at the deadline, which is now, the case is already over.
        zygote.executors[0].send("done", suspicions={})
        made = run_attempt(handle, request(limit=OVER_AT_ONCE, leave=True), 1)
    assert made.evidence.late
    assert made.outcome is Outcome.TIMEOUT
    assert zygote.signals == [signal.SIGTERM]


def test_a_case_that_is_late_is_killed(tmp_path: Path) -> None:
    made, zygote = attempt(tmp_path, lambda executor: executor.report("setup"), limit=OVER_AT_ONCE)
    assert made.outcome is Outcome.TIMEOUT
    assert made.evidence.exit_status == -15
    assert zygote.signals == [signal.SIGTERM]
    assert not made.usable


def test_an_exit_before_the_case_is_over_is_a_crash_in_its_phase(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report("setup")
        executor.exit(-11, ["a daemon"])

    made, _ = attempt(tmp_path, script)
    assert (made.outcome, made.judgement.message) == (Outcome.CRASHED, "SIGSEGV in call")
    assert made.notes == ("killed processes that it left running: a daemon",)


@pytest.mark.parametrize(("device", "usable"), [("cpu", True), ("SOFT-0", True), ("GPU-a", False), ("MIG-a", False)])
def test_executor_of_a_red_case_runs_no_other_on_a_gpu(tmp_path: Path, device: str, usable: bool) -> None:
    """A failed capture leaves torch's generators in a state that no check reads."""

    with handle_on(tmp_path, passes, DIES, replace(BINDING, devices=(device,))) as (handle, _):
        made = run_attempt(handle, request(), 1)
    assert made.usable
    assert replace(made, judgement=Judgement(Outcome.FAILED, "assert False")).usable == usable


def test_phases_on_the_page_are_reports(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.page.begin(1)
        executor.print("of setup")
        executor.pass_phases("setup", "call", "teardown")
        executor.send("done")

    made, _ = attempt(tmp_path, script)
    assert (made.outcome, made.usable) == (Outcome.PASSED, True)
    assert [(report.when, report.outcome) for report in made.reports] == [
        (when, "passed") for when in ("setup", "call", "teardown")
    ]
    assert (made.reports[0].duration, made.reports[0].start, made.reports[0].stop) == (0.1, 1.0, 1.1)
    assert [report.sections for report in made.reports] == [[("Captured stdout setup", "of setup")], [], []]
    assert made.reports[0].location == ("a", 1, "b")


def test_a_crash_is_in_the_phase_behind_those_on_the_page(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.page.begin(1)
        executor.pass_phases("setup", "call")
        executor.exit(-11)

    made, _ = attempt(tmp_path, script)
    assert (made.outcome, made.judgement.message) == (Outcome.CRASHED, "SIGSEGV in teardown")


def test_phases_of_another_case_on_the_page_are_none_of_this_one(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.page.begin(3)
        executor.pass_phases("setup", "call")
        executor.exit(-11)

    made, _ = attempt(tmp_path, script)
    assert (made.outcome, made.judgement.message) == (Outcome.CRASHED, "SIGSEGV in setup")


def test_all_messages_sent_before_an_exit_are_received(tmp_path: Path) -> None:
    """The exit is reported on another socket, and may arrive first."""

    with handle_on(tmp_path, lambda _: None) as (handle, zygote):
        (executor,) = zygote.executors
        executor.exit(3)
        executor.send("done", suspicions={}, interruption="raised KeyboardInterrupt")
        made = run_attempt(handle, request(), 1)
    assert made.evidence.done
    assert (made.evidence.end.interruption, made.evidence.exit_status) == ("raised KeyboardInterrupt", 3)


@pytest.mark.parametrize("raw", [b"garbage\n", b'{"no": "op"}\n', b'["op"]\n', b'{"op": "whatever"}\n'])
def test_what_is_no_message_is_somebody_s_who_wrote_into_our_channel(tmp_path: Path, raw: bytes) -> None:
    made, zygote = attempt(tmp_path, lambda executor: executor.send_raw(raw))
    assert made.outcome is Outcome.CONTAMINATED
    assert "wrote to a descriptor of the harness (in setup)" in made.judgement.message
    assert zygote.signals == [signal.SIGTERM]


@pytest.mark.parametrize("fact", [b"garbage\n", b'{"op": "pass"}\n', b'{"op": "pass", "out": [1, "2"]}\n'])
def test_a_fact_that_is_none_contaminates(tmp_path: Path, fact: bytes) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.write_fact(fact)
        executor.pass_case()

    made, _ = attempt(tmp_path, script)
    assert made.outcome is Outcome.CONTAMINATED
    assert not made.usable


def test_a_fact_that_a_dying_process_left_unfinished_is_dropped(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report("setup")
        executor.write_fact(b'{"op": "pa')
        executor.exit(-9)

    made, _ = attempt(tmp_path, script)
    assert (made.outcome, made.judgement.message) == (Outcome.CRASHED, "SIGKILL in call")


def test_problems_that_are_none_contaminate(tmp_path: Path) -> None:
    made, _ = attempt(tmp_path, lambda executor: executor.pass_case(problems=[["no outcome", "text"]]))
    assert made.outcome is Outcome.CONTAMINATED


def test_a_case_that_the_zygote_did_not_collect_is_lost(tmp_path: Path) -> None:
    made, _ = attempt(tmp_path, lambda executor: executor.send("done", unknown="2 cases"))
    assert (made.outcome, made.usable) == (Outcome.LOST, False)


# A suspicion, which is checked in the same process.


def suspicious(second: Script) -> Script:
    def script(executor: FakeExecutor) -> None:
        if executor.last_request == "run":
            executor.report("setup", "call", "teardown")
            executor.send("done", suspicions=HEAP)
        elif executor.last_request == "again":
            executor.print("unheard")
            second(executor)

    return script


@pytest.mark.parametrize(
    ("grown", "left"),
    [({}, {}), ({"heap_bytes": 10}, {}), (HEAP, HEAP), ({"threads": 5}, {}), ({**HEAP, "x": 1}, HEAP)],
)
def test_what_does_not_grow_again_is_no_suspicion(tmp_path: Path, grown: dict[str, int], left: dict[str, int]) -> None:
    made, _ = attempt(tmp_path, suspicious(lambda executor: executor.send("grown", growths=grown)))
    assert (made.outcome, dict(made.suspicions), made.usable) == (Outcome.PASSED, left, True)
    assert made.stdout == ""


def test_a_second_run_that_dies_is_not_held_against_the_case(tmp_path: Path) -> None:
    made, _ = attempt(tmp_path, suspicious(lambda executor: executor.exit(-11)))
    assert (made.outcome, dict(made.suspicions)) == (Outcome.PASSED, HEAP)
    assert made.spent
    assert not made.usable


def test_a_second_run_in_which_the_harness_fails_is_not_held_against_the_case(tmp_path: Path) -> None:
    def second(executor: FakeExecutor) -> None:
        executor.send("harness_error", error="E: x", traceback="Traceback")
        executor.exit(EXIT_HARNESS_ERROR)

    made, _ = attempt(tmp_path, suspicious(second))
    assert (made.outcome, made.spent, made.evidence.harness_error) == (Outcome.PASSED, True, None)


def test_a_second_run_that_takes_the_zygote_along_is_not_held_against_the_case(tmp_path: Path) -> None:
    with handle_on(tmp_path, lambda _: None) as (handle, zygote):
        zygote.executors[0].script = suspicious(lambda _: zygote.die())
        made = run_attempt(handle, request(), 1)
    assert (made.outcome, made.spent, made.evidence.zygote_lost) == (Outcome.PASSED, True, "")


@pytest.mark.parametrize(
    "more", [{"poison": "CUDA error"}, {"interruption": "raised X"}, {"problems": [["leaked", "a child"]]}]
)
def test_what_went_wrong_is_not_run_again_for_a_suspicion(tmp_path: Path, more: dict[str, object]) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report("setup", "call", "teardown")
        executor.send("done", suspicions=HEAP, **more)

    made, zygote = attempt(tmp_path, script)
    assert zygote.executors[0].requests == ["run"]
    assert made.outcome.is_red


# Errors that are not the case's.


def test_a_zygote_that_goes_loses_the_case(tmp_path: Path) -> None:
    with handle_on(tmp_path, lambda _: None) as (handle, zygote):
        zygote.executors[0].script = lambda _: zygote.die()
        made = run_attempt(handle, request(), 1)
    assert made.outcome is Outcome.LOST
    assert made.evidence.zygote_lost == "the zygote is gone, see its log"
    assert made.evidence.lost_by_harness
    assert not made.usable


def test_an_error_of_the_harness_loses_the_case(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report("setup")
        executor.send("harness_error", error="OSError: no space", traceback="Traceback\nOSError: no space")
        executor.exit(EXIT_HARNESS_ERROR)

    made, zygote = attempt(tmp_path, script)
    assert (made.outcome, made.judgement.message) == (Outcome.LOST, "the harness failed (in call): OSError: no space")
    assert made.evidence.harness_error == RemoteFailure("OSError: no space", "Traceback\nOSError: no space")
    assert made.evidence.lost_by_harness
    assert zygote.signals == []


def test_an_error_of_the_harness_at_the_end_of_the_process_loses_the_case_too(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        if executor.last_request == "run":
            executor.pass_case()
        else:
            executor.send("harness_error", error="E: x", traceback="Traceback")
            executor.exit(EXIT_HARNESS_ERROR)

    made, _ = attempt(tmp_path, script, leave=True)
    assert (made.outcome, made.judgement.message) == (Outcome.LOST, "the harness failed (in teardown): E: x")


def test_a_status_of_the_harness_s_with_a_report_before_it_is_the_case_s(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report("setup")
        executor.exit(EXIT_HARNESS_ERROR)

    made, _ = attempt(tmp_path, script)
    assert (made.outcome, made.judgement.message) == (Outcome.CRASHED, f"exit status {EXIT_HARNESS_ERROR} in call")


def test_a_status_of_the_harness_s_without_a_word_is_looked_up_in_the_log(tmp_path: Path) -> None:
    made, _ = attempt(tmp_path, lambda executor: executor.exit(EXIT_HARNESS_ERROR))
    assert made.outcome is Outcome.LOST
    assert made.evidence.harness_error is not None
    assert made.evidence.harness_error.traceback == "the zygote's log ends with:\nwhat the log ends with"


def test_a_hook_that_raised_is_an_error_of_the_case_and_its_process_is_not_used_again(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.report("setup")
        executor.send("done", suspicions=HEAP, hook_error={"error": "ValueError: x", "traceback": "Traceback"})

    made, zygote = attempt(tmp_path, script, leave=True)
    assert (made.outcome, made.judgement.when) == (Outcome.ERROR, "call")
    assert made.judgement.message == "a hook of a plugin or conftest raised ValueError: x"
    assert zygote.executors[0].requests == ["run"]
    assert not made.usable


@pytest.mark.parametrize("wrong", ["text", {"error": 1, "traceback": ""}, {}])
def test_a_hook_error_that_is_none_contaminates(tmp_path: Path, wrong: object) -> None:
    made, _ = attempt(tmp_path, lambda executor: executor.send("done", hook_error=wrong))
    assert made.outcome is Outcome.CONTAMINATED


# Leaving


def test_what_an_executor_says_when_it_leaves_is_kept(tmp_path: Path) -> None:
    def script(executor: FakeExecutor) -> None:
        executor.send("bye", error="a fixture raised", grown=HEAP)
        executor.exit(0)

    with handle_on(tmp_path, script) as (handle, _):
        assert leave(handle, 60.0, light=False)
    assert (handle.end.error, handle.end.grown) == ("a fixture raised", HEAP)


def test_an_executor_that_does_not_exit_is_reported(tmp_path: Path) -> None:
    with handle_on(tmp_path, lambda _: None) as (handle, _):
        assert not leave(handle, OVER_AT_ONCE, light=True)
