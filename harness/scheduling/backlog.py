"""Decide which cases a worker gets next: pure decisions over plain values. Cases are positions in the list of a run.

A case is wide if it takes more than its worker's slot: several devices, or a device alone that several workers share.
If each worker could begin a wide case at any time, workers would wait for each other's devices again and again.
Therefore a few workers, the leaders, run all wide cases, one at a time. The other workers on these devices, the
lenders, get no case until no wide case is left.

A case is apart if it runs in its own process. The process of the previous cases ends before it, and a new process for
the next cases must load and initialise the same things again, which takes seconds on a GPU. Therefore a worker gets
cases that are apart one after the other.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Sequence

#: A case is long if it takes more than this share of each worker's work, and more than most cases. Only long cases are
#: moved. The others stay with the cases of their file, whose fixtures they share. The remaining cases at the end of a
#: run are short. A smaller share makes errors in the estimates matter less: with 64 workers and without history a run
#: of `suites/` took up to 1.22 times the minimum with 1/32, and 1.08 with 1/128 (in the model).
LONG = 1 / 128
#: The share of the remaining work per worker that one worker gets at a time. Less towards the end.
SHARE = 1 / 4
#: A worker needs to know its next case before it begins one, so it has two.
_LEAST = 2
#: A long case that is apart may wait behind another one while it takes less than this share of the remaining work per
#: worker: the workers have enough to do until then.
_EARLY = 1 / 8
#: A long case of the same kind as the previous one is preferred if it takes at least this part of the longest one.
_NEARLY = 1 / 2


#: The part of the run within which all wide cases should be done.
WIDE = 1 / 2


class Backlog:
    """The cases that no worker has yet. Long cases are handed out before all others, the longest first.

    Workers are identified by their position among the live ones, from 0.
    """

    def __init__(
        self,
        seconds: Sequence[float],
        workers: int,
        widths: Sequence[int] = (),
        devices: int | None = None,
        apart: Collection[int] = (),
    ) -> None:
        """`seconds`: the estimate per case. `widths`: the number of devices of a wide case, 0 for others.

        `devices`: how many devices the workers use; None for one per worker. The worker at position N uses device N
        modulo `devices`. `apart`: the cases that run in their own process.
        """
        self._seconds = seconds
        self._apart = frozenset(apart)
        self._devices = workers if devices is None else max(1, min(devices, workers))
        wide = [position for position, width in enumerate(widths) if width] if workers > 1 else []
        self._is_wide = frozenset(wide)
        #: The wide cases that leaders have but have not finished.
        self._given: set[int] = set()
        self._wide = deque(sorted(wide, key=lambda position: (-widths[position], -seconds[position], position)))
        most = min(self._devices, max((widths[position] for position in wide), default=1))
        self._group = most
        on_each = workers / self._devices
        shares = [widths[n] * on_each if n in self._is_wide else 1 for n in range(len(seconds))]
        #: The devices of leaders and lenders are those below this number.
        self._grouped = most * _leaders(seconds, shares, self._is_wide, workers, self._devices // most) if wide else 0
        self._left = sum(seconds)
        self._early = _EARLY / max(workers, 1)
        limit = longest_short(seconds, workers)
        self._is_long = [second > limit for second in seconds]
        narrow = [position for position in range(len(seconds)) if position not in self._is_wide]
        by_length = sorted(narrow, key=lambda position: (-seconds[position], position))
        #: The long cases, longest first: without and with those that are apart.
        self._long = tuple(
            deque(case for case in by_length if self._is_long[case] and (case in self._apart) is apart_ones)
            for apart_ones in (False, True)
        )
        #: Those that are apart come last.
        self._short = deque(
            sorted((case for case in narrow if not self._is_long[case]), key=lambda case: case in self._apart)
        )

    def __len__(self) -> int:
        return len(self._wide) + sum(map(len, self._long)) + len(self._short)

    def finish(self, position: int) -> bool:
        """Record that a worker has finished a case. Return whether idle workers may get cases now."""
        was_given = position in self._given
        self._given.discard(position)
        return was_given

    def put_back(self, positions: Iterable[int]) -> None:
        """Take back cases that a worker did not run."""
        for position in sorted(positions, reverse=True):
            self._left += self._seconds[position]
            if position in self._is_wide:
                self._given.discard(position)
                self._wide.appendleft(position)
            elif self._is_long[position]:
                self._long[position in self._apart].appendleft(position)
            elif position in self._apart:
                self._short.append(position)
            else:
                self._short.appendleft(position)

    def first(self, place: int) -> list[int]:
        """Return the first case of a worker; empty if none is left for it."""
        if self._lends(place):
            return []
        if self._wide and self._leads(place):
            return self._more_wide((), 1)
        return [self._next(None)] if any(self._long) or self._short else []

    def seconds(self, position: int) -> float:
        """Return the expected seconds of a case."""
        return self._seconds[position]

    def waiting(self, queue: Sequence[int]) -> float:
        """Return the expected seconds of the cases after the first one of a queue."""
        return sum(self._seconds[position] for position in queue[1:])

    def more(self, place: int, queue: Sequence[int], workers: int, waits: float | None = None) -> list[int]:
        """Return further cases for a worker with this `queue`, whose first case runs. Empty while it has enough.

        A short case follows a long one, because another worker may be free earlier for the next long case. `waits`: the
        result of `waiting` for the queue, if known. The computation is slow for many cases.
        """
        if self._lends(place):
            return []
        wide = self._more_wide(queue, _LEAST) if self._leads(place) else []
        have = [*queue, *wide] if wide else queue
        leads = bool(self._given) and not self._given.isdisjoint(have)
        waits = self.waiting(have) if waits is None or wide else waits
        return wide + self._more_narrow(have, waits, 0.0 if leads else SHARE * self._left / max(workers, 1))

    def _more_narrow(self, queue: Sequence[int], waits: float, goal: float) -> list[int]:
        """Return cases for one device, until the cases after the first one take this many seconds."""
        if len(queue) >= _LEAST and (any(self._long) or waits >= goal / 2):
            return []
        have = list(queue)
        while (any(self._long) or self._short) and (len(have) < _LEAST or (not any(self._long) and waits < goal)):
            position = self._next(have[-1] if have else None)
            waits += self._seconds[position] if have else 0.0
            have.append(position)
        return have[len(queue) :]

    def _leads(self, place: int) -> bool:
        return place < self._grouped and place % self._group == 0

    def _lends(self, place: int) -> bool:
        """Return whether a worker lends its device, so that it gets no case.

        A case takes the devices after its worker's device, so the lenders of a leader are the workers on its device and
        on the following ones. The lenders get cases again once each leader has only its last wide case.
        """
        if place % self._devices >= self._grouped or self._leads(place):
            return False
        return bool(self._wide) or len(self._given) > self._grouped // self._group

    def _more_wide(self, queue: Sequence[int], most: int) -> list[int]:
        positions: list[int] = []
        while self._wide and len(queue) + len(positions) < most:
            positions.append(self._pop(self._wide))
            self._given.add(positions[-1])
        return positions

    def _next(self, before: int | None) -> int:
        """Take a case that follows the case `before`."""
        behind_long = before is not None and self._is_long[before]
        is_apart = before in self._apart
        alike, others = self._long[is_apart], self._long[not is_apart]
        if self._short and (behind_long or not any(self._long)):
            alike_short = is_apart and self._short[-1] in self._apart
            if is_apart and not alike_short and alike and self._seconds[alike[-1]] < self._early * self._left:
                return self._pop(alike, from_end=True)
            return self._pop(self._short, from_end=alike_short)
        if not alike or not others:
            return self._pop(alike or others, from_end=behind_long)
        if behind_long:  # only long cases are left: the shortest of them
            longer = self._seconds[alike[-1]] * _NEARLY > self._seconds[others[-1]]
            return self._pop(others if longer else alike, from_end=True)
        shorter = self._seconds[alike[0]] < self._seconds[others[0]] * _NEARLY
        return self._pop(others if shorter else alike)

    def _pop(self, cases: deque[int], *, from_end: bool = False) -> int:
        position = cases.pop() if from_end else cases.popleft()
        self._left -= self._seconds[position]
        return position


def longest_short(seconds: Sequence[float], workers: int) -> float:
    """Return the seconds above which a case is long."""
    return max(sum(seconds) / max(workers, 1) * LONG, statistics.median(seconds or [0.0]))


def _leaders(seconds: Sequence[float], shares: Sequence[float], wide: frozenset[int], workers: int, most: int) -> int:
    """Return the number of workers that run wide cases: as few as can finish these cases in the first part of the run.

    `shares`: how many workers each case occupies. `most`: the maximum number of leaders.
    """
    total = sum(duration * share for duration, share in zip(seconds, shares, strict=True))
    time = WIDE * total / workers
    wanted = math.ceil(sum(seconds[position] for position in wide) / time) if time > 0 else 1
    return min(max(wanted, 1), most)
