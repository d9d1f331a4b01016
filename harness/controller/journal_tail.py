"""Follow a journal while it is written: read only the new lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from harness.journal import reader

if TYPE_CHECKING:
    from harness.journal.events import Event


class JournalTail:
    """Reads the lines that were added since the last read. An incomplete line is left for the next read.

    Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        # The file stays open: when a process closes any descriptor of a file, the kernel releases all locks of the
        # process on that file. Another thread, which writes to the journal, may hold such a lock.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._path = path
        self._offset = 0

    def read(self) -> tuple[Event, ...]:
        """Return the events since the last call, without damaged lines. Raises OSError."""
        new = os.fstat(self._descriptor).st_size - self._offset
        data = os.pread(self._descriptor, max(0, new), self._offset)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return reader.parse_journal(self._path, whole).events

    def close(self) -> None:
        """Close the file. No other thread may write to the journal at that time."""
        os.close(self._descriptor)
