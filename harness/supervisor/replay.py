"""The reports for a case that had its verdict before the run was interrupted. Nothing runs."""

from __future__ import annotations

import pytest

from harness.core.outcome import Outcome
from harness.protocol import reports
from harness.scheduling.resumption import Finished
from harness.supervisor.pytest_reports import expected_failure_report, passed_report, skipped, synthetic

_NOTE = "replayed: the case had this verdict before the run was resumed"


def replayed_reports(item: pytest.Item, finished: Finished) -> list[pytest.TestReport]:
    """Return the reports of the verdict, marked as replayed."""
    made = _reports(item, finished)
    for report in made:
        report.duration = finished.phases.get(report.when or "", report.duration)
        report.user_properties.append(("replayed", "true"))
        reports.attach_replayed(report)
    return made


def _reports(item: pytest.Item, finished: Finished) -> list[pytest.TestReport]:
    outcome = finished.outcome
    if outcome is Outcome.GATED:
        return [skipped(item, outcome=outcome, text=f"gated: {finished.message}")]
    if outcome is Outcome.SKIPPED:
        report = skipped(item, outcome=outcome, text=finished.message)
        reports.detach_outcome(report)
        return [report, passed_report(item, "teardown")]
    if outcome is Outcome.WAIVED:
        return [expected_failure_report(item, finished.message, finished.duration), passed_report(item, "teardown")]
    if outcome.is_red:
        return [_failed(item, finished), passed_report(item, "teardown")]
    call = passed_report(item, "call")
    if outcome is Outcome.FLAKY:
        reports.attach_outcome(call, outcome)
    return [passed_report(item, "setup"), call, passed_report(item, "teardown")]


def _failed(item: pytest.Item, finished: Finished) -> pytest.TestReport:
    lines = [_NOTE, *([f"reproduce: {finished.reproduce}"] if finished.reproduce else [])]
    report = synthetic(
        item,
        outcome=finished.outcome,
        text="\n\n".join(part for part in (finished.message, finished.detail) if part) or str(finished.outcome),
        when="setup" if finished.outcome is Outcome.ERROR else "call",
        duration=finished.duration,
        sections=[("harness", "\n".join(lines))],
    )
    if finished.outcome in (Outcome.FAILED, Outcome.ERROR):
        reports.detach_outcome(report)  # pytest itself has these outcomes
    return report
