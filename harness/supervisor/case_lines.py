"""Makes the journal lines of a worker's cases, and the commands that reproduce them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.configuration.context import RunContext
from harness.core import clock
from harness.core.outcome import Outcome
from harness.journal.events import Finish, Levels, Start
from harness.supervisor import pytest_reports, recorded_properties
from harness.supervisor.attempt import Attempt
from harness.supervisor.binding import variables_of_devices
from harness.supervisor.case import Case, ruling_field
from harness.supervisor.case_history import CaseHistory
from harness.supervisor.executor_handle import ExecutorHandle


class CaseLines:
    """Makes the lines of one worker's cases. It writes nothing."""

    def __init__(self, context: RunContext, worker: str, *, verify: int = 0) -> None:
        """`verify`: the value of ``--verify``."""
        self._verify = verify
        self._context = context
        self._worker = worker

    def start(self, history: CaseHistory, handle: ExecutorHandle, *, alone: bool, at: float | None = None) -> Start:
        """Return the `start` line of the next attempt. `at`: when it began, if earlier than now."""
        return history.case.start(
            attempt=history.next_number,
            alone=alone,
            worker=self._worker,
            at=at,
            executor=handle.name,
            devices=handle.binding.devices,
            pid=handle.pid,
        )

    def finish(self, history: CaseHistory, attempt: Attempt, *, final: bool) -> Finish:
        """Return the `finish` line of an attempt that is in the history."""
        moment = {} if attempt.ended is None else {"t": attempt.ended}
        return history.case.finish(
            attempt.outcome,
            **moment,
            attempt=attempt.number,
            alone=attempt.alone,
            worker=self._worker,
            executor=attempt.executor,
            devices=attempt.devices,
            final=final,
            duration=round(attempt.duration, 6),
            phases={report.when: report.duration for report in attempt.reports},
            message=history.message,
            detail=pytest_reports.detail(attempt),
            stdout=attempt.stdout,
            stderr=attempt.stderr,
            log=pytest_reports.log_text(attempt.reports),
            exit_status=attempt.evidence.exit_status,
            struck=attempt.evidence.end.struck,
            memory={**attempt.memory},
            keeps=history.case.keeps,
            notes=(*attempt.notes, *pytest_reports.where_files_are(attempt)),
            properties=recorded_properties.texts(attempt.reports),
            reproduce=self.reproduce(history) if attempt.outcome.is_red or history.outcome.is_red else None,
            ruling=ruling_field(history.ruling),
        )

    def levels(self, history: CaseHistory, attempt: Attempt) -> Sequence[Levels]:
        """Return the line with the values of the meters after a repetition, if they were read."""
        values = attempt.evidence.end.levels
        if not values:
            return ()
        case, number = history.case.id, attempt.number
        return (Levels(t=clock.now(), case=case, attempt=number, executor=attempt.executor, values=values),)

    def abandoned(
        self, history: CaseHistory, handle: ExecutorHandle, reason: str, outcome: Outcome, *, final: bool
    ) -> Finish:
        """Return the end of an attempt whose executor was ended before it reported a result."""
        return history.case.finish(
            outcome,
            attempt=history.next_number,
            alone=len(handle.cases) == 1,
            worker=self._worker,
            executor=handle.name,
            devices=handle.binding.devices,
            final=final,
            message=reason,
        )

    def reproduce(self, history: CaseHistory) -> str:
        """Return the shell command that reproduces the outcome of a case."""
        if history.decisive.reproduce:
            return history.decisive.reproduce
        case, environment = history.case, history.decisive.environment
        variables = variables_of_devices(environment)
        return self._context.reproduce(case.id, case.item.path, variables, rule_options(history, self._verify))

    def reproduce_leak(self, cases: Sequence[Case], times: int, handle: ExecutorHandle) -> str:
        """Return a shell command that runs each case `times` times in one process, on the devices of `handle`."""
        located = [(case.id, case.item.path) for case in cases]
        listed = Path(self._context.run_dir) / "cases" / f"{handle.name}-{len(cases)}.txt"
        return self._context.reproduce_leak(located, times, handle.binding.device_variables, listed)


def rule_options(history: CaseHistory, verify: int) -> list[str]:
    """Return the options that keep the rules for this case.

    Without them, another rule or none would decide its outcome.
    """
    files = dict.fromkeys(waiver.source.rpartition(":")[0] for waiver in history.case.waivers)
    # A waiver from a mark of the case has the test file as its source.
    options = [f"--waivers={file}" for file in files if not file.endswith(".py")]
    kind, _, value = ("" if history.ruling is None else history.ruling.source).partition(" ")
    if kind in ("profile", "repeat"):
        options.append(f"--{kind}={value}")
    return [*options, *([f"--verify={verify}"] if kind == "--verify" else [])]
