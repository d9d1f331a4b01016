"""What a run writes: its journal, its findings, and the reports at its end. The first failed write stops the run."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import traceback
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.configuration.context import RunContext
from harness.controller import rules
from harness.controller.plan import ConfigProblem, Plan
from harness.controller.stop_signals import StopSignals
from harness.core import clock
from harness.core.caseid import suite_of
from harness.core.errors import HarnessError, WriteError, convert_to_write_error
from harness.core.outcome import EXIT_INTERNAL, EXIT_NOTHING_RAN, EXIT_OK
from harness.journal import environment, reader
from harness.journal.events import Collected, End, Event, Finding, RunStarted, SessionProperty, Stopped
from harness.journal.journal import Journal, JournalError, JournalWriteError, decode_line
from harness.journal.ledger import Ledger
from harness.journal.reader import JournalContents
from harness.reporting import formats, junit
from harness.reporting.page import report as page
from harness.scheduling import workers
from harness.scheduling.resume import EarlierRun, InterruptedRun, changed_conditions_message


class RunRecord:
    """The record of one run, in its controller.

    A resumed run records nothing before `accept`. A session of a cluster run (`judges` is False) makes no verdict and
    no report: the head of the cluster run does that.
    """

    def __init__(
        self,
        context: RunContext,
        plan: Plan,
        signals: StopSignals,
        *,
        line: RunStarted,
        facts: Mapping[str, Any],
        problems: Iterable[ConfigProblem],
        arguments: Sequence[str],
        earlier: EarlierRun | None,
        interrupted: InterruptedRun | None,
        judges: bool,
        begun: float,
    ) -> None:
        """Record the start of a new run. `line`: its ``run`` line. `facts`: of environment.json.

        `problems`: those known before the collection. `arguments`: the files and folders that the user named.
        `earlier`: the run whose cases this one selects. `interrupted`: the run that it continues. `begun`: when it
        began, on the clock of `harness.core.clock.monotonic`. Raises WriteError; pytest.UsageError if the run cannot be
        continued.
        """
        self._context = context
        self._plan = plan
        self._signals = signals
        self._line = line
        self._facts = facts
        self._problems = [*problems]
        self._arguments = arguments
        self._earlier = earlier
        self._interrupted = interrupted
        self._judges = judges
        self._begun = begun
        self._recorded = False
        self._journal = Journal(context.journal)
        #: The results, known at the end; None if there are none, or the head of a cluster run has them.
        self.ledger: Ledger | None = None
        #: Lines for people, printed above the summary.
        self.remarks: list[str] = []
        #: The failed write; empty while all writes succeed.
        self.failure = ""
        if interrupted is None:
            self._record_start()
            return
        try:
            self._line = msgspec.structs.replace(line, forced=tuple(interrupted.changes(line)))
        except HarnessError as error:
            raise pytest.UsageError(f"--resume={str(plan.settings['resume'])!r}: {error}") from None

    def accept(self) -> None:
        """Begin a resumed run after the collection, if it has the same cases as before.

        Raises pytest.UsageError if it has not. The run directory is then unchanged.
        """
        if self._recorded or self._interrupted is None:
            return
        changed = workers.noted_change(Path(self._context.temp_dir))
        if changed:
            changes = (f"the list of cases has changed: {changed}",)
            if not self._interrupted.force:
                raise pytest.UsageError(
                    f"--resume={str(self._plan.settings['resume'])!r}: {changed_conditions_message(changes)}"
                )
            self._line = msgspec.structs.replace(self._line, forced=(*self._line.forced, *changes))
        try:
            self._record_start()
        except WriteError as error:
            self.fail(str(error))

    def _record_start(self) -> None:
        """Record the start of the run, or of its next part. Raises WriteError."""
        self._recorded = True
        self._journal.append(self._line)
        if self._interrupted is None:
            self._journal.append(*rules.list_lines(self._plan))
        else:
            self._journal.append(*self._interrupted.lost, *self._interrupted.reopened)
            with convert_to_write_error(f"into {str(self._run_dir)!r}"):
                self._interrupted.keep_environment()
        for kind, message in self._problems:
            self.add_finding(kind, message)
        environment.write_environment(self._run_dir, self._facts)

    def report(self, status: int) -> int:
        """Write the end of the journal, junit.xml and report.html. Returns the run's exit status, given pytest's own.

        The run's status is never milder than pytest's. If pytest reports that all tests passed, the ledger decides.
        After a failed write, the status is that of an internal error.
        """
        if not self._recorded:
            return status  # a resumed run that did not reach its cases: its run directory is unchanged
        if self._signals.by:
            self._append(Stopped(t=clock.now(), by=self._signals.by, grace=self._signals.grace))
        try:
            contents, ledger = self._account(status)
        except JournalError as error:
            self.fail(str(error))
            return EXIT_INTERNAL
        if self._judges and status in (EXIT_OK, EXIT_NOTHING_RAN) and (ledger.verdicts or ledger.findings):
            status = ledger.exit_status()
        elif status == EXIT_OK:
            status = EXIT_NOTHING_RAN
        if not self._judges:  # the head of the cluster run judges and reports
            self._ended(ledger, status)
            return EXIT_INTERNAL if self.failure else status
        self.ledger = self._ended(ledger, status)
        try:
            junit.write_junit(self._run_dir, self.ledger)
            self._write_page(contents, self.ledger)
            formats.write_reports(
                self._plan.settings["report"],
                self.ledger,
                run_dir=self._run_dir,
                base=Path(self._context.invocation_dir),
                note=self.remarks.append,
            )
        except WriteError as error:
            self.fail(str(error))
            self.ledger = self._ended(ledger, status)
        return EXIT_INTERNAL if self.failure else status

    @property
    def _run_dir(self) -> Path:
        return Path(self._context.run_dir)

    def _write_page(self, contents: JournalContents, ledger: Ledger) -> None:
        """Write report.html. Raises WriteError. Any other error of the harness does not change the run's verdict."""
        if ledger.end is not None:
            contents = dataclasses.replace(contents, events=(*contents.events, ledger.end))
        try:
            with _uncollected():
                page.write_html_report(self._run_dir, contents, ledger=ledger)
        except WriteError:
            raise
        except Exception as error:  # noqa: BLE001
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename}:{last.lineno}"
            self.remarks.append(f"{page.FILE_NAME} was not written, an error of the harness: {error!r} in {where}")

    def _account(self, status: int) -> tuple[JournalContents, Ledger]:
        """Return the journal so far, with events that follow from it, and its ledger. Raises JournalError.

        `status`: pytest's own exit status. If it is bad for a reason that the journal lacks, that is a finding, since
        reports have nothing else.
        """
        # Otherwise the garbage collector walks xdist's reports repeatedly while the ledger is built, which doubles the
        # time for 10,000 cases.
        with _uncollected():
            contents = reader.read_journal(self._context.journal)
            lines = [event for event in contents.events if isinstance(event, Collected)]
            cases = dict.fromkeys(case for line in lines for case in (*line.ids, *line.selected, *line.deselected))
            unread = dict.fromkeys(start for line in lines for start in line.unread)
            skipped = {start: reason for line in lines for start, reason in line.skipped.items()}
            if cases or unread or skipped:
                named = [(case, suite_of(case)) for case in cases]
                problems = self._plan.problems_after_collection(named, self._arguments, unread, skipped)
                if self._earlier is not None and (gone := self._earlier.gone(cases, self._arguments)):
                    problems.append(ConfigProblem("from_missing", gone))
                contents = self._with_findings(contents, problems)
            ledger = Ledger.from_journal(contents)
            explained = bool(ledger.red or ledger.findings or self.failure or self._signals.by)
            if not explained and status not in (EXIT_OK, EXIT_NOTHING_RAN) and self._judges:
                why = f"pytest ended with exit status {status}, which no case and no other finding explains"
                contents = self._with_findings(contents, [ConfigProblem("session", f"{why}: see its output")])
                ledger = Ledger.from_journal(contents)
            return contents, ledger

    def _with_findings(self, contents: JournalContents, problems: Iterable[ConfigProblem]) -> JournalContents:
        """Record findings, and return the contents of the journal with those that are new."""
        added = [self.add_finding(kind, message) for kind, message in problems]
        findings = tuple(finding for finding in added if finding is not None)
        return dataclasses.replace(contents, events=contents.events + findings)

    def _ended(self, ledger: Ledger, status: int) -> Ledger:
        """Record the end of the run. Return the ledger with it."""
        duration = round(clock.monotonic() - self._begun, 3)
        status = EXIT_INTERNAL if self.failure else status
        end = End(t=clock.now(), exit_status=status, duration=duration)
        self._append(end)
        return dataclasses.replace(ledger, end=end)

    def fail(self, problem: str) -> None:
        """Note a failed write. The run ends with the status of an internal error."""
        if not self.failure:
            self.failure = problem
            self._signals.request_stop("stopped since the run cannot be recorded")

    @property
    def failure_text(self) -> str:
        """One sentence about a failed write, the progress and the next step; empty if all writes succeeded."""
        if not self.failure:
            return ""
        done = "the number of finished cases is unknown"
        if self.ledger is not None:
            verdicts = self.ledger.verdicts
            decided = sum(verdict.decided is not None for verdict in verdicts)
            done = f"{decided} of {len(verdicts)} cases have a verdict in the journal"
        return f"harness: {self.failure}; {done}: make room, then type: harness report {self._run_dir}"

    def _append(self, event: Event) -> None:
        try:
            self._journal.append(event)
        except JournalWriteError as error:
            self.fail(str(error))

    def session_properties(self) -> list[tuple[str, str]]:
        """Return the properties of the whole run that cases recorded, each once."""
        with self._journal.path.open("rb") as file:
            events = [decode_line(line) for line in file if line.startswith(b'{"event":"session_property",')]
        return list(dict.fromkeys((event.name, event.value) for event in events if isinstance(event, SessionProperty)))

    def add_finding(self, kind: str, message: str) -> Finding | None:
        """Record a finding. None if a resumed run has it already."""
        if self._interrupted is not None and (kind, message) in self._interrupted.resumption.findings:
            return None
        finding = Finding(t=clock.now(), kind=kind, message=message)
        self._append(finding)
        return finding

    def note_problem(self, kind: str, message: str) -> None:
        """Record a finding, or keep it until a resumed run is accepted and its next part begins.

        Each is recorded once, although several workers may report it.
        """
        problem = ConfigProblem(kind, message)
        if problem in self._problems:
            return
        self._problems.append(problem)
        if self._recorded:
            self.add_finding(*problem)


@contextlib.contextmanager
def _uncollected() -> Generator[None]:
    """Disable the garbage collector in the context."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
