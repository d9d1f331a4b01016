"""What becomes of a case: the lines of the journal, and the reports that pytest gets.

Pytest gets its own reports, or synthetic ones for outcomes that pytest does not have.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Literal, Protocol

import pytest

from harness.configuration.context import RunContext
from harness.core import clock
from harness.core.outcome import Outcome
from harness.core.text import escape_invalid_xml, truncate_middle
from harness.journal.events import Finish, Levels, SessionProperty, Start
from harness.journal.journal import WorkerJournal
from harness.protocol import reports, worker_messages
from harness.protocol.compact_reports import REPORT_BUNDLER
from harness.protocol.endings import SessionNews
from harness.protocol.reports import RecordedWarning
from harness.scheduling.workers import Finished
from harness.supervisor import executor_files
from harness.supervisor.attempt import Attempt, CaseHistory, message
from harness.supervisor.case import Case, ruling_field, tracebacks
from harness.supervisor.executor_handle import ExecutorHandle, basetemp_of, variables_of_devices

#: The most properties that are kept of a case, and the most characters of a name and of a value.
MOST_PROPERTIES = 100
MOST_OF_NAME, MOST_OF_VALUE = 200, 2000


def property_texts(reports: Sequence[pytest.TestReport]) -> tuple[tuple[str, str], ...]:
    """Return names and values in the order in which they were recorded.

    Each report includes the properties of the previous phases, so the last report that has any has all.
    """
    recorded = next((report.user_properties for report in reversed(reports) if report.user_properties), [])
    properties = tuple(
        (_property_text(name, MOST_OF_NAME), _property_text(value, MOST_OF_VALUE))
        for name, value in recorded[:MOST_PROPERTIES]
    )
    more = len(recorded) - MOST_PROPERTIES
    return (*properties, ("more properties", str(more))) if more > 0 else properties


def _property_text(value: object, most: int) -> str:
    if not isinstance(value, str):
        try:
            value = str(value)
        except Exception as error:  # noqa: BLE001 - a value of the user's, where the case ran in this process
            value = f"<{type(value).__name__}, whose text cannot be had: {type(error).__name__}>"
    return escape_invalid_xml(truncate_middle(value, most))


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
        text="\n\n".join(part for part in (text, detail_of(attempt)) if part),
        when=when,
        duration=attempt.duration,
        sections=[*((name, text) for name, text in named if text), ("harness", _footer(history, attempt, reproduce))],
    )


def detail_of(attempt: Attempt) -> str:
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


def _report(
    item: pytest.Item,
    outcome: Literal["passed", "failed", "skipped"],
    text: str | tuple[str, int, str] | None,
    when: str,
    duration: float = 0.0,
    sections: Sequence[tuple[str, str]] = (),
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=text,
        when=reports.parse_phase_name(when),
        sections=sections,
        duration=duration,
    )


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
    report = _report(item, "failed", text, when, duration, sections)
    reports.attach_outcome(report, outcome)
    return report


def skipped_report(item: pytest.Item, *, outcome: Outcome, text: str) -> pytest.TestReport:
    """Return the only report, of the setup phase, of a case that was deliberately not run."""
    path, line, _ = item.location
    report = _report(item, "skipped", (str(path), (line or 0) + 1, text), "setup")
    reports.attach_outcome(report, outcome)
    return report


def expected_failure_report(item: pytest.Item, reason: str, duration: float) -> pytest.TestReport:
    """Return the report of a case that failed as a waiver expects: for pytest, an expected failure."""
    report = _report(item, "skipped", reason, "call", duration)
    report.wasxfail = reason
    return report


def passed_report(item: pytest.Item, when: str) -> pytest.TestReport:
    """Return a passed report with no duration, for a phase that the executor did not report."""
    return _report(item, "passed", None, when)


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


def log_reports(item: pytest.Item, shown: Sequence[pytest.TestReport]) -> None:
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
    made = _reports_before(item, finished)
    for report in made:
        report.duration = finished.phases.get(report.when or "", report.duration)
        report.user_properties.append(("replayed", "true"))
        reports.attach_replayed(report)
    return made


def _reports_before(item: pytest.Item, finished: Finished) -> list[pytest.TestReport]:
    outcome = finished.outcome
    if outcome is Outcome.GATED:
        return [skipped_report(item, outcome=outcome, text=f"gated: {finished.message}")]
    if outcome is Outcome.SKIPPED:
        report = skipped_report(item, outcome=outcome, text=finished.message)
        reports.detach_outcome(report)
        return [report, passed_report(item, "teardown")]
    if outcome is Outcome.WAIVED:
        return [expected_failure_report(item, finished.message, finished.duration), passed_report(item, "teardown")]
    if outcome.is_red:
        return [_failed_before(item, finished), passed_report(item, "teardown")]
    call = passed_report(item, "call")
    if outcome is Outcome.FLAKY:
        reports.attach_outcome(call, outcome)
    return [passed_report(item, "setup"), call, passed_report(item, "teardown")]


def _failed_before(item: pytest.Item, finished: Finished) -> pytest.TestReport:
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
        return history.case.finish(
            attempt.outcome,
            t=attempt.ended,
            attempt=attempt.number,
            alone=attempt.alone,
            worker=self._worker,
            executor=attempt.executor,
            devices=attempt.devices,
            final=final,
            duration=round(attempt.duration, 6),
            phases={report.when: report.duration for report in attempt.reports},
            message=history.message,
            detail=detail_of(attempt),
            stdout=attempt.stdout,
            stderr=attempt.stderr,
            log=log_text(attempt.reports),
            exit_status=attempt.evidence.exit_status,
            struck=attempt.evidence.end.struck,
            memory={**attempt.memory},
            keeps=history.case.keeps,
            notes=(*attempt.notes, *where_files_are(attempt)),
            properties=property_texts(attempt.reports),
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
        start = self.start(history, handle, alone=len(handle.cases) == 1)
        return start.ended(outcome, reason, t=clock.now(), final=final)

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
        for warning in (*history.decisive.warnings, *lost_dependency(item, history.decisive)):
            show_warning(item, warning)
        if history.outcome is Outcome.NOT_RUN:
            self.report_not_run(history.case, message(history.decisive))
        else:
            log_reports(item, case_reports(history, partial(self._lines.reproduce, history)))

    def report_gated(self, case: Case) -> None:
        """Report a case with an unmet requirement: a skip, or a failure if the run has an objection."""
        assert case.unmet is not None
        if case.objection is None:
            report = skipped_report(case.item, outcome=Outcome.GATED, text=f"gated: {case.unmet.text}")
        else:
            report = synthetic(case.item, outcome=case.objection.outcome, text=case.objection.text, when="setup")
        log_reports(case.item, [report])

    def report_not_run(self, case: Case, reason: str) -> None:
        """Report a case that could not be run."""
        log_reports(case.item, [skipped_report(case.item, outcome=Outcome.NOT_RUN, text=reason)])

    def report_late(self, history: CaseHistory) -> None:
        """Report a case as red, after pytest got another outcome for it."""
        report = failure_report(history, "teardown", self._lines.reproduce(history))
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
            worker_messages.news_of(self._session.config)["failed"] += news.failed
        if news.properties:
            self._journal.record(
                *(SessionProperty(t=clock.now(), name=name, value=value) for name, value in news.properties)
            )
