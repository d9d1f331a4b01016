"""Records a case that runs in the supervisor's own process, for debugging."""

from __future__ import annotations

import pytest

from harness.configuration.context import RunContext
from harness.core import clock
from harness.journal.journal import Record
from harness.supervisor import recorded_properties
from harness.supervisor.case import Case, first_line, tracebacks
from harness.supervisor.judgement import Evidence, judge, phase_of


class InlineCase:
    """Collects pytest's reports of one case, and records its start and finish."""

    def __init__(self, case: Case, context: RunContext, *, worker: str, device: str, record: Record) -> None:
        self._case = case
        self._context = context
        self._worker = worker
        self._device = device
        self._record = record
        self._reports: list[pytest.TestReport] = []
        self._begun = clock.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def start(self) -> None:
        """Record the start of the case."""
        self._record(self._case.start(attempt=1, alone=False, worker=self._worker, devices=(self._device,)))

    def finish(self, stopped: str = "") -> None:
        """Record the result. `stopped`: why the case was stopped, if it was."""
        over = any(report.when == "teardown" for report in self._reports)
        if not (over or stopped):
            return
        phases = tuple(phase_of(report) for report in self._reports)
        judgement = judge(Evidence(phases=phases, done=over, stopped=stopped))
        red = judgement.outcome.is_red
        self._record(
            self._case.finish(
                judgement.outcome,
                alone=False,
                worker=self._worker,
                devices=(self._device,),
                duration=round(clock.monotonic() - self._begun, 6),
                phases={report.when: report.duration for report in self._reports},
                message=judgement.message or first_line(self._reports),
                detail=tracebacks(self._reports),
                properties=recorded_properties.texts(self._reports),
                reproduce=self._context.reproduce(self._case.id, self._case.item.path, {}) if red else None,
            )
        )
