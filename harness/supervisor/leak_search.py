"""Finds the leaking cases of executors that grew by more than their cases account for."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.checks import batch, shm_turn
from harness.core import clock
from harness.core.errors import NoDeviceError
from harness.core.outcome import Outcome
from harness.core.text import format_count
from harness.journal.events import Batch
from harness.journal.journal import Record
from harness.scheduling.stop_request import StoppedError
from harness.supervisor import leak_bisect as leaks
from harness.supervisor import leak_trials
from harness.supervisor.case_runner import CaseRunner
from harness.supervisor.executor_handle import ExecutorHandle
from harness.supervisor.executor_slot import ExecutorSlot
from harness.supervisor.leak_bisect import Culprits
from harness.supervisor.leak_trials import LeakTrials
from harness.supervisor.search_time import SearchTime


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


@dataclass(slots=True)
class SearchResult:
    """The result of a search. `failure`: what remains unknown, and why."""

    culprits: list[Culprits] = field(default_factory=list)
    tried: int = 0
    trials: int = 0
    seconds: float = 0.0
    failure: str = ""


class LeakSearch:
    """Runs cases of grown executors again in new processes, and gives those that leak the verdict `leaked`.

    Suspicions are collected while cases run. The search begins when all cases have their verdict.
    """

    def __init__(
        self,
        runner: CaseRunner,
        slot: ExecutorSlot,
        record: Record,
        search_time: SearchTime,
        *,
        duration: Callable[[str], float],
    ) -> None:
        """`duration`: the seconds that a case took when it ran."""
        self._runner = runner
        self._slot = slot
        self._record = record
        self._time = search_time
        self._duration = duration
        self._suspicions: list[LeakSuspicion] = []

    def suspect(self, handle: ExecutorHandle) -> None:
        """If the executor grew by more than its cases account for, remember that for the search."""
        if suspected := batch.suspicious_batch_growth(handle.end.grown, len(handle.cases)):
            cases = tuple(dict.fromkeys(handle.cases))
            self._suspicions.append(LeakSuspicion(handle, cases, len(handle.cases), suspected))

    def search(self, reported: Container[str]) -> None:
        """Search all suspected executors while time is left, and report the cases that leak.

        Cases in `reported` already have that verdict and are skipped.
        """
        suspicions, self._suspicions = self._suspicions, []
        for suspicion in suspicions:
            if cases := [case for case in suspicion.cases if case not in reported]:
                self._look_into(suspicion, cases)

    def close(self, reason: str) -> None:
        """Record the suspicions that are left, and the `reason` why they are not searched."""
        suspicions, self._suspicions = self._suspicions, []
        for suspicion in suspicions:
            self._note(suspicion, suspicion.cases, SearchResult(failure=reason))

    def _look_into(self, suspicion: LeakSuspicion, cases: Sequence[str]) -> None:
        if self._time.left <= 0:
            self._note(suspicion, cases, SearchResult(failure=self._time.used_up()))
            return
        result = SearchResult()
        suspected = suspicion.suspected
        activity = f"searching for leaks, because {suspicion.text}"
        turn = shm_turn.shared_memory_turn(
            suspected, over=lambda: self._slot.stop.receive() is not None or self._time.left <= 0
        )
        with self._time.spending(), self._slot.activities.doing(activity) as update, turn:
            trials = LeakTrials(
                [self._runner.history_of(case_id).case for case_id in cases],
                spawn=self._runner.spawn,
                slot=self._slot,
                search_time=self._time,
                # Without a turn, a leak of another process would count. A single file is suspected after its case
                # anyway.
                without=() if shm_turn.SHARED_MEMORY_METERS & suspected.keys() else shm_turn.SHARED_MEMORY_METERS,
                on_trial=lambda number: update(f"{activity}: trial {number}"),
            )
            try:
                if missing := self._runner.obstacle(len(suspicion.handle.binding.devices)):
                    raise NoDeviceError(missing)
                result.culprits = self._search(suspicion, cases, trials)
                for culprits in result.culprits:
                    if culprits.certain:
                        self._accuse(culprits, trials.origins(culprits), suspicion)
            except (NoDeviceError, StoppedError) as error:
                result.failure = str(error)
        self._slot.release()
        result.failure = result.failure or trials.failure
        result.tried, result.trials, result.seconds = trials.tried, trials.trials, trials.seconds
        self._note(suspicion, cases, result)

    def _search(self, suspicion: LeakSuspicion, cases: Sequence[str], trials: LeakTrials) -> list[Culprits]:
        """Run all cases in one process if there is time for that. Otherwise run those that grew most, each alone."""
        round_time = sum(map(self._duration, cases))
        if round_time * (batch.WARMUP_ROUNDS + batch.COUNTED_ROUNDS) < self._time.left:
            return leaks.find_culprits(cases, trials.trial)
        by_case = {case: grown for case, grown in suspicion.handle.end.by_case.items() if case in cases}

        def is_explained(tried: Sequence[str]) -> bool:
            return batch.is_explained(suspicion.suspected, by_case, tried, suspicion.ran)

        return leaks.alone(batch.rank_by_growth(by_case), trials.trial, is_explained)

    def _accuse(self, culprits: Culprits, origins: Mapping[str, Sequence[str]], suspicion: LeakSuspicion) -> None:
        """Give a single leaking case the verdict `leaked`; record a finding about several cases.

        Raises NoDeviceError, StoppedError.
        """
        lines = leak_trials.details(culprits, origins)
        times = batch.runs_to_suspect(culprits.leaks[0], len(culprits.cases))
        command = self._runner.reproduce_leak(culprits.cases, times, suspicion.handle)
        if len(culprits.cases) > 1:
            text = "; ".join([leak_trials.describe(culprits), *lines])
            self._runner.add_finding("batch_leak", text, culprits.cases, command)
            return
        history = self._runner.history_of(culprits.cases[0])
        attempt = self._runner.run_alone(history)
        judgement = attempt.judgement
        if judgement.outcome.is_red:  # the case failed for another reason
            lines, command = [leak_trials.describe(culprits), *lines], attempt.reproduce
        else:
            judgement = replace(judgement, outcome=Outcome.LEAKED, message=culprits.leaks[0].text)
        process = f"a process that ran {format_count(len(suspicion.cases), 'case')} had grown"
        notes = (*attempt.notes, f"run again because {process}", *lines)
        self._runner.conclude(history, replace(attempt, judgement=judgement, notes=notes, reproduce=command))
        self._runner.report_late(history)

    def _note(self, suspicion: LeakSuspicion, cases: Sequence[str], result: SearchResult) -> None:
        self._record(
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
