"""The progress of a run, as a value and as a line. Pure functions of the journal's events and of the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.core.outcome import AttemptResult, Outcome, final_verdict
from harness.core.text import escape_invalid_xml
from harness.journal.events import Activity, Collected, Event, Finish, RunStarted, Start

#: The label for all verdicts that make the run red.
RED = "red"
#: Maximum number of workers in the line.
SHOWN = 4
#: The fraction of the cases that must be done before the remaining time is estimated.
ENOUGH = 0.1


@dataclass(frozen=True, slots=True)
class Doing:
    """The activity of a worker. `what`: ``runs CASE`` or ``is ACTIVITY``. `devices`: empty if no case runs.

    `since`: seconds since 1970.
    """

    worker: str
    what: str
    since: float
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The progress of a run.

    - `total`: the number of cases; None during collection. `done`, `red`: cases with a verdict, with a red one.
    - `summary`: these numbers and the remaining time, as text. `elapsed`: seconds since the run or its part began.
    - `doing`: activities of busy workers, longest first. `idle`: other workers. `stopped`: workers that a signal
      stopped, with pids.
    - `last_red`: the case that became red last, with its outcome; empty if there is none.
    - `running`: workers with a live process, with pids; none if the controller is the only worker.
    """

    now: float
    elapsed: float
    total: int | None
    done: int
    red: int
    summary: str
    doing: tuple[Doing, ...]
    idle: tuple[str, ...]
    stopped: Mapping[str, int]
    last_red: str
    running: Mapping[str, int]

    @property
    def line(self) -> str:
        """The snapshot as one line, for a run without a table."""
        texts = [f"{doing_text(doing)}, for {_span(self.now, doing.since)}" for doing in self.doing]
        more = [f"{len(texts) - SHOWN} more workers are busy"] if len(texts) > SHOWN else []
        workers = [*texts[:SHOWN], *more, *stopped_texts(self.stopped)]
        if self.total is not None and not workers:
            workers = [ending_text(self.running)] if self.running and self.done == self.total else ["no case runs"]
        return "; ".join([self.summary, *workers])


def doing_text(doing: Doing) -> str:
    """Return the activity as text, for example ``gw0 runs suites/a.py::test_b on GPU-1``."""
    on = f" on {', '.join(doing.devices)}" if doing.devices else ""
    return f"{doing.worker} {doing.what}{on}"


def ending_text(running: Mapping[str, int]) -> str:
    """Return the text for a run that waits for its workers to end after all cases, with their process ids."""
    return f"waiting for {', '.join(f'{worker} (process {pid})' for worker, pid in sorted(running.items()))} to end"


def stopped_texts(stopped: Mapping[str, int]) -> list[str]:
    """Return one text per worker that a signal stopped, by worker and process id."""
    return [
        f"{worker} is stopped (process {pid}, by SIGSTOP or a debugger): to continue it, type kill -CONT {pid}"
        for worker, pid in sorted(stopped.items())
    ]


