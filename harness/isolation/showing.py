"""What pytest is shown of a case: its own reports, or ones that stand for what pytest has no word for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.isolation import reports
from harness.isolation.attempt import Attempted
from harness.isolation.case import Case, tracebacks
from harness.isolation.course import Course, message
from harness.isolation.stacks import fold
from harness.outcome import Outcome

_ATTEMPTS_TOLD = 20


def shown(course: Course, reproduce: str) -> list[pytest.TestReport]:
    """The reports that stand for a case as a whole. `reproduce` is the command that does it again."""
    tried, outcome = course.decisive, course.outcome
    own = list(tried.reports)
    footer = ("harness", _footer(course, tried, reproduce))
    if outcome is Outcome.WAIVED and course.ruling is not None:
        return _three_phases(course.case, reports.expected(course.case.item, course.ruling.text, tried.duration))
    if outcome is Outcome.FLAKY:
        for report in own:
            report.sections.append(footer)
            if report.when == "call" or report.skipped:
                reports.mark(report, Outcome.FLAKY)
        return own
    if not outcome.is_red:
        return own
    failing = [report for report in own if report.failed]
    if failing and course.ruling is None and not tried.outcome.breaks_executor:
        for report in failing:
            report.sections.append(footer)
        return own
    when = tried.judgement.when if tried.judgement.when == "setup" else "call"
    return _three_phases(course.case, failure(course, when, reproduce), before=own)


def failure(course: Course, when: str, reproduce: str) -> pytest.TestReport:
    """The failing report of a case, in its phase `when`."""
    tried = course.decisive
    words = message(tried) if course.ruling is None else course.ruling.text
    text = f"{course.outcome}: {words}" if words else str(course.outcome)
    named = (("Captured stdout", tried.stdout), ("Captured stderr", tried.stderr))
    return reports.synthetic(
        course.case.item,
        outcome=course.outcome,
        text="\n\n".join(part for part in (text, detail(tried)) if part),
        when=when,
        duration=tried.duration,
        sections=[*((name, text) for name, text in named if text), ("harness", _footer(course, tried, reproduce))],
    )


def detail(tried: Attempted) -> str:
    """Tracebacks of failed phases, then the stacks of all threads when the process broke."""
    if not tried.evidence.stacks and not tried.outcome.is_red:
        return ""
    return "\n\n".join(part for part in (tracebacks(tried.reports), fold(tried.evidence.stacks).strip()) if part)


def kept_files(tried: Attempted) -> list[str]:
    """Where the temporary files of a red attempt are, if it made any."""
    made = tried.outcome.is_red and tried.temp.is_dir() and any(tried.temp.iterdir())
    return [f"temporary files are kept in {tried.temp}"] if made else []


def _three_phases(
    case: Case, main: pytest.TestReport, before: Sequence[pytest.TestReport] = ()
) -> list[pytest.TestReport]:
    """`main` and what makes a whole of it: plugins expect a case to have a set-up and a tear-down."""
    set_up = [report for report in before if report.when == "setup" and report.passed and main.when != "setup"]
    return [*set_up, main, reports.plain(case.item, "teardown")]


def _footer(course: Course, tried: Attempted, reproduce: str) -> str:
    lines = [f"reproduce: {reproduce}"]
    lines.append(f"device {', '.join(tried.devices)}, seed {course.case.seed}, executor {tried.executor}")
    if len(course.tries) > 1:
        lines += [_attempt_line(each) for each in course.tries[:_ATTEMPTS_TOLD]]
    if len(course.tries) > _ATTEMPTS_TOLD:
        lines.append(f"… and {len(course.tries) - _ATTEMPTS_TOLD} attempts more, see the journal")
    return "\n".join([*lines, *tried.notes, *kept_files(tried)])


def _attempt_line(tried: Attempted) -> str:
    company = "alone" if tried.alone else "after other cases"
    words = message(tried)
    return f"attempt {tried.number}, {company}: {tried.outcome}" + (f": {words}" if words else "")
