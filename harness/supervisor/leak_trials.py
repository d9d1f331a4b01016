"""Repeats the cases of a batch that has grown, round after round in fresh processes, within the time for searches."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from harness.checks.batch import COUNTED_ROUNDS, WARMUP_ROUNDS, CountedRounds
from harness.checks.meters import format_growths
from harness.core.clock import monotonic
from harness.core.text import format_count, format_exit_code
from harness.protocol.wire import Message
from harness.supervisor import leak_confirmation as confirmation
from harness.supervisor.attempt import GRACE
from harness.supervisor.case import Case
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage
from harness.supervisor.lane import Lane
from harness.supervisor.leak_bisect import Culprits, Open, SpentError
from harness.supervisor.search_time import MORE, SearchTime
from harness.supervisor.worker_journal import WorkerJournal
from harness.zygote.client import ZygoteError

#: The most cases that one line names.
NAMED = 5


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
            for number in range(WARMUP_ROUNDS + COUNTED_ROUNDS):
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
        for number in range(WARMUP_ROUNDS + COUNTED_ROUNDS):
            answer = self._round(handle, members, number)
            if answer is NoMessage.DEADLINE and self._time.left <= 0:
                raise self._give_up(self._time.used_up())
            if not isinstance(answer, dict):
                ended = "did not finish in time" if handle.exit_status is None else format_exit_code(handle.exit_status)
                self._broken = f"a process that ran {_several(members)} again: {ended}"
                return []
            took = self._clock() - begun
            if number == 0 and took * (WARMUP_ROUNDS + COUNTED_ROUNDS - 1) > self._time.left:
                rounds_in_all = WARMUP_ROUNDS + COUNTED_ROUNDS
                round_time = f"one of {rounds_in_all} rounds of {format_count(len(members), 'case')} takes {took:.1f} s"
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
        entries = [
            {"case": case.id, "seed": case.seed, "limit": case.limit, "next": after}
            for case, after in zip(members, following, strict=True)
        ]
        counts = {
            "counts": number >= WARMUP_ROUNDS,
            "last": number == WARMUP_ROUNDS + COUNTED_ROUNDS - 1,
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


def growth_text(executor: str, grown: Mapping[str, int], cases: int) -> str:
    """Return, for example, ``executor main-e1 grew by 96.0 KiB (heap_bytes) over 120 cases``."""
    return f"executor {executor} grew by {format_growths(grown)} over {format_count(cases, 'case')}"


def describe(culprits: Culprits) -> str:
    """Return one line with the cases and what they leak."""
    return f"{_who(culprits)}: {culprits.leaks[0].text}"


def details(culprits: Culprits, origins: Mapping[str, Sequence[str]]) -> list[str]:
    """Return further lines: the other leaks, and the origin of each."""
    return confirmation.leak_lines(culprits.leaks, origins)


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