class Progress:
    """The state of a run that is in progress."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._first_case: float | None = None
        self._before = 0
        self._total: int | None = None
        self._fail_on_flaky = False
        self._attempts: dict[str, list[AttemptResult]] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._counts: Counter[str] = Counter()
        self._last_red = ""
        self._running: dict[str, Start] = {}
        self._activities: dict[str, Activity] = {}
        #: The process ids of the workers that have collected.
        self.pids: dict[str, int] = {}

    def enter(self, events: Iterable[Event]) -> None:
        """Add the journal's next events."""
        touched: set[str] = set()
        for event in events:
            match event:
                case RunStarted():
                    self._started, self._fail_on_flaky = event.t, event.fail_on_flaky
                    self._begin_part()
                    touched &= self._attempts.keys()
                case Collected():
                    self._total = max(self._total or 0, event.count)
                    if event.pid is not None:
                        self.pids[event.worker] = event.pid
                case Start():
                    self._running[event.worker] = event
                    self._first_case = self._first_case or event.t
                case Finish():
                    self._running.pop(event.worker, None)
                    self._first_case = self._first_case or event.t - event.duration
                    ruled = None if event.ruling is None else event.ruling.outcome
                    self._attempts.setdefault(event.case, []).append(AttemptResult(event.outcome, event.final, ruled))
                    if event.final:
                        touched.add(event.case)
                case Activity(what=""):
                    self._activities.pop(event.worker, None)
                case Activity():
                    self._activities[event.worker] = event
        for case in touched:
            self._settle(case)

    def _settle(self, case: str) -> None:
        before = self._outcomes.get(case)
        outcome = final_verdict(self._attempts[case], len(self._attempts[case]))
        if before is not None:
            self._counts[self._word(before)] -= 1
        self._counts[self._word(outcome)] += 1
        self._outcomes[case] = outcome
        if self._word(outcome) == RED:
            self._last_red = f"{_printable(case)} ({outcome.value})"

    def _begin_part(self) -> None:
        """Start or resume the run. Cases without a verdict are due again, and the pace is that of this part."""
        void = (Outcome.NOT_RUN, Outcome.LOST)
        self._attempts = {
            case: attempts for case, attempts in self._attempts.items() if attempts[-1].outcome not in void
        }
        self._outcomes = {case: outcome for case, outcome in self._outcomes.items() if case in self._attempts}
        self._counts = Counter(map(self._word, self._outcomes.values()))
        self._first_case = None
        self._before = sum(any(attempt.final for attempt in attempts) for attempts in self._attempts.values())

    def forget(self, worker: str) -> None:
        """Drop a worker that has ended. There may be no event for the end of its case."""
        self._running.pop(worker, None)
        self._activities.pop(worker, None)
        self.pids.pop(worker, None)

    def snapshot(
        self, now: float, stopped: Mapping[str, int] | None = None, running: Mapping[str, int] | None = None
    ) -> Snapshot:
        """Return the progress. `now`: seconds since 1970. `stopped`: pids of workers that a signal stopped. `running`:
        pids of all workers that have not ended.
        """
        started = now if self._started is None else self._started
        doing = self._doing()
        busy = {entry.worker for entry in doing}
        again = [start.case for start in self._running.values() if start.case in self._outcomes]  # not done yet
        counts = self._counts - Counter(self._word(self._outcomes[case]) for case in {*again})
        done = counts.total()
        return Snapshot(
            now=now,
            elapsed=max(0.0, now - started),
            total=self._total,
            done=done,
            red=counts[RED],
            summary=f"collecting for {_span(now, started)}"
            if self._total is None
            else self._summary(now, done, counts),
            doing=doing,
            idle=tuple(sorted(self.pids.keys() - busy)),
            stopped=stopped or {},
            last_red=self._last_red,
            running=running or {},
        )

    def _summary(self, now: float, done: int, counts: Mapping[str, int]) -> str:
        assert self._total is not None
        left = max(0, self._total - done)
        words = ["passed", RED, "gated", *sorted(counts.keys() - {"passed", RED, "gated"})]
        counted = ", ".join(f"{counts[word]} {word}" for word in words if counts.get(word))
        parts = [f"{done} of {self._total} cases done" + (f" ({counted})" if counted else "")]
        parts += [f"{left} left{self._estimate(now, done, left)}"] if left else []
        return "; ".join(parts)

    def _word(self, outcome: Outcome) -> str:
        red = outcome.is_red or (self._fail_on_flaky and outcome is Outcome.FLAKY)
        return RED if red else outcome.value

    def _estimate(self, now: float, done: int, left: int) -> str:
        """Return the remaining time as text, from the pace so far. Empty if too few cases are done."""
        done -= self._before
        if self._first_case is None or done < ENOUGH * (done + left):
            return ""
        minutes = max(0.0, now - self._first_case) * left / max(done, 1) / 60
        if minutes < 1:
            return " (less than a minute)"
        if minutes < 90:
            return f" (about {minutes:.0f} min)"
        return f" (about {minutes / 60:.1f} h)"

    def _doing(self) -> tuple[Doing, ...]:
        """Return the activity of each busy worker, the longest first."""
        activities = []
        for worker in self._running.keys() | self._activities.keys():
            activity, start = self._activities.get(worker), self._running.get(worker)
            if activity is not None:
                since = activity.t if activity.since is None else activity.since
                doing = Doing(worker, f"is {_printable(activity.what)}", since)
            else:
                assert start is not None
                attempt = f" (attempt {start.attempt})" if start.attempt > 1 else ""
                doing = Doing(
                    worker, f"runs {_printable(start.case)}{attempt}", start.t, tuple(map(_printable, start.devices))
                )
            activities.append(doing)
        return tuple(sorted(activities, key=lambda entry: (entry.since, entry.worker)))


def _printable(text: str) -> str:
    """Return the text without terminal control sequences and bidirectional marks."""
    shown = " ".join(escape_invalid_xml(text).split())
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in shown)


def _span(now: float, since: float) -> str:
    return f"{max(0.0, now - since):.0f} s"
