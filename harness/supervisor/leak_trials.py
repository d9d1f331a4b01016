"""A batch that has grown as a whole is looked into: its cases run again in fresh processes, fewer and fewer of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from harness.checks.batch import Counted
from harness.checks.growth import COUNTED, WARMUP
from harness.checks.meters.table import meter_of, quantity
from harness.diagnosis.leaks import Culprits, Open, SpentError, search
from harness.protocol.wire import Message
from harness.supervisor import leak_confirmation as confirmation
from harness.supervisor.attempt import GRACE
from harness.supervisor.case import Case
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage
from harness.supervisor.executor_slot import ExecutorSlot
from harness.text import exit_text
from harness.zygote.client import ZygoteError

#: Most processes that one batch is worth: a pair among 400 cases is found with some 40.
MOST_TRIALS = 60
#: Seconds, at most, that one batch is worth.
MOST_SECONDS = 600.0


class LeakTrials:
    """Looks into one batch."""

    def __init__(
        self,
        cases: Sequence[Case],
        *,
        spawn: Callable[[Case], ExecutorHandle],
        slot: ExecutorSlot,
        seconds: float,
        tell: Callable[[int], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cases` in the order in which they ran; `spawn` makes an executor for one, in the `slot`.

        It takes `seconds` at most, but for what tells where growth is from. `tell` hears the number of each trial that
        begins. `clock` is that of the handles' deadlines.
        """
        self._clock = clock
        self._cases = {case.id: case for case in cases}
        self._spawn = spawn
        self._slot = slot
        self._seconds = seconds
        self._tell = tell
        self._begun = clock()
        self._spent = ""
        self._broken = ""
        self.trials = 0

    def find(self) -> list[Culprits]:
        """What leaks. Raises NoDeviceError."""
        return search(list(self._cases), self._trial)

    @property
    def seconds(self) -> float:
        """How long it took until now."""
        return self._clock() - self._begun

    @property
    def failure(self) -> str:
        """What kept it from finding out all, or an empty text."""
        return "; ".join(reason for reason in (self._spent, self._broken) if reason)

    def origins(self, culprits: Culprits) -> Mapping[str, Sequence[str]]:
        """By meter, lines that say where what they leak is from; none where that is not found out.

        Raises NoDeviceError.
        """
        members = [self._cases[case] for case in culprits.cases]
        meters = [leak.meter for leak in culprits.leaks]
        handle = self._spawn(members[0])
        told: Mapping[str, Sequence[str]] = {}
        try:
            for number in range(WARMUP + COUNTED):
                heard = self._round(handle, members, number, meters)
                if not isinstance(heard, dict):
                    break
                told = heard["origins"]
        except ZygoteError:
            self._slot.drop_zygote()
        else:
            self._slot.dispose(handle, "rehearsal", hold=True)
        return told

    def _trial(self, ids: Sequence[str], is_open: Open) -> Counted:
        """Run cases round after round in a fresh process. Raises SpentError, NoDeviceError."""
        if self.trials >= MOST_TRIALS:
            raise self._give_up(f"{MOST_TRIALS} trials were made")
        if self.seconds >= self._seconds:
            raise self._give_up(f"{self._seconds:g} s had passed")
        self.trials += 1
        self._tell(self.trials)
        members = [self._cases[case] for case in ids]
        handle = self._spawn(members[0])
        try:
            counted = self._rounds(handle, members, is_open)
        except ZygoteError as error:
            self._slot.drop_zygote()
            self._broken = f"a process that ran {len(ids)} of the cases again: {str(error).splitlines()[0]}"
            return []
        except SpentError:
            self._slot.dispose(handle, "rehearsal", hold=True)
            raise
        self._slot.dispose(handle, "rehearsal", hold=True)
        return counted

    def _rounds(self, handle: ExecutorHandle, members: Sequence[Case], is_open: Open) -> Counted:
        """Raises ZygoteError, SpentError."""
        counted: list[Sequence[Mapping[str, int]]] = []
        begun = self._clock()
        for number in range(WARMUP + COUNTED):
            heard = self._round(handle, members, number)
            if heard is NoMessage.DEADLINE and self.seconds >= self._seconds:
                raise self._give_up(f"{self._seconds:g} s had passed")
            if not isinstance(heard, dict):
                ended = "not in time" if handle.exit_status is None else exit_text(handle.exit_status)
                self._broken = f"a process that ran {len(members)} of the cases again: {ended}"
                return []
            took = self._clock() - begun
            if number == 0 and took * (WARMUP + 1) > took + self._seconds - self.seconds:
                raise self._give_up(f"{len(members)} cases take {took:.0f} s, and {WARMUP + COUNTED} times as long")
            if number >= WARMUP:
                counted.append(heard["cases"])
                if not is_open(counted):
                    break
        return counted

    def _round(
        self, handle: ExecutorHandle, members: Sequence[Case], number: int, history: Sequence[str] = ()
    ) -> Message | NoMessage:
        """Raises ZygoteError."""
        following = [*(case.id for case in members[1:]), None]
        entries = [
            {"case": case.id, "seed": case.seed, "limit": case.limit, "next": after}
            for case, after in zip(members, following, strict=True)
        ]
        counts = {"counts": number >= WARMUP, "last": number == WARMUP + COUNTED - 1, "history": list(history)}
        handle.send({"op": "round", "cases": entries, **counts})
        limit = sum(case.limit for case in members) + GRACE
        left = limit if history else max(1.0, self._seconds - self.seconds)
        return handle.receive(self._clock() + min(limit, left))

    def _give_up(self, why: str) -> SpentError:
        self._spent = f"given up: {why}"
        return SpentError(self._spent)


def looking_into(executor: str, grown: Mapping[str, int], cases: int) -> str:
    """Words that follow "is": ``looking into why executor main-e1 grew by 96.0 KiB (heap_bytes) over 120 cases``."""
    by = [f"{quantity(amount, meter_of(name).unit)} ({name})" for name, amount in grown.items()]
    return f"looking into why executor {executor} grew by {', '.join(by)} over {cases} cases"


def describe(culprits: Culprits) -> str:
    """One line: which cases, and what they leak."""
    return f"{_who(culprits)}: {culprits.leaks[0].text}"


def details(culprits: Culprits, origins: Mapping[str, Sequence[str]]) -> list[str]:
    """Further lines: other leaks, and where each is from."""
    return confirmation.lines(culprits.leaks, origins)


def _who(culprits: Culprits) -> str:
    cases, grows = culprits.cases, culprits.grows
    others = [case for case in cases if case != grows]
    if len(cases) == 1:
        return f"{cases[0]} leaks" if culprits.certain else f"{cases[0]} leaks, it seems"
    if not grows and culprits.certain:
        return f"these {len(cases)} cases leak together, each of them some"
    if not grows:
        return f"one or more of these {len(cases)} cases leak, the first {cases[0]}"
    if culprits.certain:
        return f"{grows} leaks in the company of {' and '.join(others)}, and not without"
    if len(others) == 1:
        return f"{grows} leaks, it seems in the company of {others[0]}"
    return f"{grows} leaks in the company of one or more of {len(others)} other cases, the first {others[0]}"
