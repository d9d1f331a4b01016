"""Print a progress line if nothing else was printed for some time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator


class Heartbeat:
    """A thread that prints a line whenever nothing was printed for `interval` seconds."""

    def __init__(
        self,
        interval: float,
        beat: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        stopped: threading.Event | None = None,
    ) -> None:
        """`beat` prints the line. The thread ends if `beat` raises OSError, because the output cannot be written."""
        self._interval = interval
        self._beat = beat
        self._clock = clock
        self._stopped = stopped or threading.Event()
        self._lock = threading.RLock()  # reentrant: pytest may show a report during another one
        self._printed = clock()
        # A daemon thread, so that an aborted run does not wait for it.
        self._thread = threading.Thread(target=self.run, name="harness-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. No line is printed after this."""
        self._stopped.set()
        self._thread.join()

    @contextlib.contextmanager
    def printing(self) -> Generator[None]:
        """Let the caller print in this context.

        The thread prints nothing in it, and for `interval` seconds after it.
        """
        with self._lock:
            yield
            self._printed = self._clock()

    def run(self) -> None:
        """Run the thread until `stop`."""
        while not self._stopped.wait(max(0.0, self._due())):
            with self._lock:
                if self._due() > 0:
                    continue
                try:
                    self._beat()
                except OSError:  # the reader of the output is gone or the disk is full; the main thread handles this
                    return
                self._printed = self._clock()

    def _due(self) -> float:
        """Return the seconds until the next line is due."""
        return self._printed + self._interval - self._clock()
