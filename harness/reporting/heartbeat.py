"""A sign of life: a line now and then while nothing else is printed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator


class Heartbeat:
    """A thread that prints a line each time that nothing was printed for so many seconds."""

    def __init__(
        self,
        interval: float,
        beat: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        stopped: threading.Event | None = None,
    ) -> None:
        """`beat` prints the line; the thread ends when it raises OSError, for then nobody can be told anything."""
        self._interval = interval
        self._beat = beat
        self._clock = clock
        self._stopped = stopped or threading.Event()
        self._turn = threading.RLock()  # a report may be shown while another is
        self._printed = clock()
        # A daemon: a run that breaks off is not to wait for it.
        self._thread = threading.Thread(target=self.run, name="harness-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; no line is printed any more."""
        self._stopped.set()
        self._thread.join()

    @contextlib.contextmanager
    def printing(self) -> Generator[None]:
        """Somebody else prints meanwhile: no line of ours comes between, nor for a while afterwards."""
        with self._turn:
            yield
            self._printed = self._clock()

    def run(self) -> None:
        """What the thread does, until `stop`."""
        while not self._stopped.wait(max(0.0, self._due())):
            with self._turn:
                if self._due() > 0:
                    continue
                try:
                    self._beat()
                except OSError:  # whoever read our output has gone, or the disk is full: the main thread meets it too
                    return
                self._printed = self._clock()

    def _due(self) -> float:
        """Seconds until a line is due."""
        return self._printed + self._interval - self._clock()
