"""Make calls into a driver in a separate thread, because such a call may never return and must not block its caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from harness.core.errors import HarnessError

T = TypeVar("T")

#: Seconds that NVML may take. With a hanging GPU, one call into the driver has been seen to take a minute.
NVML_LIMIT = 120.0


class StuckError(HarnessError):
    """This call or an earlier one did not return in time. The thread makes no more calls."""


def call_nvml(function: Callable[[], T]) -> T:
    """Call `function` in its own thread, and return its result or raise its error.

    Raise StuckError after `NVML_LIMIT` seconds.
    """
    thread = CallThread("nvml", limit=NVML_LIMIT)
    try:
        return thread.call(function)
    finally:
        thread.close()


class CallThread:
    """Makes calls one after the other, in one daemon thread. A call that hangs does not keep the process from exiting.

    The calls must release the GIL while they wait. Calls through `ctypes` do so.
    """

    def __init__(self, name: str, *, limit: float) -> None:
        """`limit`: the time limit of a call in seconds."""
        self._name = name
        self._limit = limit
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.stuck = False

    def call(self, function: Callable[[], T]) -> T:
        """Call `function`, and return its result or raise its error.

        Raise StuckError if it takes too long, and in every later call.
        """
        if self.stuck:
            raise StuckError(f"an earlier call of the thread {self._name!r} has not returned")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(function)
        try:
            answer, error = self._answers.get(timeout=self._limit)
        except Empty:
            self.stuck = True
            raise StuckError(f"no answer within {self._limit:g} s") from None
        if error is not None:
            raise error
        return cast(T, answer)

    def close(self) -> None:
        """End the thread, unless it is stuck. May be called more than once."""
        if self._thread is not None and not self.stuck:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while (function := self._calls.get()) is not None:
            try:
                answer: tuple[Any, Exception | None] = (function(), None)
            except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
                answer = (None, error)
            self._answers.put(answer)
