"""The progress display of a run: a live table, or a line after a long silence."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, cast

import pytest

from harness.progress import live_screen
from harness.progress.heartbeat import Heartbeat
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
