"""The progress display of a run: a live table, or a line after a long silence."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, cast

import pytest

from harness.progress import live_screen
from harness.progress.live_screen import LiveScreen

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import RenderableType

    from harness.progress.progress import Snapshot

#: Seconds without output after which a run prints its progress.
SILENCE = 30.0


def chosen_signs(wanted: str | float, *, movable: bool, here: bool) -> tuple[bool, float]:
    """Return whether a table is shown, and otherwise the seconds of silence before a line; 0 for never.

    `wanted`: the option ``--progress``. `movable`: printed lines can be changed, as on a terminal. `here`: cases run in
    the process that prints. Some cases do not expect another thread there, so the default is to show nothing.
    """
    if not isinstance(wanted, str):
        return False, wanted
    if wanted == "off" or (wanted == "auto" and here):
        return False, 0.0
    if movable and wanted in ("auto", "live"):
        return True, 0.0
    return False, SILENCE


class SignsOfLife:
    """Shows the progress of a run, between `start` and `stop`. `snapshot` returns it, or raises OSError."""

    def __init__(self, wanted: str | float, snapshot: Callable[[], Snapshot], *, here: bool) -> None:
        """Create this before pytest makes its terminal reporter, since a screen now replaces standard output."""
        live, self._seconds = chosen_signs(wanted, movable=live_screen.is_live_terminal(sys.stdout), here=here)
        self._snapshot = snapshot
        self._heartbeat: Heartbeat | None = None
        self._stream = sys.stdout
        self._screen = LiveScreen(sys.stdout, self._drawn) if live else None
        if self._screen is not None:
            sys.stdout = cast("TextIO", self._screen)

    def start(self, config: pytest.Config) -> None:
        """Start the display."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:  # -p no:terminal
            return
        if self._screen is not None:
            self._screen.start()
        elif self._seconds:
            show = _Line(config, reporter)
            self._heartbeat = Heartbeat(self._seconds, lambda: show(self._snapshot().line))
            self._heartbeat.start()

    def printing(self) -> AbstractContextManager[None]:
        """Return a context in which pytest prints."""
        return contextlib.nullcontext() if self._heartbeat is None else self._heartbeat.printing()

    def stop(self) -> None:
        """Stop the display."""
        if self._screen is not None:
            self._screen.stop()
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None

    def close(self) -> None:
        """Restore standard output."""
        self.stop()
        if sys.stdout is self._screen:
            sys.stdout = self._stream

    def _drawn(self, height: int) -> RenderableType:
        from harness.progress.progress_table import ProgressTable

        return ProgressTable(self._snapshot(), height)


class _Line:
    """Prints a line of the harness. It first ends an incomplete line, such as dots or "collecting ..."."""

    def __init__(self, config: pytest.Config, reporter: pytest.TerminalReporter) -> None:
        self._config = config
        self._reporter = reporter

    def __call__(self, text: str) -> None:
        self._reporter.ensure_newline()
        writer = self._config.get_terminal_writer()
        if writer.width_of_current_line:
            writer.line()
        self._reporter.write_line(f"harness: {text}")
        self._reporter.flush()


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
