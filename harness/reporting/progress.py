"""How far a run is, as one line of text. Pure: what the journal has said so far, and the time, make the line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from harness.outcome import AttemptResult, Outcome, settle
from harness.reporting.events import Activity, Collected, Event, Finish, RunStarted, Start
from harness.text import clean

#: Workers that the line spells out.
SHOWN = 4
#: The part of the cases that must be done before the time left is estimated.
ENOUGH = 0.1


class Progress:
    """What is known of a run that goes on."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._first_case: float | None = None
        self._total: int | None = None
        self._fail_on_flaky = False
        self._attempts: dict[str, list[AttemptResult]] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._running: dict[str, Start] = {}
        self._activities: dict[str, Activity] = {}
        #: The process ids of the workers that have collected.
        self.pids: dict[str, int] = {}

    def enter(self, events: Iterable[Event]) -> None:
        """Take in what the journal says next."""
        touched = set()
        for event in events:
            match event:
                case RunStarted():
                    self._begun, self._fail_on_flaky = event.t, event.fail_on_flaky
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

    def forget(self, worker: str) -> None:
        """A worker has ended, and may have had no time to say what became of its case."""
        self._running.pop(worker, None)
        self._activities.pop(worker, None)
        self.pids.pop(worker, None)

    def line(self, now: float, stopped: Mapping[str, int] | None = None) -> str:
        """The line; `now` in seconds since 1970. `stopped`: the process ids of workers that are stopped by a signal."""
        workers = self._workers(now)
        workers += [
            f"{worker} is stopped (process {pid}, by SIGSTOP or a debugger): to let it go on type kill -CONT {pid}"
            for worker, pid in sorted((stopped or {}).items())
        ]
        if self._total is None:
            begun = now if self._begun is None else self._begun
            return "; ".join([f"collecting for {_span(now, begun)}", *workers])
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
        """From the pace so far; nothing where that says too little."""
        if self._first_case is None or done < ENOUGH * (done + left):
            return ""
        minutes = max(0.0, now - self._first_case) * left / done / 60
        if minutes < 1:
            return " (less than a minute)"
        if minutes < 90:
            return f" (about {minutes:.0f} min)"
        return f" (about {minutes / 60:.1f} h)"

    def _workers(self, now: float) -> list[str]:
        """What each worker does, the longest first."""
        said: list[tuple[float, str]] = []
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
            said.append((since, f"{' '.join(clean(text).split())}, for {_span(now, since)}"))
        texts = [text for _, text in sorted(said)]
        more = [f"{len(texts) - SHOWN} more workers are busy"] if len(texts) > SHOWN else []
        return [*texts[:SHOWN], *more]


def _span(now: float, since: float) -> str:
    return f"{max(0.0, now - since):.0f} s"
