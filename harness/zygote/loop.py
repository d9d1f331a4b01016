"""The zygote's event loop: descriptors and timers, each with an action."""

from __future__ import annotations

import heapq
import itertools
import selectors
from collections.abc import Callable

from harness.core.clock import monotonic

LoopAction = Callable[[], object]


class EventLoop:
    """Calls an action when its descriptor is readable or its time has come. No action may block."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, LoopAction]] = []
        self._numbers = itertools.count()  # actions with the same time are called in the order of registration

    def watch(self, descriptor: int, action: LoopAction) -> None:
        """Call `action` whenever `descriptor` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching `descriptor`. Call this before it is closed."""
        self._selector.unregister(descriptor)

    def after(self, seconds: float, action: LoopAction) -> None:
        """Call `action` once, in `seconds`."""
        heapq.heappush(self._timers, (self._clock() + seconds, next(self._numbers), action))

    def turn(self) -> None:
        """Wait for an event, and call its action."""
        timeout = max(0.0, self._timers[0][0] - self._clock()) if self._timers else None
        for key, _ in self._selector.select(timeout):
            # An earlier action of this turn may have ended the watch, or started another on the same descriptor number.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        while self._timers and self._timers[0][0] <= self._clock():
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        """Close the loop's own descriptor. The watched descriptors stay open."""
        self._selector.close()
