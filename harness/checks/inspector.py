"""What is looked at around each case in an executor: state that must be as it was, and resources that must be back."""

from __future__ import annotations

import sys
from typing import Literal

from harness.checks import trend as soak
from harness.checks.batch import Tally
from harness.checks.meters import process as meters_process
from harness.checks.meters.table import Meters, Reading, Tier, collect_garbage, growths, suspicions
from harness.checks.process import Problem
from harness.checks.state.guard import StateGuard
from harness.outcome import Outcome

#: ``--leak-check``: nothing, what is cheap, or all there is after every case.
LeakCheck = Literal["off", "fast", "full"]


class Inspector:
    """Compares an executor with itself, case after case. Each look is the next case's look before."""

    def __init__(self, guard: StateGuard, level: LeakCheck) -> None:
        """`guard` may have been made before the fork, since its fixtures are watched from there."""
        self._guard = guard
        self._tier: Tier = "full" if level == "full" else "fast"
        self._meters = None if level == "off" else Meters(self._tier)
        self._before: Reading | None = None
        self._told: set[str] = set()
        self._tally = Tally()
        self._suspected: dict[str, int] = {}
        self._collected: dict[str, int] = {}
        #: By meter, what was in use at the last `end` that was asked for it.
        self.levels: dict[str, int] = {}

    def begin(self) -> None:
        """Look for the first time, if there was none yet: as late as can be, so that it is the case's own doing."""
        if self._meters is not None and self._before is None:
            self._guard.capture()
            self._before = self._meters.read()

    def end(self, *, levels: bool = False, keeps: bool = False) -> tuple[list[Problem], dict[str, int]]:
        """What is not as it was, put back where that is safe; and by meter what has grown enough to look into.

        With `levels` garbage is collected first, and `levels` has what is in use now. Of a case that `keeps` memory
        growth is not looked at.
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
            # A case may have put anything in the place of what is read, and what that raises is the case's doing.
            self._meters = None
            text = f"left the process so that its state cannot be read: {error!r}"
            return [Problem(Outcome.CONTAMINATED, text)], {}
        self._suspected = {} if keeps else suspicions(before, self._before, self._tier)
        self._tally.case({} if keeps else growths(before, self._before), self._suspected)
        return problems, self._suspected

    def blind(self) -> list[str]:
        """What could not be looked at, and why; each told once."""
        found = {f"state {position}": why for position, why in self._guard.blind.items()}
        if self._meters is not None:
            found |= {f"meter {name}": why for name, why in self._meters.blind.items()}
        new = [f"the leak check is blind for {what}: {why}" for what, why in found.items() if what not in self._told]
        self._told |= set(found)
        return new

    def grown(self) -> dict[str, int]:
        """By meter, what has changed since the last look."""
        if self._meters is None or self._before is None:
            return {}
        changes = self._changes(self._meters, self._before)
        self._tally.again(changes, self._suspected)
        return changes

    def collect(self) -> None:
        """Before the last tear-down: let go of garbage, so that what several cases have left by then is known."""
        if self._meters is not None and self._before is not None and self._tally.several:
            collect_garbage()
            self._collected = self._changes(self._meters, self._before)

    def leave(self) -> tuple[list[Problem], dict[str, int]]:
        """After the last tear-down: what is not as it was, and by meter what has grown over all cases together."""
        collected = self._before
        tally, self._tally = self._tally, Tally()
        problems, _ = self.end()
        if collected is None or self._meters is None or self._before is None:
            return problems, {}
        return problems, tally.end(self._collected, growths(collected, self._before))

    def _changes(self, meters: Meters, last: Reading) -> dict[str, int]:
        self._before = meters.read()
        return growths(last, self._before)


def _levels(reading: Reading) -> dict[str, int]:
    """What tells something over many repetitions, some of which is read for that alone."""
    values = {"python_blocks": sys.getallocatedblocks(), "resident_bytes": meters_process.resident(), **reading.values}
    return {name: value for name, value in values.items() if soak.watched(name) is not None}
