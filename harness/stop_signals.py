"""What a run does when it is told to stop by SIGINT, SIGTERM or SIGHUP."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from harness import linux
from harness.scheduling import stop_request
from harness.scheduling.stop_request import Stop

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds that workers have to end: after the grace of their cases, and after a second signal.
_MARGIN, _LAST_MARGIN = 10.0, 5.0


class StopSignals:
    """The controller's handling of signals: the first asks every supervisor to stop, the second to stop at once.

    A controller that waits for xdist's workers goes on waiting, for they end by themselves; a third signal ends the
    session without them, and a timer sends what a patient user does not. Without workers a signal ends the session the
    way Ctrl-C does in pytest, except while a supervisor is at work, which hears the request itself.
    """

    def __init__(self, folder: Path, *, grace: float, waits: bool) -> None:
        """`folder` is that of the requests. `waits`: xdist's workers run the cases, and hear requests."""
        self.grace = grace
        self._folder = folder
        self._waits = waits
        self._times = 0
        self._heeded = self._begun = self._over = False
        self._timer = linux.Timer(signal.SIGTERM)
        self._previous: dict[signal.Signals, Any] = {}
        #: The name of the first signal, empty while there was none.
        self.by = ""

    def install(self, numbers: Iterable[signal.Signals]) -> None:
        """Handle these signals from here on, except those that this process was started to ignore."""
        if threading.current_thread() is not threading.main_thread():
            return  # Python has handlers in the main thread alone
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Handle them no more."""
        self._timer.stop()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def begin(self) -> None:
        """The session can be ended in order from here on. Raises Session.Interrupted if it was told to meanwhile."""
        self._begun = True
        if self.by and not self._waits:
            raise pytest.Session.Interrupted(self._reason)

    @contextlib.contextmanager
    def heeded(self) -> Generator[None]:
        """A supervisor is at work in this process: it hears requests, and is not to be torn out of what it does."""
        self._heeded = True
        try:
            yield
        finally:
            self._heeded = False

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """While xdist starts its workers signals wait, until the end of the block; the workers begin with them held."""
        if not self._waits:
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._previous)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def ask(self, reason: str) -> None:
        """Ask workers to stop for another reason than a signal."""
        if self._waits and not self.by:
            self._send(Stop.after(self.grace, reason))

    def end(self) -> None:
        """The session ends: signals change nothing any more, and whoever still runs a case is to end at once."""
        self._over = True
        self._timer.stop()
        if self._waits:
            self._send(Stop.after(0, self._reason if self.by else "stopped with the session"))

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._over:
            return
        if number == signal.SIGHUP:
            linux.forget_dead_terminals()
        self._times += 1
        first = self._times == 1
        if first:
            self.by = signal.Signals(number).name
        sent = self._send(Stop.after(self.grace if first else 0, self._reason))
        if self._waits:
            self._timer.start(self.grace + _MARGIN if first else _LAST_MARGIN)
            patient = sent and self._times < 3
        else:
            patient = self._heeded
        if self._begun and not patient:
            raise pytest.Session.Interrupted(self._reason)

    def _send(self, stop: Stop) -> bool:
        """Whether everybody could be told."""
        try:
            stop_request.send(self._folder, stop)
        except OSError:
            return False
        return True

    @property
    def _reason(self) -> str:
        return f"stopped by {self.by}"


def leave_to_controller() -> None:
    """In an xdist worker: what a terminal or a batch system sends to the whole process group is the controller's.

    It asks its workers to stop. A handler and no ignoring, which processes that are started here would inherit.
    """
    for number in ALL:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _nothing)


def release() -> None:
    """In an xdist worker: take signals again that were held when it was started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ALL)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing about a signal."""
