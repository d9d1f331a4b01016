"""The cases that the controller has handed out to each of xdist's workers, in order: positions in the list of the run.

A worker is asked for one case after the other, and told only of the next one. Cases begin early, so it must know more.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from pathlib import Path

_FOLDER = "handed-out"
#: Stands behind the last case.
_END = -1


class HandedOut:
    """The writing end, in the controller. It writes before xdist tells the worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER
        self._broken: set[str] = set()

    def tell(self, worker: str, positions: Sequence[int]) -> None:
        """The worker gets these cases next."""
        self._append(worker, positions)

    def end(self, worker: str) -> None:
        """The worker gets no more cases."""
        self._append(worker, [_END])

    def _append(self, worker: str, positions: Sequence[int]) -> None:
        if worker in self._broken:
            return
        try:
            self._folder.mkdir(exist_ok=True)
            with (self._folder / worker).open("ab") as file:
                file.write(array("q", positions).tobytes())
        except OSError:
            # Its cases begin in turn from here on. A file with a gap would name another order than the worker gets.
            self._broken.add(worker)


class HandedOutList:
    """The reading end, in a worker."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._path = folder / _FOLDER / worker
        self._descriptor = -1
        self._rest = b""
        #: Whether the worker gets no more cases than these.
        self.ended = False
        self.positions: list[int] = []

    def refresh(self) -> None:
        """Read what is new. Nothing if cases are handed out in another way."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            data = self._rest + os.read(self._descriptor, 1 << 20)
        except OSError:
            return
        found = array("q")
        whole = len(data) - len(data) % found.itemsize
        found.frombytes(data[:whole])
        self._rest = data[whole:]
        self.ended = self.ended or _END in found
        self.positions += [position for position in found if position != _END]

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
