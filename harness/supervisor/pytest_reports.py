"""The reports that pytest gets for a case: its own, or synthetic ones for outcomes that pytest does not have."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import pytest

from harness.core.outcome import Outcome, Ruling
from harness.protocol import reports
from harness.protocol.compact_reports import REPORT_BUNDLER
from harness.protocol.reports import RecordedWarning
from harness.scheduling.resumption import Finished
from harness.supervisor import executor_files
from harness.supervisor.attempt import Attempt
from harness.supervisor.case import Case, tracebacks
from harness.supervisor.case_history import CaseHistory, message
from harness.supervisor.executor_handle import basetemp_of

_ATTEMPTS_LISTED = 20


def case_reports(history: CaseHistory, reproduce: Callable[[], str]) -> list[pytest.TestReport]:
    """Return the reports of a case as a whole. `reproduce` returns the command that runs it again."""
    attempt, outcome = history.decisive, history.outcome
    own = list(attempt.reports)
    if outcome is Outcome.WAIVED and history.ruling is not None:
        return _three_phases(
            history.case, expected_failure_report(history.case.item, history.ruling.text, attempt.duration)
        )
    if not outcome.is_red and outcome is not Outcome.FLAKY:
        return own
    command = reproduce()
    footer = ("harness", _footer(history, attempt, command))
    if outcome is Outcome.FLAKY:
        for report in own:
            report.sections.append(footer)
            if report.when == "call" or report.skipped:
                reports.attach_outcome(report, Outcome.FLAKY)
        return own
    failing = [report for report in own if report.failed]
    if failing and history.ruling is None and not attempt.outcome.breaks_executor:
        for report in failing:
            report.sections.append(footer)
        return own
    when = attempt.judgement.when if attempt.judgement.when == "setup" else "call"
    return _three_phases(history.case, failure_report(history, when, command), before=own)


def failure_report(history: CaseHistory, when: str, reproduce: str) -> pytest.TestReport:
    """Return the failing report of a case, in its phase `when`."""
    attempt = history.decisive
    reason = message(attempt) if history.ruling is None else history.ruling.text
    text = f"{history.outcome}: {reason}" if reason else str(history.outcome)
    named = (("Captured stdout", attempt.stdout), ("Captured stderr", attempt.stderr))
    return synthetic(
        history.case.item,
        outcome=history.outcome,
        text="\n\n".join(part for part in (text, detail(attempt)) if part),
        when=when,
        duration=attempt.duration,
        sections=[*((name, text) for name, text in named if text), ("harness", _footer(history, attempt, reproduce))],
    )


def detail(attempt: Attempt) -> str:
    """Return the tracebacks of failed phases and of errors that aborted them, then the stacks of all threads."""
    seen = attempt.evidence
    if not seen.stacks and not attempt.outcome.is_red:
        return ""
    raised = [error.traceback.strip() for error in (seen.harness_error, seen.end.hook_error) if error is not None]
    return "\n\n".join(
        part for part in (tracebacks(attempt.reports), *raised, fold_stacks(seen.stacks).strip()) if part
    )


def where_files_are(attempt: Attempt) -> list[str]:
    """Return where the temporary files of a red attempt are, or will be when its executor has ended.

    The list is empty if there are none.
    """
    if not attempt.outcome.is_red:
        return []
    folders = (attempt.temp, basetemp_of(attempt.temp))
    made = attempt.kept.is_dir() or any(
        executor_files.has_files_to_keep(folder, executor_files.is_shared_default_cache) for folder in folders
    )
    return [executor_files.kept_files_note(attempt.kept)] if made else []


def _three_phases(
    case: Case, main: pytest.TestReport, before: Sequence[pytest.TestReport] = ()
) -> list[pytest.TestReport]:
    """Return `main` with reports of the other phases: plugins expect a setup and a teardown of each case."""
    set_up = [report for report in before if report.when == "setup" and report.passed and main.when != "setup"]
    return [*set_up, main, passed_report(case.item, "teardown")]


def _footer(history: CaseHistory, attempt: Attempt, reproduce: str) -> str:
    lines = [f"reproduce: {reproduce}"]
    lines.append(f"device {', '.join(attempt.devices)}, seed {history.case.seed}, executor {attempt.executor}")
    if len(history.attempts) > 1:
        lines += [_attempt_line(earlier) for earlier in history.attempts[:_ATTEMPTS_LISTED]]
    if len(history.attempts) > _ATTEMPTS_LISTED:
        lines.append(f"… and {len(history.attempts) - _ATTEMPTS_LISTED} more attempts, see the journal")
    return "\n".join([*lines, *attempt.notes, *where_files_are(attempt)])


def _attempt_line(attempt: Attempt) -> str:
    place = "alone" if attempt.alone else "after other cases"
    reason = message(attempt)
    return f"attempt {attempt.number}, {place}: {attempt.outcome}" + (f": {reason}" if reason else "")


def synthetic(
    item: pytest.Item,
    *,
    outcome: Outcome,
    text: str,
    when: str = "call",
    duration: float = 0.0,
    sections: Sequence[tuple[str, str]] = (),
) -> pytest.TestReport:
    """Return a failing report for an outcome that pytest does not have (crashed, timeout, leaked …)."""
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when=reports.parse_phase_name(when),
        sections=sections,
        duration=duration,
    )
    reports.attach_outcome(report, outcome)
    return report


def skipped(item: pytest.Item, *, outcome: Outcome, text: str) -> pytest.TestReport:
    """Return the only report, of the setup phase, of a case that was deliberately not run."""
    path, line, _ = item.location
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="skipped",
        longrepr=(str(path), (line or 0) + 1, text),
        when="setup",
    )
    reports.attach_outcome(report, outcome)
    return report


def gated(item: pytest.Item, why: str, objection: Ruling | None) -> pytest.TestReport:
    """Return the report of a case with an unmet requirement: a skip, or a failure if the run has an `objection`."""
    if objection is None:
        return skipped(item, outcome=Outcome.GATED, text=f"gated: {why}")
    return synthetic(item, outcome=objection.outcome, text=objection.text, when="setup")


def expected_failure_report(item: pytest.Item, reason: str, duration: float) -> pytest.TestReport:
    """Return the report of a case that failed as a waiver expects: for pytest, an expected failure."""
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="skipped",
        longrepr=reason,
        when="call",
        duration=duration,
    )
    report.wasxfail = reason
    return report


def passed_report(item: pytest.Item, when: str) -> pytest.TestReport:
    """Return a passed report with no duration, for a phase that the executor did not report."""
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="passed",
        longrepr=None,
        when=reports.parse_phase_name(when),
    )


def lost_dependency(item: pytest.Item, attempt: Attempt) -> list[RecordedWarning]:
    """Return a warning about a test of pytest-dependency that was skipped in a process that is not its worker's first.

    The plugin keeps the results of the tests that others depend on in the process that ran them.
    """
    mark = item.get_closest_marker("dependency")
    first = attempt.executor.endswith("-e1")
    if attempt.outcome is not Outcome.SKIPPED or mark is None or not mark.kwargs.get("depends") or first:
        return []
    text = (
        f"{item.nodeid} was skipped in executor {attempt.executor}: results that it depends on may have ended with the "
        "process of another executor; with --isolation=none all tests have one process"
    )
    file, line, _ = item.location
    warning = warnings.WarningMessage(pytest.PytestWarning(text), pytest.PytestWarning, file, (line or 0) + 1)
    return [RecordedWarning(warning, "runtest")]


def show_warning(item: pytest.Item, recorded: RecordedWarning) -> None:
    """Have pytest record a warning on `item`."""
    arguments = {"warning_message": recorded.warning, "when": recorded.when, "nodeid": item.nodeid, "location": None}
    item.config.hook.pytest_warning_recorded.call_historic(kwargs=arguments)


def log(item: pytest.Item, shown: Sequence[pytest.TestReport]) -> None:
    """Report the result of `item` to pytest, and so to every other plugin."""
    bundling = item.config.stash.get(REPORT_BUNDLER, None)
    if bundling is not None and bundling.log(item, shown):
        return
    location = shown[0].location
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=location)
    for report in shown:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=location)


def log_text(shown: Sequence[pytest.TestReport]) -> str:
    """Return the log output of the phases."""
    return "\n".join(text for report in shown for name, text in report.sections if name.startswith("Captured log"))


_FRAME = "  File "
_MACHINERY = ("/_pytest/", "/pluggy/", "/harness/executor/", "/harness/zygote/", '"<frozen runpy>"')


def fold_stacks(text: str) -> str:
    """Return the stacks without the frames below each test: about thirty frames of pytest and of this harness.

    A stack that has only such frames is kept whole, because the fault may then be in the harness. The list of extension
    modules at the end of a fatal error is dropped.
    """
    return "\n".join(_folded(text.splitlines()))


def _folded(lines: list[str]) -> Iterator[str]:
    stack: list[str] = []
    for line in [*lines, ""]:
        if line.startswith(_FRAME):
            stack.append(line)
            continue
        yield from _without_machinery(stack)
        stack = []
        if not line.startswith("Extension modules: "):
            yield line


def _without_machinery(stack: list[str]) -> list[str]:
    below = sum(1 for _ in takewhile(lambda line: any(part in line for part in _MACHINERY), reversed(stack)))
    if below in (0, 1, len(stack)):
        return stack
    return [*stack[:-below], f"  [… {below} frames of pytest and the harness …]"]


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
