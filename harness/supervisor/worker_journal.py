"""The journal of one worker: its lines, what it does between attempts, and what follows from a failed write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from harness.core import clock
from harness.core.clock import now
from harness.core.errors import WriteError
from harness.journal.events import Activity, Event, Finding
from harness.journal.journal import Journal, JournalWriteError


@dataclass(slots=True)
class _Activity:
    what: str
    since: float


class WorkerJournal:
    """Appends the lines of one worker. After a failed write it appends nothing more, so that the run can end."""

    def __init__(self, journal: Journal, worker: str, *, clock: Callable[[], float] = now) -> None:
        """`clock` returns seconds since 1970, as in the journal."""
        self.worker = worker
        #: The error of the first failed write to a file of the run; "" without one.
        self.failure = ""
        self._journal = journal
        self._clock = clock
        self._is_closing = False
        #: What the worker does, the inner activity last.
        self._activities: list[_Activity] = []

    def record(self, *events: Event) -> None:
        """Append all events in one write.

        Raises JournalWriteError at the first failure, except while the worker closes.
        """
        if self.failure:
            return
        try:
            self._journal.append(*events)
        except JournalWriteError as error:
            self.note_failure(error)
            if not self._is_closing:
                raise

    def add_finding(self, kind: str, text: str, cases: Sequence[str] = (), reproduce: str | None = None) -> None:
        """Record a finding: a fact that cannot be attributed to a single case."""
        self.record(Finding(t=clock.now(), kind=kind, message=text, cases=tuple(cases), reproduce=reproduce))

    def note_failure(self, error: WriteError) -> None:
        """Note that a file of the run could not be written. The first error counts."""
        self.failure = self.failure or str(error)

    @contextlib.contextmanager
    def noting_failures(self) -> Generator[None]:
        """Note a failed write in this context instead of raising it."""
        try:
            yield
        except WriteError as error:
            self.note_failure(error)

    @contextlib.contextmanager
    def doing(self, what: str) -> Generator[None]:
        """Record the begin and the end of an activity, which explains a long silence.

        `what` must read well after "is": ``"examining device GPU-1"``. Activities nest: when the inner one ends, the
        outer one is current again.
        """
        activity = _Activity(what, self._clock())
        self._activities.append(activity)
        self._record_current()
        try:
            yield
        finally:
            self._activities.remove(activity)
            self._record_current()

    def rename_activity(self, what: str) -> None:
        """Record a new description of the current activity."""
        self._activities[-1].what = what
        self._record_current()

    def _record_current(self) -> None:
        current = self._activities[-1] if self._activities else None
        what, since = ("", None) if current is None else (current.what, current.since)
        self.record(Activity(t=clock.now(), worker=self.worker, what=what, since=since))

    def begin_to_close(self) -> None:
        """Raise no errors of the journal from now on, so that everything is closed."""
        self._is_closing = True
