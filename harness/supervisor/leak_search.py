"""Finds the leaking cases of executors that grew by more than their cases account for.

Cases of a batch that has grown are repeated round after round in fresh processes, within the time for searches.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.checks import growth
from harness.checks.growth import COUNTED_ROUNDS, WARMUP_ROUNDS, CountedRounds
from harness.checks.meters import format_growths
from harness.core import clock
from harness.core.clock import monotonic
from harness.core.errors import NoDeviceError
from harness.core.outcome import Outcome
from harness.core.text import format_count, format_exit_code
from harness.journal.events import Batch
from harness.journal.journal import WorkerJournal
from harness.protocol.wire import Message
from harness.scheduling.stop_request import StoppedError
from harness.supervisor import leak_bisect as leaks
from harness.supervisor.attempt import GRACE, Attempt, CaseRequest
from harness.supervisor.case import Case
from harness.supervisor.case_reports import CaseLines
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage
from harness.supervisor.lane import Lane
from harness.supervisor.leak_bisect import Culprits, Open, SpentError
from harness.supervisor.leak_confirmation import MORE, SHARED_MEMORY_METERS, SearchTime, leak_lines, shared_memory_turn
from harness.zygote.client import ZygoteError

#: The most cases that one line names.
NAMED = 5
ROUNDS = WARMUP_ROUNDS + COUNTED_ROUNDS


class LeakTrials:
    """The trials for one batch."""

    def __init__(
        self,
        cases: Sequence[Case],
        lane: Lane,
        journal: WorkerJournal,
        search_time: SearchTime,
        *,
        activity: str,
        without: Container[str] = (),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`cases` in the order in which they ran. Growth of the meters in `without` is ignored.

        `activity` describes the search, which the journal has as the worker's current activity. `clock` must be the
        clock of the handles' deadlines.
        """
        self._clock = clock
        self._cases = {case.id: case for case in cases}
        self._lane = lane
        self._journal = journal
        self._time = search_time
        self._activity = activity
        self._without = without
        self._begun = clock()
        self._spent = ""
        self._broken = ""
        self._tried: set[str] = set()
        self.trials = 0

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return self._clock() - self._begun

    @property
    def tried(self) -> int:
        """The number of cases that have been run again to the end."""
        return len(self._tried)

    @property
    def failure(self) -> str:
        """Why the search is incomplete, or an empty string."""
        return "; ".join(reason for reason in (self._spent, self._broken) if reason)

    def origins(self, culprits: Culprits) -> Mapping[str, Sequence[str]]:
        """Return, by meter, lines about the origin of the leaks; none if the remaining time is too short to find it.

        Raises NoDeviceError.
        """
        members = [self._cases[case] for case in culprits.cases]
        meters = [leak.meter for leak in culprits.leaks]
        origins: Mapping[str, Sequence[str]] = {}
        if self._time.left <= 0:
            return origins
        handle = self._lane.spawn(members[0])
        try:
            for number in range(ROUNDS):
                answer = self._round(handle, members, number, meters)
                if not isinstance(answer, dict):
                    break
                origins = answer["origins"]
        except ZygoteError:
            self._lane.slot.drop_zygote()
        else:
            self._lane.slot.dispose(handle, "rehearsal", hold=True)
        return origins

    def trial(self, ids: Sequence[str], is_open: Open) -> CountedRounds:
        """Run cases round after round in a fresh process: a `harness.supervisor.leak_bisect.Trial`.

        Raises SpentError, NoDeviceError.
        """
        if self._time.left <= 0:
            raise self._give_up(self._time.used_up())
        self.trials += 1
        self._journal.rename_activity(f"{self._activity}: trial {self.trials}")
        members = [self._cases[case] for case in ids]
        handle = self._lane.spawn(members[0])
        try:
            rounds = self._rounds(handle, members, is_open)
        except ZygoteError as error:
            self._lane.slot.drop_zygote()
            self._broken = f"a process that ran {_several(members)} again: {str(error).splitlines()[0]}"
            return []
        except SpentError:
            self._lane.slot.dispose(handle, "rehearsal", hold=True)
            raise
        self._lane.slot.dispose(handle, "rehearsal", hold=True)
        if rounds:
            self._tried.update(ids)
        return rounds

    def _rounds(self, handle: ExecutorHandle, members: Sequence[Case], is_open: Open) -> CountedRounds:
        """Run the rounds in this executor. Raises ZygoteError, SpentError."""
        rounds: list[Sequence[Mapping[str, int]]] = []
        begun = self._clock()
        for number in range(ROUNDS):
            answer = self._round(handle, members, number)
            if answer is NoMessage.DEADLINE and self._time.left <= 0:
                raise self._give_up(self._time.used_up())
            if not isinstance(answer, dict):
                ended = "did not finish in time" if handle.exit_status is None else format_exit_code(handle.exit_status)
                self._broken = f"a process that ran {_several(members)} again: {ended}"
                return []
            took = self._clock() - begun
            if number == 0 and took * (ROUNDS - 1) > self._time.left:
                round_time = f"one of {ROUNDS} rounds of {format_count(len(members), 'case')} takes {took:.1f} s"
                raise self._give_up(f"{round_time}, and {self._time.left:.0f} s are left for leak searches; {MORE}")
            if number >= WARMUP_ROUNDS:
                rounds.append([self._looked_at(growths) for growths in answer["cases"]])
                if not is_open(rounds):
                    break
        return rounds

    def _looked_at(self, growths: Mapping[str, int]) -> Mapping[str, int]:
        return {name: amount for name, amount in growths.items() if name not in self._without}

    def _round(
        self, handle: ExecutorHandle, members: Sequence[Case], number: int, history: Sequence[str] = ()
    ) -> Message | NoMessage:
        """Run one round of the cases. Raises ZygoteError."""
        following = [*(case.id for case in members[1:]), None]
        entries = [CaseRequest(case, after).fields for case, after in zip(members, following, strict=True)]
        counts = {
            "counts": number >= WARMUP_ROUNDS,
            "last": number == ROUNDS - 1,
            "history": list(history),
        }
        handle.send({"op": "round", "cases": entries, **counts})
        limit = sum(case.limit for case in members) + GRACE
        return handle.receive(self._clock() + min(limit, max(0.0, self._time.left)))

    def _give_up(self, why: str) -> SpentError:
        self._spent = self._spent or why
        return SpentError(why)


