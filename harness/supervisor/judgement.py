"""Decides the outcome of one attempt from its evidence. Pure functions over plain values."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace

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
)


@dataclass(frozen=True, slots=True)
class Phase:
    """One report of a case: its phase, pytest's outcome, and whether an expected failure (xfail) was involved."""

    when: str
    outcome: str
    expected_failure: bool = False
    strict_pass: bool = False
    subtest: bool = False


#: By name, each phase as it is in nearly every case.
_PASSED = {when: Phase(when, "passed") for when in ("setup", "call", "teardown")}
_ALL_PASSED = tuple(_PASSED.values())


@dataclass(slots=True)
class Evidence:
    """All evidence about one attempt. It is complete when the attempt has ended.

    - `done`: the executor reported the end of the case. `end`: its report; otherwise empty.
    - `exit_status`: as ``os.waitstatus_to_exitcode`` returns it (negative for a signal), None while the process lives.
    - `leaving`: the executor had been asked to exit.
    - `late`: the supervisor's deadline passed.
    - `starved`: text that the case had no processor for much of the time, see `harness.checks.process`.
    - `harness_error`: an exception of the harness's own code in the executor.
    - `stopped`: why the run was stopped; the supervisor then stopped waiting.
    """

    phases: tuple[Phase, ...] = ()
    done: bool = False
    end: CaseEnd = field(default_factory=CaseEnd)
    exit_status: int | None = None
    leaving: bool = False
    late: bool = False
    stopped: str = ""
    limit: float = 0.0
    starved: str = ""
    stacks: str = ""
    garbled: str = ""
    zygote_lost: str = ""
    harness_error: RemoteFailure | None = None
    unkillable: bool = False

    @property
    def lost_by_harness(self) -> bool:
        """Whether the harness aborted the attempt, so that nothing is known about the case."""
        return bool(self.zygote_lost) or self.harness_error is not None

    @property
    def is_plain_pass(self) -> bool:
        """Whether all phases have passed, and there is nothing else to report. This is the common case."""
        ended_well = self.exit_status is None or (self.exit_status == 0 and self.leaving)
        broken = self.end.problems or self.end.raced or self.end.poison or self.end.aborted or self.end.unknown
        cut = self.late or self.stopped or self.garbled or self.unkillable
        return (
            self.done
            and self.phases == _ALL_PASSED
            and ended_well
            and not (broken or cut or self.zygote_lost)
            and self.harness_error is None
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of an attempt, one line with the reason, the phase in which it broke, and further notes."""

    outcome: Outcome
    message: str = ""
    when: str = "call"
    notes: tuple[str, ...] = field(default=())


def phase_of(report: pytest.TestReport) -> Phase:
    """Return the parts of a pytest report that a verdict needs."""
    if (
        report.passed
        and type(report) is pytest.TestReport
        and report.longrepr is None
        and not hasattr(report, "wasxfail")
    ):
        return _PASSED[report.when or "call"]
    text = report.longrepr if isinstance(report.longrepr, str) else ""
    return Phase(
        when=report.when or "call",
        outcome=report.outcome,
        expected_failure=hasattr(report, "wasxfail"),
        strict_pass=text.startswith("[XPASS(strict)]"),
        subtest=type(report) is not pytest.TestReport,
    )


def judge(seen: Evidence) -> Judgement:
    """Return the outcome of one attempt.

    Order of priority: first a fault of the harness, because all other evidence is then unreliable; then the cause that
    ended the process while the case ran; then the worst of the case's own reports and of the problems found after it.
    """
    if seen.is_plain_pass:
        return Judgement(Outcome.PASSED)
    notes = ("the executor could not be killed",) if seen.unkillable else ()
    where = _current_phase(seen)
    if seen.zygote_lost:
        return Judgement(Outcome.LOST, f"the harness lost its zygote while the case ran ({seen.zygote_lost})", where)
    if seen.harness_error is not None:
        return Judgement(Outcome.LOST, f"the harness failed (in {where}): {seen.harness_error.error}", where, notes)
    if seen.end.unknown:
        advice = "check that its id is the same in every collection"
        found = f"the executor did not collect this case; it collected {seen.end.unknown}"
        return Judgement(Outcome.LOST, f"{found}; {advice}")
    # What stops a batch job, a container or a service sends SIGTERM to all of its processes, also to the executor.
    if not seen.done and seen.stopped and seen.exit_status in (None, -signal.SIGTERM):
        return _cut_short(seen, where)
    if not seen.done:
        broken = _aborted(seen, where)
        return Judgement(broken.outcome, broken.message, where, notes)
    reported = _reported(seen)
    judgements = [reported, *_found_after(seen)]
    worst = max(judgements, key=lambda judgement: judgement.outcome.severity)
    others = tuple(
        f"also {other.outcome}: {other.message}" for other in judgements if other is not worst and other.message
    )
    if seen.stopped:
        others += (f"its process was not fully checked: {seen.stopped}",)
    return Judgement(worst.outcome, worst.message, worst.when, others + notes)


def _cut_short(seen: Evidence, where: str) -> Judgement:
    """Judge a case that a stop of the run interrupted. The case has no result, unless it had failed already."""
    if any(phase.outcome == "failed" for phase in seen.phases):
        failed = _reported(seen)
        return Judgement(failed.outcome, failed.message, failed.when, (f"{seen.stopped} (in {where})",))
    return Judgement(Outcome.NOT_RUN, f"{seen.stopped} (in {where})", where)


def _timeout(seen: Evidence, message: str, when: str = "call") -> Judgement:
    return Judgement(Outcome.TIMEOUT, f"{message}; {seen.starved}" if seen.starved else message, when)


def _aborted(seen: Evidence, where: str) -> Judgement:
    """Judge a case whose process ended, or had to be killed, before the case finished."""
    if seen.late or _timer_fired(seen):
        return _timeout(seen, f"did not finish within {seen.limit:g} s (in {where})")
    if seen.garbled:
        return Judgement(Outcome.CONTAMINATED, f"wrote to a descriptor of the harness (in {where}): {seen.garbled}")
    if (damage := _damage(seen.exit_status, f"noticed in {where}")) is not None:
        return damage
    if seen.exit_status == EXIT_NO_DEVICE and not seen.phases:
        return Judgement(Outcome.LOST, "the software device could not be loaded: see the case's standard error")
    assert seen.exit_status is not None
    return Judgement(Outcome.CRASHED, f"{format_exit_code(seen.exit_status)} in {where}")


def _reported(seen: Evidence) -> Judgement:
    """Return the outcome that the case's own reports give."""
    by_phase: dict[str, list[Phase]] = {}
    for phase in seen.phases:
        by_phase.setdefault(phase.when, []).append(phase)
    for when, outcome in (("setup", Outcome.ERROR), ("call", Outcome.FAILED), ("teardown", Outcome.ERROR)):
        failed = [phase for phase in by_phase.get(when, ()) if phase.outcome == "failed"]
        if failed:
            if all(phase.strict_pass for phase in failed):
                return Judgement(Outcome.UNEXPECTED_PASS, "passed, but is marked as expected to fail", when)
            return Judgement(outcome, "", when)
    if seen.end.interruption:
        return Judgement(Outcome.PASSED)  # reports are missing; `_found_after` adds the reason
    main = [phase for phase in seen.phases if phase.when in ("setup", "call")]
    if any(phase.expected_failure and phase.outcome == "skipped" for phase in main):
        return Judgement(Outcome.WAIVED)
    if any(phase.outcome == "skipped" for phase in by_phase.get("setup", ())) or (
        by_phase.get("call") and all(phase.outcome == "skipped" for phase in by_phase["call"])
    ):
        return Judgement(Outcome.SKIPPED)
    if seen.end.hook_error is not None:
        return Judgement(Outcome.PASSED)  # reports are missing; `_found_after` adds the hook's error
    if "call" not in by_phase or "teardown" not in by_phase:
        return Judgement(Outcome.LOST, "the executor reported the end of the case, but not every phase")
    return Judgement(Outcome.PASSED)


def _found_after(seen: Evidence) -> list[Judgement]:
    """Return the problems found after the case: in its process, on its device, and at the end of the process."""
    judgements = [Judgement(problem.outcome, problem.text) for problem in seen.end.problems]
    if seen.end.raced:
        judgements.append(Judgement(Outcome.RACED, seen.end.raced))
    if seen.end.interruption:
        when = _current_phase(seen)
        judgements.append(Judgement(Outcome.FAILED if when == "call" else Outcome.ERROR, seen.end.interruption, when))
    if seen.end.hook_error is not None:
        text = f"a hook of a plugin or conftest raised {seen.end.hook_error.error}"
        judgements.append(Judgement(Outcome.ERROR, text, _current_phase(seen)))
    if seen.end.poison:
        first = seen.end.poison.splitlines()[0]
        judgements.append(Judgement(Outcome.POISONED, f"left its device unusable: {first}"))
    if seen.late or _timer_fired(seen):
        judgements.append(_timeout(seen, f"the process did not end within {seen.limit:g} s", "teardown"))
    elif seen.exit_status is not None and (seen.exit_status != 0 or not seen.leaving):
        moment = "at interpreter exit" if seen.leaving else "after the case finished"
        if (damage := _damage(seen.exit_status, f"noticed {moment}")) is not None:
            judgements.append(replace(damage, when="teardown"))
        else:
            judgements.append(Judgement(Outcome.CRASHED, f"{format_exit_code(seen.exit_status)} {moment}", "teardown"))
    return judgements


def _damage(exit_status: int | None, when: str) -> Judgement | None:
    """Return the judgement if the executor has ended itself because a case had damaged its process."""
    if exit_status == EXIT_CHANNEL_GONE:
        return Judgement(Outcome.CONTAMINATED, f"closed or replaced a descriptor of the harness ({when})")
    if exit_status == EXIT_NO_MEMORY:
        return Judgement(Outcome.CONTAMINATED, f"left too little memory to send its report ({when})")
    return None


def _timer_fired(seen: Evidence) -> bool:
    return seen.exit_status == -WATCHDOG_SIGNAL


def _current_phase(seen: Evidence) -> str:
    """Return the phase that was running when the reports stopped."""
    reported = {phase.when for phase in seen.phases if not phase.subtest}
    if "teardown" in reported:
        return "teardown"
    if "call" in reported or any(phase.when == "setup" and phase.outcome != "passed" for phase in seen.phases):
        return "teardown"
    return "call" if "setup" in reported else "setup"
