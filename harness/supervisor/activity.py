"""Record what a worker does between attempts at cases, to explain a long silence."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass

from harness.core import clock
from harness.core.clock import now
from harness.journal.events import Activity
from harness.journal.journal import Record


@dataclass(slots=True)
class _Activity:
    what: str
    since: float


class Activities:
    """The current activity of one worker. Activities nest: when the inner one ends, the outer one is current again."""

    def __init__(self, record: Record, worker: str, *, clock: Callable[[], float] = now) -> None:
        """`clock` returns seconds since 1970, as in the journal."""
        self._record = record
        self._worker = worker
        self._clock = clock
        self._stack: list[_Activity] = []

    @contextlib.contextmanager
    def doing(self, what: str) -> Generator[Callable[[str], None]]:
        """Record the begin and the end of `what` in the journal, at the begin and the end of the context.

        `what` must read well after "is": ``"examining device GPU-1"``. The context's value is a function that records
        a new description of the same activity.
        """
        activity = _Activity(what, self._clock())
        self._stack.append(activity)
        self._record_current()

        def update(what: str) -> None:
            activity.what = what
            self._record_current()

        try:
            yield update
        finally:
            self._stack.remove(activity)
            self._record_current()

    def _record_current(self) -> None:
        current = self._stack[-1] if self._stack else None
        what, since = ("", None) if current is None else (current.what, current.since)
        self._record(Activity(t=clock.now(), worker=self._worker, what=what, since=since))
