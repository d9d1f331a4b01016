"""The progress display of a run: a live table below all other output, or a line after a long silence."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TextIO, cast

import pytest

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from harness.progress.progress import Snapshot

#: Seconds between two redraws.
INTERVAL = 0.25
#: Minimum columns and lines of a window for changing lines.
_LEAST = (30, 8)
_ERASE_LINE = "\r\x1b[2K"
# Control sequences that print nothing, such as the progress in the title bar. rich would drop them.
_ORDER = re.compile(r"\x1b\].*?(?:\x07|\x1b\\)", re.DOTALL)


def is_live_terminal(stream: TextIO) -> bool:
    """Return whether lines of `stream` can be changed: it is a terminal, and neither dumb nor tiny."""
    if not stream.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return False
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return False
    return size.columns >= _LEAST[0] and size.lines >= _LEAST[1]


class LiveScreen:
    """Replaces `stream`, a terminal, and passes output on. Between `start` and `stop`, it shows lines below the output.

    Output in this time appears line by line, above the shown lines. An incomplete line, such as pytest's dots, is the
    first of the shown lines. `draw` makes the lines for a window of the given height. A thread calls it, and ends if
    `draw` raises OSError. Another error of `draw` also ends the thread, and `stop` prints it.
    """

    def __init__(self, stream: TextIO, draw: Callable[[int], RenderableType], *, interval: float = INTERVAL) -> None:
        self._stream = stream
        self._draw = draw
        self._interval = interval
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._live: Live | None = None
        self._thread: threading.Thread | None = None
        self._unfinished = ""
        self._drawn: RenderableType = ""
        self._failure = ""

    def start(self) -> None:
        """Show the lines."""
        from rich.live import Live

        with self._lock:
            self._live = Live(
                get_renderable=self._shown,
                console=_console(self._stream),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
            )
            self._stream.write(_ERASE_LINE if self._unfinished else "")
            self._live.start()
        self._stopped.clear()
        # A daemon thread, so that an aborted run does not wait for it.
        self._thread = threading.Thread(target=self._run, name="harness-live", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Remove the lines. Later output is passed on unchanged."""
        if self._thread is None:
            return
        self._stopped.set()
        self._thread.join()
        self._thread = None
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                live.stop()
            self._stream.write(self._unfinished)
            if self._failure:
                self._stream.write(f"\nharness: the live table ended, an error of the harness: {self._failure}\n")
            self._stream.flush()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._unfinished = (self._unfinished + _ORDER.sub("", text)).split("\n")
            if self._live is None:
                return self._stream.write(text)
            for order in _ORDER.findall(text):
                self._stream.write(order)
            if lines:
                self._live.console.print(*map(_decoded, lines), sep="\n", soft_wrap=True)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                height = os.get_terminal_size(self._stream.fileno()).lines
                self._drawn = self._draw(height)
                with self._lock:
                    if self._live is not None:
                        self._live.refresh()
            except OSError:  # the terminal is gone, or the data cannot be read; the main thread handles this
                return
            except Exception as error:  # noqa: BLE001 - pytest would make an error of the session of it
                self._failure = repr(error)
                return
            self._stopped.wait(self._interval)

    def _shown(self) -> RenderableType:
        from rich.console import Group

        return Group(_decoded(self._unfinished), self._drawn) if self._unfinished else self._drawn


def _console(stream: TextIO) -> Any:
    from rich.console import Console

    class VisibleCursor(Console):
        """Keeps the cursor visible, because a killed run could not show it again."""

        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002
            return False

    return VisibleCursor(file=stream, highlight=False, markup=False, emoji=False, force_terminal=True)


def _decoded(line: str) -> Any:
    """Return a line as rich shows it, with its own colours."""
    from rich.text import Text

    return Text.from_ansi(line)


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
        live, self._seconds = chosen_signs(wanted, movable=is_live_terminal(sys.stdout), here=here)
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