def _several(members: Sequence[Case]) -> str:
    return members[0].id if len(members) == 1 else f"{len(members)} of the cases"


def describe(culprits: Culprits) -> str:
    """Return one line with the cases and what they leak."""
    return f"{_who(culprits)}: {culprits.leaks[0].text}"


def _who(culprits: Culprits) -> str:
    cases, grows = culprits.cases, culprits.grows
    others = [case for case in cases if case != grows]
    if len(cases) == 1:
        return f"{cases[0]} leaks" if culprits.certain else f"{cases[0]} may leak"
    if not grows and culprits.certain:
        return f"these {len(cases)} cases leak together, each of them a part; the first is {cases[0]}"
    if not grows:
        return f"one or more of {len(cases)} cases may leak; the first is {cases[0]}"
    if not culprits.certain:
        which = others[0] if len(others) == 1 else f"one or more of {len(others)} other cases; the first is {others[0]}"
        return f"{grows} may leak in one process with {which}"
    if len(others) < NAMED:
        return f"{grows} leaks only in one process with {' and '.join(others)}"
    return f"{grows} leaks only in one process with {len(others)} other cases; the first is {others[0]}"


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
        """For example ``executor main-e1 grew by 96.0 KiB (heap_bytes) over 120 cases``."""
        grown = format_growths(self.suspected)
        return f"executor {self.handle.name} grew by {grown} over {format_count(self.ran, 'case')}"


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
        if suspected := growth.suspicious_batch_growth(handle.end.grown, len(handle.cases)):
            cases = tuple(dict.fromkeys(handle.cases))
            self._suspicions.append(LeakSuspicion(handle, cases, len(handle.cases), suspected))

    def take_suspicions(self) -> list[LeakSuspicion]:
        """Return the suspicions, and forget them."""
        suspicions, self._suspicions = self._suspicions, []
        return suspicions

    def close(self, reason: str) -> None:
        """Record the suspicions that are left, and the `reason` why they are not searched."""
        for suspicion in self.take_suspicions():
            self._note(suspicion, suspicion.cases, reason)

    @contextmanager
    def looking_into(self, suspicion: LeakSuspicion, ran: Sequence[RanCase]) -> Generator[Iterator[Accusation]]:
        """Search these cases of the suspicion while time is left. The context's value are the accusations.

        At the end of the context the result is recorded. NoDeviceError and StoppedError in the context end the search,
        and are recorded as the reason why it is incomplete.
        """
        cases = [each.case.id for each in ran]
        if self._time.left <= 0:
            self._note(suspicion, cases, self._time.used_up())
            yield iter(())
            return
        culprits: list[Culprits] = []
        failure = ""
        suspected = suspicion.suspected
        activity = f"searching for leaks, because {suspicion.text}"
        turn = shared_memory_turn(
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
                without=() if SHARED_MEMORY_METERS & suspected.keys() else SHARED_MEMORY_METERS,
            )
            accusations: Iterator[Accusation] = iter(())
            try:
                if missing := self._lane.missing(len(suspicion.handle.binding.devices)):
                    raise NoDeviceError(missing)
                culprits = self._search(suspicion, ran, trials)
                accusations = self._accusations(suspicion, culprits, ran, trials)
            except (NoDeviceError, StoppedError) as error:
                failure = str(error)
            try:
                yield accusations
            except (NoDeviceError, StoppedError) as error:
                failure = str(error)
        self._lane.slot.release()
        self._note(suspicion, cases, failure or trials.failure, culprits, trials)

    def _search(self, suspicion: LeakSuspicion, ran: Sequence[RanCase], trials: LeakTrials) -> list[Culprits]:
        """Run all cases in one process if there is time for that. Otherwise run those that grew most, each alone."""
        cases = [each.case.id for each in ran]
        round_time = sum(each.duration for each in ran)
        if round_time * ROUNDS < self._time.left:
            return leaks.find_culprits(cases, trials.trial)
        by_case = {case: grown for case, grown in suspicion.handle.end.by_case.items() if case in cases}

        def is_explained(tried: Sequence[str]) -> bool:
            return growth.is_explained(suspicion.suspected, by_case, tried, suspicion.ran)

        return leaks.alone(growth.rank_by_growth(by_case), trials.trial, is_explained)

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
            described, lines = describe(culprits), leak_lines(culprits.leaks, trials.origins(culprits))
            times = growth.runs_to_suspect(culprits.leaks[0], len(culprits.cases))
            command = self._lines.reproduce_leak([known[case] for case in culprits.cases], times, suspicion.handle)
            if len(culprits.cases) > 1:
                self._journal.add_finding("batch_leak", "; ".join([described, *lines]), culprits.cases, command)
                continue
            (case,) = culprits.cases
            yield Accusation(case, culprits.leaks[0].text, described, tuple(lines), command, len(suspicion.cases))

    def _note(
        self,
        suspicion: LeakSuspicion,
        cases: Sequence[str],
        failure: str,
        found: Sequence[Culprits] = (),
        trials: LeakTrials | None = None,
    ) -> None:
        """Record the result of a search. `failure`: what remains unknown, and why."""
        self._journal.record(
            Batch(
                t=clock.now(),
                executor=suspicion.handle.name,
                cases=tuple(cases),
                suspicions={**suspicion.suspected},
                leaks=tuple(describe(culprits) for culprits in found if culprits.certain),
                unproven=tuple(describe(culprits) for culprits in found if not culprits.certain),
                tried=0 if trials is None else trials.tried,
                trials=0 if trials is None else trials.trials,
                seconds=0.0 if trials is None else round(trials.seconds, 3),
                failure=failure,
            )
        )
