"""Pytest's session as the supervisor uses it: the reports that it gets, and the changes by code in executors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import pytest

from harness.core import clock
from harness.core.outcome import Outcome
from harness.journal.events import SessionProperty
from harness.protocol import worker_messages
from harness.protocol.endings import SessionNews
from harness.supervisor import pytest_reports
from harness.supervisor.case import Case
from harness.supervisor.case_history import CaseHistory, message
from harness.supervisor.case_lines import CaseLines
from harness.supervisor.worker_journal import WorkerJournal


class Controller(Protocol):
    """What a worker needs of its controller, in its own process or beyond xdist's channel."""

    def report_late(self, report: pytest.TestReport) -> None:
        """Give pytest another report on a case that was already reported."""
        ...

    def report_write_failure(self, text: str) -> None:
        """Report that a file of the run could not be written."""
        ...

    def handling_signals(self) -> AbstractContextManager[None]:
        """Return a context around a case, in which this process handles the signals that end a run."""
        ...


class PytestSession:
    """Gives pytest the reports of cases, and applies to its session what code in executors requested."""

    def __init__(self, controller: Controller, lines: CaseLines, journal: WorkerJournal) -> None:
        self._controller = controller
        self._lines = lines
        self._journal = journal
        #: Known from the first case on.
        self._session: pytest.Session | None = None

    def begin_case(self, item: pytest.Item) -> None:
        """Note that pytest asks for this item."""
        self._session = item.session

    def report(self, history: CaseHistory) -> None:
        """Report the verdict of a case, with the warnings of the attempt that explains it."""
        item = history.case.item
        for warning in (*history.decisive.warnings, *pytest_reports.lost_dependency(item, history.decisive)):
            pytest_reports.show_warning(item, warning)
        if history.outcome is Outcome.NOT_RUN:
            self.report_not_run(history.case, message(history.decisive))
        else:
            pytest_reports.log(item, pytest_reports.case_reports(history, partial(self._lines.reproduce, history)))

    def report_gated(self, case: Case) -> None:
        """Report a case with an unmet requirement."""
        assert case.unmet is not None
        pytest_reports.log(case.item, [pytest_reports.gated(case.item, case.unmet.text, case.objection)])

    def report_not_run(self, case: Case, reason: str) -> None:
        """Report a case that could not be run."""
        pytest_reports.log(case.item, [pytest_reports.skipped(case.item, outcome=Outcome.NOT_RUN, text=reason)])

    def report_late(self, history: CaseHistory) -> None:
        """Report a case as red, after pytest got another outcome for it."""
        report = pytest_reports.failure_report(history, "teardown", self._lines.reproduce(history))
        self._controller.report_late(report)

    def apply_attempts(self, history: CaseHistory) -> None:
        """Give pytest's session what a case requested from its copy of the session."""
        for attempt in history.attempts:
            self.apply(attempt.evidence.end.session)
        interruption = history.attempts[-1].evidence.end.interruption
        if interruption.startswith("raised Exit"):
            history.case.item.session.shouldstop = interruption

    def apply(self, news: SessionNews) -> None:
        """Apply the changes by code in an executor to pytest's session. Properties go into the journal."""
        if not news or self._session is None:
            return
        for name, reason in news.ends.items():
            setattr(self._session, name, reason)
        if news.failed:
            self._session.testsfailed += news.failed
            worker_messages.send_failed(self._session.config, news.failed)
        if news.properties:
            self._journal.record(
                *(SessionProperty(t=clock.now(), name=name, value=value) for name, value in news.properties)
            )
