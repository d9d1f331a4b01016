"""What is looked at around each case in an executor: state that must be as it was, and resources that must be back."""

from __future__ import annotations

from typing import Literal

from harness.checks.meters import Meters, Reading, Tier, growths, suspicions
from harness.checks.process import Problem
from harness.checks.state import StateGuard
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

    def begin(self) -> None:
        """Look for the first time, if there was none yet: as late as can be, so that it is the case's own doing."""
        if self._meters is not None and self._before is None:
            self._guard.capture()
            self._before = self._meters.read()

    def end(self) -> tuple[list[Problem], dict[str, int]]:
        """What is not as it was, put back where that is safe; and by meter what has grown enough to look into."""
        if self._meters is None or self._before is None:
            return [], {}
        try:
            problems = self._guard.compare()
            if problems:
                self._guard.restore()
            before, self._before = self._before, self._meters.read()
        except Exception as error:  # noqa: BLE001
            # A case may have put anything in the place of what is read, and what that raises is the case's doing.
            self._meters = None
            text = f"left the process so that its state cannot be read: {error!r}"
            return [Problem(Outcome.CONTAMINATED, text)], {}
        return problems, suspicions(before, self._before, self._tier)

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
        before, self._before = self._before, self._meters.read()
        return growths(before, self._before)
