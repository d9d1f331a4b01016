"""How long a worker may search for leaks: a share of the time that the run takes, and no more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from harness.core.clock import monotonic

#: The share of a worker's time that its searches may take, and the seconds that they may take in any run.
SHARE = 0.1
LEAST = 10.0
MORE = "--leak-search=SECONDS gives more"


class SearchTime:
    """The time for all searches of one worker. Its time begins when this object is made."""

    def __init__(self, limit: float | None, multiplier: float = 1.0, *, clock: Callable[[], float] = monotonic) -> None:
        """`limit`: in seconds; None for a tenth of the worker's time, at least `LEAST`. Both are multiplied.

        `clock` must be the clock of the executors' deadlines.
        """
        self._limit = limit
        self._multiplier = multiplier
        self._clock = clock
        self._began = clock()
        self._spent = 0.0
        self._since: float | None = None

    @property
    def limit(self) -> float:
        """The seconds that all searches up to now may take together."""
        if self._limit is not None:
            return self._limit * self._multiplier
        return max(LEAST, SHARE * (self._clock() - self._began - self.spent)) * self._multiplier

    @property
    def spent(self) -> float:
        """The seconds that searches took, including the current one."""
        return self._spent + (self._clock() - self._since if self._since is not None else 0.0)

    @property
    def left(self) -> float:
        """The seconds that are left; 0 or less if the time is used up."""
        return self.limit - self.spent

    @property
    def is_off(self) -> bool:
        """Whether there is no time at all: the user wants no search."""
        return self._limit == 0

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time in this context as a search. Contexts may nest; only the outer one counts."""
        outer, self._since = self._since, self._clock() if self._since is None else self._since
        try:
            yield
        finally:
            if outer is None:
                self._spent, self._since = self.spent, None

    def used_up(self) -> str:
        """Return a text that says why nothing more is searched."""
        return "--leak-search=off" if self.is_off else f"the {self.limit:.0f} s for leak searches are used up; {MORE}"
