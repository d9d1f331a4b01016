"""The cases handed out to each xdist worker, in order, as positions in the list of the run.

xdist tells a worker only its next case. Cases begin early, so a worker must know more of them.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from pathlib import Path

_FOLDER = "handed-out"
#: The entry after the last case.
_END = -1


class HandedOut:
    """The writing end, in the controller. It writes before xdist notifies the worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER
        self._broken: set[str] = set()

    def add(self, worker: str, positions: Sequence[int]) -> None:
        """Add the next cases of a worker."""
        self._append(worker, positions)

    def end(self, worker: str) -> None:
        """Mark that a worker gets no more cases."""
        self._append(worker, [_END])

    def _append(self, worker: str, positions: Sequence[int]) -> None:
        if worker in self._broken:
            return
        try:
            self._folder.mkdir(exist_ok=True)
            with (self._folder / worker).open("ab") as file:
                file.write(array("q", positions).tobytes())
        except OSError:
            # From here on, its cases do not begin early. A file with a gap would have another order than the worker's.
            self._broken.add(worker)


class HandedOutList:
    """The reading end, in a worker."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._path = folder / _FOLDER / worker
        self._descriptor = -1
        self._rest = b""
        #: Whether the worker gets no further cases.
        self.ended = False
        self.positions: list[int] = []

    def refresh(self) -> None:
        """Read new entries. The list stays empty if another scheduler hands out cases."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            data = self._rest + os.read(self._descriptor, 1 << 20)
        except OSError:
            return
        entries = array("q")
        whole = len(data) - len(data) % entries.itemsize
        entries.frombytes(data[:whole])
        self._rest = data[whole:]
        self.ended = self.ended or _END in entries
        self.positions += [position for position in entries if position != _END]

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
