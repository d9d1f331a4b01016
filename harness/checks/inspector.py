"""Checks an executor around each case: its state must be unchanged, and its resources must be released."""

from __future__ import annotations

import sys
from typing import Literal

from harness.backends.table import BACKENDS
from harness.checks import trend
from harness.checks.batch import BatchGrowth, KeptMemory
from harness.checks.batch import suspicious_batch_growth as suspicions_of_batch
from harness.checks.keeping import Keeps
from harness.checks.meters import process as meters_process
from harness.checks.meters.table import (
    MeterReader,
    MeterReading,
    Tier,
    collect_garbage,
    meter_growths,
    suspicious_growths,
)
from harness.checks.process import StateProblem
from harness.checks.state.guard import StateGuard
from harness.core.outcome import Outcome
from harness.core.plain_values import safe_repr

#: ``--leak-check``: no check, the cheap meters, or all meters after every case.
LeakCheck = Literal["off", "fast", "full"]


class StateInspector:
    """Compares an executor with itself, case after case.

    The reading after a case is also the reading before the next one.
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
        #: By meter, the amount in use at the last `end` with `levels`.
        self.levels: dict[str, int] = {}

    def begin(self) -> None:
        """Take the first reading, if there is none yet. Only cases may use a device after it."""
        if self._meters is not None and self._before is None:
            self._guard.capture()
            self._before = self._meters.read()

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
        if self._meters is None or self._before is None:
            return [], {}
        try:
            problems = self._guard.compare()
            if problems:
                self._guard.restore()
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
        self._batch.add_case(case, {} if has_raised else changes, self._suspected)
        return problems, self._suspected

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
        grown = batch.total(self._collected, torn_down, readable=self._before.values)
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
        "resident_bytes": meters_process.resident_bytes(),
        **reading.values,
    }
    return {name: value for name, value in values.items() if trend.trend_rule_of(name) is not None}
