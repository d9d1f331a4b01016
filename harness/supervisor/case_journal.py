"""The journal lines of a worker's cases, and the commands that reproduce them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.configuration.context import RunContext
from harness.core import clock
from harness.core.outcome import Outcome
from harness.fixtures import kept
from harness.journal.events import Finding, Finish, Levels, Start
from harness.journal.journal import Record
from harness.supervisor import pytest_reports, recorded_properties
from harness.supervisor.attempt import Attempt
from harness.supervisor.case import Case, ruling_field
from harness.supervisor.case_history import CaseHistory
from harness.supervisor.executor_handle import ExecutorHandle, executor_device_variables


class CaseJournal:
    """Makes the lines of one worker's cases, and writes them."""

    def __init__(self, context: RunContext, worker: str, record: Record, *, verify: int = 0) -> None:
        """`record` appends lines to the journal in one write. `verify`: the value of ``--verify``."""
        self._verify = verify
        self._context = context
        self._worker = worker
        self.record = record

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
            keeps=keeps.text if (keeps := kept(history.case.item)) is not None else "",
            notes=(*attempt.notes, *pytest_reports.where_files_are(attempt)),
            properties=recorded_properties.texts(attempt.reports),
            reproduce=self.reproduce(history) if attempt.outcome.is_red or history.outcome.is_red else None,
            ruling=ruling_field(history.ruling),
        )

    def record_levels(self, history: CaseHistory, attempt: Attempt) -> None:
        """Record the values of the meters after a repetition, if they were read."""
        if levels := attempt.evidence.end.levels:
            case, number = history.case.id, attempt.number
            executor = attempt.executor
            self.record(Levels(t=clock.now(), case=case, attempt=number, executor=executor, values=levels))

    def record_abandoned(
        self, history: CaseHistory, handle: ExecutorHandle, reason: str, outcome: Outcome, *, final: bool
    ) -> None:
        """Record the end of an attempt whose executor was ended before it reported a result."""
        line = history.case.finish(
            outcome,
            attempt=history.next_number,
            alone=len(handle.cases) == 1,
            worker=self._worker,
            executor=handle.name,
            devices=handle.binding.devices,
            final=final,
            message=reason,
        )
        self.record(line)

    def record_not_run(self, case: Case, reason: str) -> None:
        self.record(case.not_run(reason, self._worker))

    def record_gated(self, case: Case) -> None:
        """Record a case with an unmet requirement."""
        assert case.unmet is not None
        self.record(case.gated(case.unmet, self._worker))

    def add_finding(self, kind: str, text: str, cases: Sequence[str], reproduce: str | None = None) -> None:
        """Record a finding: a fact that cannot be attributed to a single case."""
        self.record(Finding(t=clock.now(), kind=kind, message=text, cases=tuple(cases), reproduce=reproduce))

    def reproduce(self, history: CaseHistory) -> str:
        """Return the shell command that reproduces the outcome of a case."""
        if history.decisive.reproduce:
            return history.decisive.reproduce
        case, environment = history.case, history.decisive.environment
        variables = executor_device_variables(environment)
        return self._context.reproduce(case.id, case.item.path, variables, rule_options(history, self._verify))

    def reproduce_leak(self, cases: Sequence[Case], times: int, handle: ExecutorHandle) -> str:
        """Return a shell command that runs each case `times` times in one process, on the devices of `handle`."""
        located = [(case.id, case.item.path) for case in cases]
        listed = Path(self._context.run_dir) / "cases" / f"{handle.name}-{len(cases)}.txt"
        return self._context.reproduce_leak(
            located, times, executor_device_variables(handle.binding.environment), listed
        )


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
