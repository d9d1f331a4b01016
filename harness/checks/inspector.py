"""Checks an executor around each case: its state must be unchanged, its resources released, and its devices usable."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import getpid  # imported by name: a case may have replaced the attribute of the module
from typing import Literal

from harness.backends.table import BACKENDS
from harness.checks import process, process_meters, trend
from harness.checks.growth import BatchGrowth, KeptMemory
from harness.checks.growth import suspicious_batch_growth as suspicions_of_batch
from harness.checks.keeping import Keeps
from harness.checks.meters import (
    MeterReader,
    MeterReading,
    Tier,
    add_amounts,
    collect_garbage,
    meter_growths,
    meter_of,
    suspicious_growths,
)
from harness.checks.state.guard import FixtureProblem, LiveFixture, StateGuard
from harness.core import linux
from harness.core.outcome import Outcome
from harness.core.plain_values import safe_repr
from harness.protocol.endings import StateProblem

#: ``--leak-check``: no check, the cheap meters, or all meters after every case.
LeakCheck = Literal["off", "fast", "full"]


@dataclass(frozen=True, slots=True)
class _Holding:
    """The growth of exact meters during the set-up of a fixture, and the case that needed the fixture first."""

    case: str
    grown: Mapping[str, int]


class StateInspector:
    """Compares an executor with itself, case after case.

    The reading after a case is also the reading before the next one. What a fixture of a wider scope holds is expected
    while it is set up, and expected to be gone when it has ended.
    """

    def __init__(self, guard: StateGuard, level: LeakCheck) -> None:
        """`guard` may have been made before the fork: it watches fixtures from then on."""
        self._guard = guard
        self._tier: Tier = "full" if level == "full" else "fast"
        self._meters = None if level == "off" else MeterReader(self._tier)
        self._before: MeterReading | None = None
        self._reported: set[str] = set()
        self._batch = BatchGrowth()
        self._kept = KeptMemory()
        self._suspected: dict[str, int] = {}
        self._collected: dict[str, int] = {}
        self._case = ""
        self._begun = False
        self._holdings: dict[LiveFixture, _Holding] = {}
        #: Holdings of the fixtures that have ended since the last reading, and what they may have left.
        self._ended: list[_Holding] = []
        self._left: list[_Holding] = []
        #: What fixtures hold that were set up inside of others whose set-up is running, outermost first.
        self._inside: list[dict[str, int]] = []
        #: By meter, the amount in use at the last `end` with `levels`.
        self.levels: dict[str, int] = {}

    def begin(self, case: str = "") -> None:
        """Take the first reading, if there is none yet. Only cases may use a device after it. `case`: the next case."""
        self._case = case
        if not self._begun:
            self._begun = True
            self._guard.capture()
            self._before = None if self._meters is None else self._meters.read()

    @contextmanager
    def setting_up(self, fixture: LiveFixture) -> Iterator[None]:
        """Wrap the set-up of a fixture: the growth of exact meters inside belongs to the fixture."""
        before = self._try_reading()
        self._inside.append({})
        try:
            yield
        finally:
            inside, after = self._inside.pop(), self._try_reading()
            if before is not None and after is not None:
                grown = {
                    name: more
                    for name, amount in meter_growths(before, after).items()
                    if meter_of(name).is_exact and (more := amount - inside.get(name, 0)) > 0
                }
                self._holdings[fixture] = _Holding(self._case, grown)
                self._expect(grown, 1)
                if self._inside:
                    add_amounts(self._inside[-1], inside)
                    add_amounts(self._inside[-1], grown)

    def finished(self, fixture: LiveFixture) -> None:
        """Expect that a fixture no longer holds anything."""
        holding = self._holdings.pop(fixture, None)
        if holding is not None and holding.grown:
            self._expect(holding.grown, -1)
            self._ended.append(holding)

    def _try_reading(self) -> MeterReading | None:
        """Return a reading during a case, None if there is none. The check at the end of the case reports failures."""
        if self._meters is not None and self._before is not None:
            with contextlib.suppress(Exception):  # the case may have replaced anything that is read
                return self._meters.read()
        return None

    def _expect(self, amounts: Mapping[str, int], sign: int) -> None:
        """Count with amounts that a fixture holds (`sign` 1) or has released (-1)."""
        if self._meters is not None and self._before is not None:
            self._before = {**self._before}
            add_amounts(self._before, amounts, sign)
            self._meters.expect(amounts, sign)

    def end(
        self, case: str = "", *, levels: bool = False, keeps: Keeps | None = None, has_raised: bool = False
    ) -> tuple[list[StateProblem], dict[str, int]]:
        """Return the state that has changed, and by meter the suspicious growth. Restore the state where that is safe.

        `case`: the id of the case that has run. With `levels`, collects garbage first and sets `self.levels` to the
        amounts in use. With `keeps`, leaves out growth that the mark of the case allows. The growth of a case that
        `has_raised` does not count for the batch: when pytest shows its first errors, it creates objects that it keeps
        (measured: some 80 KB each, and 3 MiB of arenas).
        """
        self.levels = {}
        if not self._begun:
            return [], {}
        try:
            problems = self._guard.compare()
            if problems:
                self._guard.restore()
            if self._meters is None or self._before is None:
                return problems, {}
            if levels:
                collect_garbage()
            before, self._before = self._before, self._meters.read()
            if levels:
                self.levels = _levels(self._before)
        except Exception as error:  # noqa: BLE001
            # A case may have replaced anything that is read here, so the case causes any exception.
            self._meters = None
            text = f"changed the process so that its state cannot be read: {safe_repr(error)}"
            return [StateProblem(Outcome.CONTAMINATED, text)], {}
        changes = meter_growths(before, self._before)
        if keeps is not None:
            changes = self._kept.beyond(changes, keeps)
        self._suspected = suspicious_growths(changes, self._tier)
        self._left = self._take_left(changes)
        self._batch.add_case(case, {} if has_raised else changes, self._suspected)
        return problems, self._suspected

    def _take_left(self, changes: Mapping[str, int]) -> list[_Holding]:
        """Return the parts of these changes that the fixtures which have ended may have left."""
        ended, self._ended = self._ended, []
        rest = dict(changes)
        left = []
        for holding in ended:
            part = {name: kept for name, held in holding.grown.items() if (kept := min(held, rest.get(name, 0))) > 0}
            if part:
                left.append(_Holding(holding.case, part))
                add_amounts(rest, part, -1)
        return left

    @property
    def several(self) -> bool:
        """Whether more than one case has been compared since the start or the last `finish`."""
        return self._batch.several

    def unreadable(self) -> list[str]:
        """Return what could not be read, and why. Each failure is returned once."""
        if not self._guard.unreadable and (self._meters is None or not self._meters.unreadable):
            return []
        reasons = {f"state {position}": why for position, why in self._guard.unreadable.items()}
        if self._meters is not None:
            reasons |= {f"meter {name}": why for name, why in self._meters.unreadable.items()}
        new = [
            f"the leak check cannot read {subject}: {why}"
            for subject, why in reasons.items()
            if subject not in self._reported
        ]
        self._reported |= set(reasons)
        return new

    def grown(self, *, keeps: Keeps | None = None, has_raised: bool = False) -> dict[str, int]:
        """Return the changes since the last reading by meter, after a case has run again. For the arguments see `end`.

        State that the second run has changed is restored, and does not count against the next case.
        """
        if self._meters is None or self._before is None:
            return {}
        if self._guard.compare():
            self._guard.restore()
        changes = self._changes(self._meters, self._before)
        if keeps is not None:
            changes = self._kept.beyond(changes, keeps)
        self._batch.add_rerun({} if has_raised else changes, self._suspected)
        for holding in self._left:  # the case has not left it, so the batch may find the case that set the fixture up
            own = {name: amount for name, amount in holding.grown.items() if changes.get(name, 0) <= 0}
            self._batch.add_to_case(holding.case, own)
        self._left, self._ended = [], []
        return changes

    def collect(self) -> None:
        """Collect garbage before the last tear-down, so that the growth of several cases up to then is known.

        Garbage among objects that the meters have frozen can only add to the growth. The search for it takes up to a
        second, so it is made only if the growth is suspicious.
        """
        if self._meters is None or self._before is None or not self._batch.several:
            return
        before = self._before
        collect_garbage()
        self._meters.release_caches()
        self._collected = self._changes(self._meters, before)
        if suspicions_of_batch(self._batch.sum_with(self._collected), self._batch.cases):
            self._meters.collect_all()
            self._meters.release_caches()
            self._collected = self._changes(self._meters, before)

    def finish(self) -> tuple[list[StateProblem], dict[str, int], dict[str, dict[str, int]]]:
        """Return, after the last tear-down, the state that has changed, and the growth of all cases together by meter.

        If that growth is suspicious, also return the growth of each case by case and meter.
        """
        collected = self._before
        batch, self._batch = self._batch, BatchGrowth()
        problems, _ = self.end()
        if collected is None or self._meters is None or self._before is None:
            return problems, {}, {}
        torn_down = meter_growths(collected, self._before)
        for holding in self._left:
            batch.add_to_case(holding.case, holding.grown, counted=True)
        grown = batch.total(self._collected, torn_down, readable=self._before)
        if "heap_bytes" in grown:
            grown["heap_bytes"] = max(0, grown["heap_bytes"] - batch.cases * heap_of_drivers())
        return problems, grown, batch.by_case(suspicions_of_batch(grown, batch.cases))

    def _changes(self, meters: MeterReader, last: MeterReading) -> dict[str, int]:
        self._before = meters.read()
        return meter_growths(last, self._before)


def heap_of_drivers() -> int:
    """Return how many bytes of malloc memory the drivers in use may keep per case of a batch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return 0
    return sum(
        backend.heap_per_case
        for backend in BACKENDS.values()
        if backend.heap_per_case and backend.is_initialized(torch)
    )


