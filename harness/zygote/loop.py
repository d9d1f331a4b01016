"""The zygote's event loop: descriptors to read from and moments to come, each with what is then to be done."""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from collections.abc import Callable

Action = Callable[[], object]


class Loop:
    """Calls an action when its descriptor can be read or when its time has come. No action may block."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()  # actions of the same moment are called in the order they were asked for

    def watch(self, descriptor: int, action: Action) -> None:
        """Call `action` whenever `descriptor` can be read."""
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def unwatch(self, descriptor: int) -> None:
        """Look at `descriptor` no more. To be called before it is closed."""
        self._selector.unregister(descriptor)

    def after(self, seconds: float, action: Action) -> None:
        """Call `action` once, in `seconds`."""
        heapq.heappush(self._timers, (self._clock() + seconds, next(self._numbers), action))

    def turn(self) -> None:
        """Wait until there is something to do, and do it."""
        timeout = max(0.0, self._timers[0][0] - self._clock()) if self._timers else None
        for key, _ in self._selector.select(timeout):
            # An earlier action of this turn may have ended the watch, or begun another under the same number.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        while self._timers and self._timers[0][0] <= self._clock():
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        """Close the loop's own descriptor; those that it watches stay open."""
        self._selector.close()
