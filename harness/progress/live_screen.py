"""A few changing lines below all other output."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

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