def _levels(reading: MeterReading) -> dict[str, int]:
    """Return the values that are useful over many repetitions. Two of them are read only here."""
    values = {
        "python_blocks": sys.getallocatedblocks(),
        "resident_bytes": process_meters.resident_bytes(),
        **reading,
    }
    return {name: value for name, value in values.items() if trend.trend_rule_of(name) is not None}


class ChildWatch:
    """Finds the processes that a case or a fixture has left running. One system call if there are none.

    A process that appears during the set-up of a fixture belongs to the fixture. One that appears later, while fixtures
    are set up, may belong to one of them, as that of a pool that starts its workers when they are needed. It is judged
    when the last of these fixtures ends; until then, the meter of child processes decides whether the case leaks one
    each time it runs.
    """

    def __init__(self, live: Callable[[], Collection[LiveFixture]]) -> None:
        """`live` returns the fixtures that are set up. The present children, for example of a device, may stay."""
        self._live = live
        self._known = set(_children())
        #: By process id, the fixtures that are set up and may have started it.
        self._held: dict[int, set[LiveFixture]] = {}
        #: By process id, the fixture with whose end it should have ended.
        self._overdue: dict[int, LiveFixture] = {}
        #: The processes that appeared during the last case.
        self._latest: list[int] = []

    @contextmanager
    def setting_up(self, fixture: LiveFixture) -> Iterator[None]:
        """Wrap the set-up of a fixture: the processes that appear inside belong to it, or to a fixture inside."""
        before = set(_children())
        try:
            yield
        finally:
            for pid in {*_children()} - before - self._held.keys():
                self._held[pid] = {fixture}

    def finished(self, fixture: LiveFixture) -> None:
        """Expect the processes of a fixture to have ended."""
        for pid, owners in [*self._held.items()]:
            owners.discard(fixture)
            if not owners:
                del self._held[pid]
                self._overdue[pid] = fixture

    def leave_to_case(self) -> None:
        """Expect no fixture to end the processes that appeared during the last case, which leaks one each time."""
        for pid in self._latest:
            self._held.pop(pid, None)
            self._overdue.pop(pid, None)

    def check(self) -> tuple[list[StateProblem], list[FixtureProblem]]:
        """Return the processes that the case has left running, and those that fixtures have left when they ended."""
        now = set(_children())
        pause = process.Patience(process.TRANSITION_PATIENCE)
        overdue, self._overdue = self._overdue, {}
        problems = [
            FixtureProblem(fixture, StateProblem(Outcome.LEAKED, f"{fixture.label} {text}"))
            for pid, fixture in sorted(overdue.items())
            if pid in now and (text := _leftover(pid, pause)) is not None
        ]
        self._held = {pid: owners for pid, owners in self._held.items() if pid in now}
        new = sorted(now - self._known - self._held.keys() - overdue.keys())
        self._known = now
        self._latest = new
        if new and (live := self._live()):
            self._held.update((pid, {*live}) for pid in new)
            new = []
        texts = [_leftover(pid, pause) for pid in new]
        return [StateProblem(Outcome.LEAKED, text) for text in texts if text is not None], problems


def _children() -> list[int]:
    return linux.child_pids() if linux.has_children() else []


def _leftover(pid: int, pause: Callable[[], bool]) -> str | None:
    own = (linux.describe_process(getpid()) or linux.GONE).command
    text = process.describe_leftover(process.describe_settled(pid, pause), pid, own)
    return None if text is None else f"left a child process running: {text}"


def sticky_error() -> str | None:
    """Return the text of a sticky error.

    Return None if every initialised device of the process answers, or none is initialised. An illegal address or a
    device-side assert makes every later call of the process fail (CUDA Runtime API, "sticky" errors). Often only the
    next synchronisation shows the error. Software devices behave the same. This function never creates a context.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    for backend in BACKENDS.values():
        if not backend.is_initialized(torch):
            continue
        try:
            for index in range(backend.device_count(torch)):
                backend.synchronize(torch, index)
        except RuntimeError as error:
            return str(error).strip() or repr(error)
    return next((text for backend in BACKENDS.values() for text in backend.failures(torch) if text), None)
