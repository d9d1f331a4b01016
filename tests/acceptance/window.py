"""A terminal window for runs: a pseudoterminal, and a terminal emulator that shows what is written to it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import threading
from types import TracebackType
from typing import BinaryIO, Self

import pyte

#: More lines than any test prints.
_HISTORY = 10_000


class Window:
    """A context manager that opens the window. `written` is the raw output."""

    def __init__(self, columns: int = 100, lines: int = 24) -> None:
        self._screen = pyte.HistoryScreen(columns, lines, history=_HISTORY, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self._master, slave = pty.openpty()
        self.output: BinaryIO = os.fdopen(slave, "wb", buffering=0)
        self.written = bytearray()
        self._thread = threading.Thread(target=self._read)
        self._resize(columns, lines)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()
        os.close(self._master)

    def finish(self) -> None:
        """Wait until everything is shown, after the writing processes have ended."""
        self.output.close()
        self._thread.join()

    def resize(self, columns: int, lines: int) -> None:
        with self._lock:
            self._resize(columns, lines)
            self._screen.resize(lines, columns)

    def shown(self) -> list[str]:
        """Return the lines in the window."""
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    def all(self) -> list[str]:
        """Return the lines in the window and those scrolled off at the top, without trailing empty lines."""
        with self._lock:
            past = [
                "".join(line[column].data for column in range(self._screen.columns)).rstrip()
                for line in self._screen.history.top
            ]
            return "\n".join([*past, *(line.rstrip() for line in self._screen.display)]).rstrip().split("\n")

    @property
    def cursor_is_hidden(self) -> bool:
        with self._lock:
            return bool(self._screen.cursor.hidden)

    def _resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # EIO: the other end is closed
                return
            with self._lock:
                self.written += data
                self._stream.feed(data)
