"""The judgement of an attempt, as a table of evidence and verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.outcome import Outcome
from harness.core.text import format_exit_code
from harness.protocol.endings import (
    EXIT_CHANNEL_GONE,
    EXIT_NO_DEVICE,
    EXIT_NO_MEMORY,
    WATCHDOG_SIGNAL,
    CaseEnd,
    RemoteFailure,
    StateProblem,
)
from harness.supervisor.judgement import Evidence, Phase, judge

SETUP, CALL, TEARDOWN = (Phase(when, "passed") for when in ("setup", "call", "teardown"))
ALL = (SETUP, CALL, TEARDOWN)
PASSED = Evidence(phases=ALL, done=True)
SEGV = -11
OURS = THEIRS = RemoteFailure("E: x", "Traceback")


def _failed(when: str) -> Phase:
    return Phase(when, "failed")


def _ended(phases: tuple[Phase, ...], **found: Any) -> Evidence:
    """Return the evidence of a case at whose end the executor reported these fields of `CaseEnd`."""
    return replace(PASSED, phases=phases, end=CaseEnd(**found))


@pytest.mark.parametrize(
    ("seen", "outcome", "message"),
    [
        (PASSED, Outcome.PASSED, ""),
        (replace(PASSED, exit_status=0, leaving=True), Outcome.PASSED, ""),
        (replace(PASSED, phases=(SETUP, _failed("call"), TEARDOWN)), Outcome.FAILED, ""),
        (replace(PASSED, phases=(_failed("setup"), TEARDOWN)), Outcome.ERROR, ""),
        (replace(PASSED, phases=(SETUP, CALL, _failed("teardown"))), Outcome.ERROR, ""),
        (replace(PASSED, phases=(SETUP, _failed("call"), _failed("teardown"))), Outcome.FAILED, ""),
        (replace(PASSED, phases=(SETUP, _failed("call"), CALL, TEARDOWN)), Outcome.FAILED, ""),  # a subtest failed
        (replace(PASSED, phases=(Phase("setup", "skipped"), TEARDOWN)), Outcome.SKIPPED, ""),
        (replace(PASSED, phases=(SETUP, Phase("call", "skipped"), TEARDOWN)), Outcome.SKIPPED, ""),
        (replace(PASSED, phases=(SETUP, Phase("call", "skipped"), CALL, TEARDOWN)), Outcome.PASSED, ""),
        (replace(PASSED, phases=(SETUP, Phase("call", "skipped", True), TEARDOWN)), Outcome.WAIVED, ""),
        (replace(PASSED, phases=(Phase("setup", "skipped", True), TEARDOWN)), Outcome.WAIVED, ""),
        (replace(PASSED, phases=(SETUP, Phase("call", "passed", True), TEARDOWN)), Outcome.PASSED, ""),
        (
            replace(PASSED, phases=(SETUP, Phase("call", "failed", strict_pass=True), TEARDOWN)),
            Outcome.UNEXPECTED_PASS,
            "expected to fail",
        ),
        (replace(PASSED, phases=(SETUP,)), Outcome.LOST, "not every phase"),
        (replace(PASSED, phases=()), Outcome.LOST, "not every phase"),
        (
            replace(PASSED, phases=(SETUP,), end=CaseEnd(interruption="raised KeyboardInterrupt")),
            Outcome.FAILED,
            "KeyboardInt",
        ),
        (
            replace(PASSED, phases=(), end=CaseEnd(interruption="raised KeyboardInterrupt")),
            Outcome.ERROR,
            "KeyboardInt",
        ),
        (
            replace(PASSED, phases=(SETUP, CALL), end=CaseEnd(interruption="raised KeyboardInterrupt")),
            Outcome.ERROR,
            "KeyboardInt",
        ),
        # The process ended while the case ran.
        (Evidence(exit_status=SEGV), Outcome.CRASHED, "SIGSEGV in setup"),
        (Evidence(phases=(SETUP,), exit_status=SEGV), Outcome.CRASHED, "SIGSEGV in call"),
        (Evidence(phases=(SETUP, CALL), exit_status=SEGV), Outcome.CRASHED, "SIGSEGV in teardown"),
        (Evidence(phases=(SETUP, Phase("call", "passed", subtest=True)), exit_status=SEGV), Outcome.CRASHED, "in call"),
        (Evidence(phases=(SETUP, _failed("call")), exit_status=-6), Outcome.CRASHED, "SIGABRT in teardown"),
        (Evidence(phases=ALL, exit_status=SEGV), Outcome.CRASHED, "SIGSEGV in teardown"),
        (Evidence(phases=(SETUP,), exit_status=0), Outcome.CRASHED, "exit status 0 in call"),
        (Evidence(phases=(SETUP,), exit_status=3), Outcome.CRASHED, "exit status 3 in call"),
        (Evidence(phases=(SETUP,), exit_status=1), Outcome.CRASHED, "exit status 1 in call"),
        (
            Evidence(phases=(SETUP,), exit_status=-WATCHDOG_SIGNAL, limit=2),
            Outcome.TIMEOUT,
            "2 s (in call)",
        ),
        (Evidence(phases=(SETUP,), exit_status=SEGV, stacks="Fatal Python error"), Outcome.CRASHED, "SIGSEGV"),
        (Evidence(exit_status=-9, late=True, limit=1.5), Outcome.TIMEOUT, "1.5 s (in setup)"),
        (Evidence(exit_status=None, late=True, unkillable=True), Outcome.TIMEOUT, "in setup"),
        (Evidence(phases=(SETUP,), exit_status=EXIT_CHANNEL_GONE), Outcome.CONTAMINATED, "descriptor"),
        (Evidence(phases=(SETUP,), exit_status=EXIT_NO_MEMORY), Outcome.CONTAMINATED, "memory"),
        (Evidence(exit_status=EXIT_NO_DEVICE), Outcome.LOST, "the software device could not be loaded"),
        (Evidence(phases=(SETUP,), exit_status=EXIT_NO_DEVICE), Outcome.CRASHED, "exit status 243 in call"),
        (Evidence(phases=(SETUP,), exit_status=-15, garbled="sent b'xx'"), Outcome.CONTAMINATED, "sent b'xx'"),
        # The run was asked to stop.
        (Evidence(phases=(SETUP,), stopped="stopped"), Outcome.NOT_RUN, "stopped (in call)"),
        (Evidence(stopped="stopped"), Outcome.NOT_RUN, "stopped (in setup)"),
        # The signal that stopped the run went to all of its processes.
        (Evidence(phases=(SETUP,), exit_status=-15, stopped="stopped"), Outcome.NOT_RUN, "stopped (in call)"),
        (Evidence(phases=(SETUP,), exit_status=-15), Outcome.CRASHED, "SIGTERM in call"),
        (Evidence(phases=(SETUP, CALL), stopped="stopped"), Outcome.NOT_RUN, "stopped (in teardown)"),
        (Evidence(phases=(SETUP, _failed("call")), stopped="stopped"), Outcome.FAILED, ""),
        (Evidence(phases=(_failed("setup"),), stopped="stopped"), Outcome.ERROR, ""),
        (Evidence(phases=(SETUP,), exit_status=SEGV, stopped="stopped"), Outcome.CRASHED, "SIGSEGV in call"),
        (replace(PASSED, stopped="stopped", leaving=True), Outcome.PASSED, ""),
        # Found after the case ended.
        (replace(PASSED, exit_status=SEGV, leaving=True), Outcome.CRASHED, "SIGSEGV at interpreter exit"),
        (replace(PASSED, exit_status=7, leaving=True), Outcome.CRASHED, "exit status 7 at interpreter exit"),
        (replace(PASSED, exit_status=EXIT_NO_MEMORY, leaving=True), Outcome.CONTAMINATED, "too little memory"),
        (replace(PASSED, exit_status=EXIT_NO_MEMORY), Outcome.CONTAMINATED, "noticed after the case finished"),
        (replace(PASSED, exit_status=EXIT_CHANNEL_GONE), Outcome.CONTAMINATED, "descriptor of the harness"),
        (replace(PASSED, exit_status=0), Outcome.CRASHED, "exit status 0 after the case finished"),
        (replace(PASSED, late=True, leaving=True, exit_status=-9, limit=4), Outcome.TIMEOUT, "did not end within 4 s"),
        (_ended(ALL, poison="CUDA error: x\nmore"), Outcome.POISONED, "unusable: CUDA error: x"),
        (_ended(ALL, problems=[StateProblem(Outcome.LEAKED, "left 1")]), Outcome.LEAKED, "left 1"),
        (
            replace(PASSED, end=CaseEnd(problems=[StateProblem(Outcome.CONTAMINATED, "cwd")])),
            Outcome.CONTAMINATED,
            "cwd",
        ),
        (replace(PASSED, end=CaseEnd(raced="mul reads …")), Outcome.RACED, "mul reads …"),
        (replace(PASSED, end=CaseEnd(raced="x", problems=[StateProblem(Outcome.LEAKED, "y")])), Outcome.LEAKED, "y"),
        # The harness is to blame.
        (replace(PASSED, zygote_lost="gone"), Outcome.LOST, "gone"),
        (Evidence(exit_status=SEGV, zygote_lost="gone"), Outcome.LOST, "gone"),
        (Evidence(end=CaseEnd(unknown="2 cases, for example 'a.py::x'")), Outcome.LOST, "did not collect this case"),
        (Evidence(harness_error=OURS, exit_status=244), Outcome.LOST, "the harness failed (in setup): E: x"),
        (Evidence(phases=(SETUP,), harness_error=OURS, late=True), Outcome.LOST, "the harness failed (in call): E: x"),
        (replace(PASSED, harness_error=OURS, leaving=True, exit_status=244), Outcome.LOST, "(in teardown): E: x"),
        (Evidence(phases=(SETUP,), exit_status=244), Outcome.CRASHED, "exit status 244 in call"),
        # A hook of another plugin aborted pytest's protocol.
        (
            replace(PASSED, phases=(), end=CaseEnd(hook_error=THEIRS)),
            Outcome.ERROR,
            "a hook of a plugin or conftest raised E: x",
        ),
        (_ended(ALL, hook_error=THEIRS), Outcome.ERROR, "a hook of a plugin or conftest raised E: x"),
        (
            replace(PASSED, phases=(SETUP, _failed("call")), end=CaseEnd(hook_error=THEIRS)),
            Outcome.ERROR,
            "raised E: x",
        ),
    ],
)
def test_judge(seen: Evidence, outcome: Outcome, message: str) -> None:
    judgement = judge(seen)
    assert judgement.outcome is outcome
    assert message in judgement.message
    assert bool(judgement.message) == bool(message)


def test_the_worse_finding_is_the_verdict_and_the_other_a_note() -> None:
    judgement = judge(
        replace(
            PASSED,
            end=CaseEnd(
                problems=[StateProblem(Outcome.CONTAMINATED, "cwd"), StateProblem(Outcome.LEAKED, "child")],
                poison="bad",
            ),
        )
    )
    assert judgement.outcome is Outcome.POISONED
    assert judgement.notes == ("also contaminated: cwd", "also leaked: child")


def test_a_failure_is_not_hidden_by_what_it_left_behind() -> None:
    seen = replace(
        PASSED,
        phases=(SETUP, _failed("call"), TEARDOWN),
        end=CaseEnd(problems=[StateProblem(Outcome.CONTAMINATED, "cwd")]),
    )
    judgement = judge(seen)
    assert judgement.outcome is Outcome.FAILED
    assert judgement.notes == ("also contaminated: cwd",)


def test_an_executor_that_cannot_be_killed_is_noted() -> None:
    assert judge(Evidence(late=True, unkillable=True)).notes == ("the executor could not be killed",)


@pytest.mark.parametrize(
    ("status", "text"),
    [(0, "exit status 0"), (3, "exit status 3"), (-11, "SIGSEGV"), (-9, "SIGKILL"), (-99, "signal 99")],
)
def test_exit_text(status: int, text: str) -> None:
    assert format_exit_code(status) == text
