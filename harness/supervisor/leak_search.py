"""Finds the leaking cases of executors that grew by more than their cases account for."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from harness.checks import batch, shm_turn
from harness.core import clock
from harness.core.errors import NoDeviceError
from harness.core.outcome import Outcome
from harness.core.text import format_count
from harness.journal.events import Batch
from harness.scheduling.stop_request import StoppedError
from harness.supervisor import leak_bisect as leaks
from harness.supervisor import leak_trials
from harness.supervisor.attempt import Attempt
from harness.supervisor.case import Case
from harness.supervisor.case_lines import CaseLines
from harness.supervisor.executor_handle import ExecutorHandle
from harness.supervisor.lane import Lane
from harness.supervisor.leak_bisect import Culprits
from harness.supervisor.leak_trials import LeakTrials
from harness.supervisor.search_time import SearchTime
from harness.supervisor.worker_journal import WorkerJournal


@dataclass(frozen=True, slots=True)
class LeakSuspicion:
    """An executor that has grown.

    `cases`: the ids of its cases, in order; `ran`: how many it ran, including repetitions.
    """

    handle: ExecutorHandle
    cases: tuple[str, ...]
    ran: int
    suspected: Mapping[str, int]

    @property
    def text(self) -> str:
        return leak_trials.growth_text(self.handle.name, self.suspected, self.ran)


@dataclass(frozen=True, slots=True)
class RanCase:
    """A case that has its verdict: the number of attempts, the seconds of the last one, and whether one has leaked."""

    case: Case
    attempts: int
    duration: float
    leaked: bool


@dataclass(frozen=True, slots=True)
class Accusation:
    """A request: run a case once more alone, and give it the verdict `leaked`.

    `text` names the leak, `described` also the case. `lines`: its origin. `reproduce`: a shell command. `ran`: the
    number of cases of the process that has grown.
    """

    case: str
    text: str
    described: str
    lines: tuple[str, ...]
    reproduce: str
    ran: int

    def applied_to(self, attempt: Attempt) -> Attempt:
        """Return the attempt with this leak. If it is red for another reason, that remains its outcome."""
        judgement, lines, command = attempt.judgement, self.lines, self.reproduce
        if judgement.outcome.is_red:
            lines, command = (self.described, *lines), attempt.reproduce
        else:
            judgement = replace(judgement, outcome=Outcome.LEAKED, message=self.text)
        why = f"run again because a process that ran {format_count(self.ran, 'case')} had grown"
        return replace(attempt, judgement=judgement, notes=(*attempt.notes, why, *lines), reproduce=command)


@dataclass(slots=True)
class SearchResult:
    """The result of a search. `failure`: what remains unknown, and why."""

    culprits: list[Culprits] = field(default_factory=list)
    tried: int = 0
    trials: int = 0
    seconds: float = 0.0
    failure: str = ""


class LeakSearch:
    """Runs cases of grown executors again in new processes, and accuses those that leak.

    Suspicions are collected while cases run. The search begins when all cases have their verdict.
    """

    def __init__(self, lane: Lane, lines: CaseLines, journal: WorkerJournal, search_time: SearchTime) -> None:
        self._lane = lane
        self._lines = lines
        self._journal = journal
        self._time = search_time
        self._suspicions: list[LeakSuspicion] = []

    def suspect(self, handle: ExecutorHandle) -> None:
        """If the executor grew by more than its cases account for, remember that for the search."""
        if suspected := batch.suspicious_batch_growth(handle.end.grown, len(handle.cases)):
            cases = tuple(dict.fromkeys(handle.cases))
            self._suspicions.append(LeakSuspicion(handle, cases, len(handle.cases), suspected))

    def take_suspicions(self) -> list[LeakSuspicion]:
        """Return the suspicions, and forget them."""
        suspicions, self._suspicions = self._suspicions, []
        return suspicions

    def close(self, reason: str) -> None:
        """Record the suspicions that are left, and the `reason` why they are not searched."""
        for suspicion in self.take_suspicions():
            self._note(suspicion, suspicion.cases, SearchResult(failure=reason))

    @contextmanager
    def looking_into(self, suspicion: LeakSuspicion, ran: Sequence[RanCase]) -> Generator[Iterator[Accusation]]:
        """Search these cases of the suspicion while time is left. The context's value are the accusations.

        At the end of the context the result is recorded. NoDeviceError and StoppedError in the context end the search,
        and are recorded as the reason why it is incomplete.
        """
        cases = [each.case.id for each in ran]
        if self._time.left <= 0:
            self._note(suspicion, cases, SearchResult(failure=self._time.used_up()))
            yield iter(())
            return
        result = SearchResult()
        suspected = suspicion.suspected
        activity = f"searching for leaks, because {suspicion.text}"
        turn = shm_turn.shared_memory_turn(
            suspected, over=lambda: self._lane.slot.stop.receive() is not None or self._time.left <= 0
        )
        with self._time.spending(), self._journal.doing(activity), turn:
            trials = LeakTrials(
                [each.case for each in ran],
                self._lane,
                self._journal,
                self._time,
                activity=activity,
                # Without a turn, a leak of another process would count. A single file is suspected after its case
                # anyway.
                without=() if shm_turn.SHARED_MEMORY_METERS & suspected.keys() else shm_turn.SHARED_MEMORY_METERS,
            )
            accusations: Iterator[Accusation] = iter(())
            try:
                if missing := self._lane.missing(len(suspicion.handle.binding.devices)):
                    raise NoDeviceError(missing)
                result.culprits = self._search(suspicion, ran, trials)
                accusations = self._accusations(suspicion, result.culprits, ran, trials)
            except (NoDeviceError, StoppedError) as error:
                result.failure = str(error)
            try:
                yield accusations
            except (NoDeviceError, StoppedError) as error:
                result.failure = str(error)
        self._lane.slot.release()
        result.failure = result.failure or trials.failure
        result.tried, result.trials, result.seconds = trials.tried, trials.trials, trials.seconds
        self._note(suspicion, cases, result)

    def _search(self, suspicion: LeakSuspicion, ran: Sequence[RanCase], trials: LeakTrials) -> list[Culprits]:
        """Run all cases in one process if there is time for that. Otherwise run those that grew most, each alone."""
        cases = [each.case.id for each in ran]
        round_time = sum(each.duration for each in ran)
        if round_time * (batch.WARMUP_ROUNDS + batch.COUNTED_ROUNDS) < self._time.left:
            return leaks.find_culprits(cases, trials.trial)
        by_case = {case: grown for case, grown in suspicion.handle.end.by_case.items() if case in cases}

        def is_explained(tried: Sequence[str]) -> bool:
            return batch.is_explained(suspicion.suspected, by_case, tried, suspicion.ran)

        return leaks.alone(batch.rank_by_growth(by_case), trials.trial, is_explained)

    def _accusations(
        self, suspicion: LeakSuspicion, found: Sequence[Culprits], ran: Sequence[RanCase], trials: LeakTrials
    ) -> Iterator[Accusation]:
        """Yield an accusation for each single leaking case. Record a finding about several cases.

        Raises NoDeviceError, StoppedError.
        """
        known = {each.case.id: each.case for each in ran}
        for culprits in found:
            if not culprits.certain:
                continue
            described, lines = leak_trials.describe(culprits), leak_trials.details(culprits, trials.origins(culprits))
            times = batch.runs_to_suspect(culprits.leaks[0], len(culprits.cases))
            command = self._lines.reproduce_leak([known[case] for case in culprits.cases], times, suspicion.handle)
            if len(culprits.cases) > 1:
                self._journal.add_finding("batch_leak", "; ".join([described, *lines]), culprits.cases, command)
                continue
            (case,) = culprits.cases
            yield Accusation(case, culprits.leaks[0].text, described, tuple(lines), command, len(suspicion.cases))

    def _note(self, suspicion: LeakSuspicion, cases: Sequence[str], result: SearchResult) -> None:
        self._journal.record(
            Batch(
                t=clock.now(),
                executor=suspicion.handle.name,
                cases=tuple(cases),
                suspicions={**suspicion.suspected},
                leaks=tuple(leak_trials.describe(culprits) for culprits in result.culprits if culprits.certain),
                unproven=tuple(leak_trials.describe(culprits) for culprits in result.culprits if not culprits.certain),
                tried=result.tried,
                trials=result.trials,
                seconds=round(result.seconds, 3),
                failure=result.failure,
            )
        )
