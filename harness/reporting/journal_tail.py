"""The new lines of a journal that is being written, read again and again at little cost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from harness.reporting import journal

if TYPE_CHECKING:
    from harness.reporting.events import Event


class JournalTail:
    """Reads on where it stopped; a line that is still being written waits for the next time. Raises OSError."""

    def __init__(self, path: Path) -> None:
        # Kept open: when a process closes one descriptor of a file, the kernel takes away its lock on that file, which
        # another thread may hold, since it writes to the journal.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._path = path
        self._offset = 0

    def read(self) -> tuple[Event, ...]:
        """The events since the last call; damaged lines are left out. Raises OSError."""
        new = os.fstat(self._descriptor).st_size - self._offset
        data = os.pread(self._descriptor, max(0, new), self._offset)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return journal.parse(self._path, whole).events

    def close(self) -> None:
        """Close the file, while no other thread writes to the journal."""
        os.close(self._descriptor)
