"""The reports for a replayed verdict."""

from __future__ import annotations

from typing import cast

import pytest

from harness import plugin
from harness.core.outcome import Outcome
from harness.scheduling.workers import Finished
from harness.supervisor import case_reports
from tests.supervisor.fakes import FakeItem


def shown(outcome: Outcome) -> list[pytest.TestReport]:
    finished = Finished(outcome, "why", "Traceback", 2.0, {"setup": 0.5, "call": 1.0, "teardown": 0.25}, "pytest x")
    return case_reports.replayed_reports(cast(pytest.Item, FakeItem()), finished)


def category(report: pytest.TestReport) -> str:
    """Return pytest's category for the report: with the harness's words, otherwise with pytest's own."""
    ours = plugin.pytest_report_teststatus(report)
    if ours is not None:
        return ours[0]
    if report.passed:
        return ""
    if report.failed:
        return "failed" if report.when == "call" else "error"
    return "xfailed" if hasattr(report, "wasxfail") else "skipped"


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (Outcome.PASSED, "passed"),
        (Outcome.FLAKY, "flaky"),
        (Outcome.WAIVED, "xfailed"),
        (Outcome.SKIPPED, "skipped"),
        (Outcome.GATED, "gated"),
        (Outcome.FAILED, "failed"),
        (Outcome.ERROR, "error"),
        *((outcome, "failed") for outcome in (Outcome.CRASHED, Outcome.TIMEOUT, Outcome.LEAKED, Outcome.LOST)),
    ],
)
def test_a_verdict_counts_once_and_as_it_did(outcome: Outcome, counted: str) -> None:
    found = shown(outcome)
    assert [category(report) for report in found if category(report)] == [counted]
    assert all(("replayed", "true") in report.user_properties for report in found)
    assert len({report.when for report in found}) == len(found)


def test_a_replayed_case_looks_replayed() -> None:
    call = shown(Outcome.PASSED)[1]
    assert plugin.pytest_report_teststatus(call) == ("passed", ".", ("PASSED (replayed)", {"green": True}))
    assert (call.duration, call.outcome) == (1.0, "passed")
    assert plugin.pytest_report_teststatus(shown(Outcome.PASSED)[0]) is None


def test_a_red_case_tells_what_it_reported_before() -> None:
    (report, _) = shown(Outcome.CRASHED)
    assert report.longreprtext == "why\n\nTraceback"
    assert report.harness_outcome == "crashed"
    ((_, footer),) = report.sections
    assert footer.splitlines() == [
        "replayed: the case had this verdict before the run was resumed",
        "reproduce: pytest x",
    ]
