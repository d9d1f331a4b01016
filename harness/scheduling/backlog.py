"""Which cases a worker gets next: decisions over plain values. Cases are positions in the list of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

#: A case is long if it takes more than this part of what each worker has to do. Only long cases leave their place. The
#: others stay with those of their file, whose fixtures they share. What is left at the end is short.
LONG = 1 / 32
#: The part of what is left for each worker that one worker gets at a time. Less towards the end.
SHARE = 1 / 4
#: A worker needs to know its next case before it begins one, so it has two.
_LEAST = 2


class Backlog:
    """The cases that no worker has yet. Long ones are given out first, the longest before all others."""

    def __init__(self, seconds: Sequence[float], workers: int) -> None:
        """`seconds`: how long each case is expected to take."""
        self._seconds = seconds
        self._left = sum(seconds)
        limit = self._left / max(workers, 1) * LONG
        self._is_long = [each > limit for each in seconds]
        by_length = sorted(range(len(seconds)), key=lambda position: (-seconds[position], position))
        self._long = deque(position for position in by_length if self._is_long[position])
        self._short = deque(position for position in range(len(seconds)) if not self._is_long[position])

    def __len__(self) -> int:
        return len(self._long) + len(self._short)

    def put_back(self, positions: Iterable[int]) -> None:
        """Take back cases that a worker did not run."""
        for position in sorted(positions, reverse=True):
            self._left += self._seconds[position]
            (self._long if self._is_long[position] else self._short).appendleft(position)

    def first(self) -> list[int]:
        """The first case of a worker; empty if none is left."""
        return [self._pop(self._long or self._short)] if self else []

    def more(self, queue: Sequence[int], workers: int) -> list[int]:
        """Further cases for a worker with this `queue`, whose first case runs. Empty while it has enough.

        Behind a long case comes a short one: another worker may be free for a long one before.
        """
        have, waits = list(queue), sum(self._seconds[position] for position in queue[1:])
        goal = SHARE * self._left / max(workers, 1)
        if len(have) >= _LEAST and (self._long or waits >= goal / 2):
            return []
        while self and (len(have) < _LEAST or (not self._long and waits < goal)):
            position = self._next(behind_long=bool(have) and self._is_long[have[-1]])
            waits += self._seconds[position] if have else 0.0
            have.append(position)
        return have[len(queue) :]

    def _next(self, *, behind_long: bool) -> int:
        if behind_long and self._short:
            return self._pop(self._short)
        if behind_long and self._seconds[self._long[-1]] < self._seconds[self._long[0]]:
            self._long.rotate(1)  # only long cases are left: the shortest of them
        return self._pop(self._long or self._short)

    def _pop(self, cases: deque[int]) -> int:
        position = cases.popleft()
        self._left -= self._seconds[position]
        return position
