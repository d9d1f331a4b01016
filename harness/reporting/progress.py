"""The progress line of a run. Pure functions of the journal's events so far and of the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from harness.outcome import AttemptResult, Outcome, settle
from harness.reporting.events import Activity, Collected, Event, Finish, RunStarted, Start
from harness.text import clean

#: The number of workers that the line describes.
SHOWN = 4
#: The fraction of the cases that must be done before the remaining time is estimated.
ENOUGH = 0.1


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
            self._outcomes[case] = settle(self._attempts[case], len(self._attempts[case]))

    def _begin_part(self) -> None:
        """The run starts, or is resumed. Cases without a verdict are due again, and the pace is that of this part."""
        void = (Outcome.NOT_RUN, Outcome.LOST)
        self._attempts = {
            case: attempts for case, attempts in self._attempts.items() if attempts[-1].outcome not in void
        }
        self._outcomes = {case: outcome for case, outcome in self._outcomes.items() if case in self._attempts}
        self._first_case = None
        self._before = sum(any(attempt.final for attempt in attempts) for attempts in self._attempts.values())

    def forget(self, worker: str) -> None:
        """Drop a worker that has ended. It may have ended without an event for its case."""
        self._running.pop(worker, None)
        self._activities.pop(worker, None)
        self.pids.pop(worker, None)

    def line(self, now: float, stopped: Mapping[str, int] | None = None) -> str:
        """The progress line. `now` is in seconds since 1970. `stopped`: pids of workers that a signal stopped."""
        workers = self._workers(now)
        workers += [
            f"{worker} is stopped (process {pid}, by SIGSTOP or a debugger): to let it go on type kill -CONT {pid}"
            for worker, pid in sorted((stopped or {}).items())
        ]
        if self._total is None:
            started = now if self._started is None else self._started
            return "; ".join([f"collecting for {_span(now, started)}", *workers])
        again = {start.case for start in self._running.values()}  # repeated, or tried again
        done = {case: outcome for case, outcome in self._outcomes.items() if case not in again}
        left = max(0, self._total - len(done))
        parts = [f"{len(done)} of {self._total} cases done"]
        if done:
            parts[0] += f" ({self._counted(done.values())})"
        if left:
            parts.append(f"{left} left{self._estimate(now, len(done), left)}")
        return "; ".join([*parts, *(workers or ["no case runs"])])

    def _counted(self, outcomes: Iterable[Outcome]) -> str:
        counts = Counter(self._word(outcome) for outcome in outcomes)
        first = ("passed", "red", "gated")
        words = [*first, *sorted(counts.keys() - {*first})]
        return ", ".join(f"{counts[word]} {word}" for word in words if counts[word])

    def _word(self, outcome: Outcome) -> str:
        red = outcome.is_red or (self._fail_on_flaky and outcome is Outcome.FLAKY)
        return "red" if red else outcome.value

    def _estimate(self, now: float, done: int, left: int) -> str:
        """The remaining time, from the pace so far. Empty if too few cases are done."""
        done -= self._before
        if self._first_case is None or done < ENOUGH * (done + left):
            return ""
        minutes = max(0.0, now - self._first_case) * left / max(done, 1) / 60
        if minutes < 1:
            return " (less than a minute)"
        if minutes < 90:
            return f" (about {minutes:.0f} min)"
        return f" (about {minutes / 60:.1f} h)"

    def _workers(self, now: float) -> list[str]:
        """What each worker does, the longest activity first."""
        texts_by_start: list[tuple[float, str]] = []
        for worker in self._running.keys() | self._activities.keys():
            activity, start = self._activities.get(worker), self._running.get(worker)
            if activity is not None:
                since = activity.t if activity.since is None else activity.since
                text = f"{worker} is {activity.what}"
            else:
                assert start is not None
                since = start.t
                attempt = f" (attempt {start.attempt})" if start.attempt > 1 else ""
                on = f" on {', '.join(start.devices)}" if start.devices else ""
                text = f"{worker} runs {start.case}{attempt}{on}"
            texts_by_start.append((since, f"{' '.join(clean(text).split())}, for {_span(now, since)}"))
        texts = [text for _, text in sorted(texts_by_start)]
        more = [f"{len(texts) - SHOWN} more workers are busy"] if len(texts) > SHOWN else []
        return [*texts[:SHOWN], *more]


def _span(now: float, since: float) -> str:
    return f"{max(0.0, now - since):.0f} s"
