"""Handles SIGINT, SIGTERM and SIGHUP, which stop a run."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from harness.core import linux
from harness.scheduling import stop_request
from harness.scheduling.stop_request import StopRequest

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds that workers have to end: after the grace period of their cases, and after a second signal.
_MARGIN, _LAST_MARGIN = 10.0, 5.0


class StopSignals:
    """The controller's signal handling. The first signal asks every supervisor to stop, the second to stop immediately.

    A controller with xdist workers keeps waiting, because the workers end by themselves. A third signal ends the
    session without them. If the user sends no further signal, a timer does. Without workers, a signal ends the session
    as Ctrl-C does in pytest, except while a supervisor works in this process, since that receives the request itself.
    """

    def __init__(self, folder: Path, *, grace: float, waits: bool) -> None:
        """`folder` is the folder of stop requests. `waits`: xdist workers run the cases, and receive requests."""
        self.grace = grace
        self._folder = folder
        self._waits = waits
        self._times = 0
        self._handling = self._begun = self._over = False
        self._timer = linux.PosixTimer(signal.SIGTERM)
        self._previous: dict[signal.Signals, Any] = {}
        #: The name of the first signal; empty until it comes.
        self.by = ""
        #: Shows the user the effect of the first signal. Called in the signal handler.
        self.print_line: Callable[[str], None] = lambda _: None

    def install(self, numbers: Iterable[signal.Signals]) -> None:
        """Handle these signals from now on, except those that this process already ignores."""
        if threading.current_thread() is not threading.main_thread():
            return  # Python allows handlers only in the main thread
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the previous handlers."""
        self._timer.stop()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def begin(self) -> None:
        """Let signals interrupt the session from now on. Raises Session.Interrupted if a signal came before."""
        self._begun = True
        if self.by and not self._waits:
            raise pytest.Session.Interrupted(self._reason)

    @contextlib.contextmanager
    def handled(self) -> Generator[None]:
        """Disable interrupts while a supervisor works in this process: it receives stop requests itself."""
        self._handling = True
        try:
            yield
        finally:
            self._handling = False

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Block signals in the context, in which xdist starts its workers. The workers start with them blocked."""
        if not self._waits:
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._previous)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def request_stop(self, reason: str, grace: float | None = None) -> None:
        """Ask workers to stop for another reason than a signal. `grace`: a grace period other than that of the run."""
        if self._waits and (not self.by or grace is not None):
            self._send(StopRequest.after(self.grace if grace is None else grace, reason))

    def end(self) -> None:
        """End the signal handling with the session.

        Ignore further signals, and stop workers that still run immediately.
        """
        self._over = True
        self._timer.stop()
        if self._waits:
            self._send(StopRequest.after(0, self._reason if self.by else "stopped with the session"))

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._over:
            return
        if number == signal.SIGHUP:
            linux.forget_dead_terminals()
        self._times += 1
        first = self._times == 1
        if first:
            self.by = signal.Signals(number).name
        sent = self._send(StopRequest.after(self.grace if first else 0, self._reason))
        if first and sent and (self._waits or self._handling):
            self.print_line(
                f"{self.by}: no further case begins, and the cases that run have {self.grace:g} s to end; "
                "a second signal ends them at once"
            )
        if self._waits:
            self._timer.start(self.grace + _MARGIN if first else _LAST_MARGIN)
            patient = sent and self._times < 3
        else:
            patient = self._handling
        if self._begun and not patient:
            raise pytest.Session.Interrupted(self._reason)

    def _send(self, stop: StopRequest) -> bool:
        """Send a request. Returns whether it was sent to all supervisors."""
        try:
            stop_request.send_stop(self._folder, stop)
        except OSError:
            return False
        return True

    @property
    def _reason(self) -> str:
        return f"stopped by {self.by}"


def leave_to_controller() -> None:
    """In an xdist worker, ignore signals that a terminal or batch system sends to the whole process group.

    The controller handles them, and asks its workers to stop. This uses a handler and not SIG_IGN, because child
    processes would inherit SIG_IGN.
    """
    for number in ALL:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _nothing)


def release() -> None:
    """In an xdist worker, unblock the signals that were blocked when it was started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ALL)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Ignore a signal."""
