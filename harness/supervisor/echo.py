"""Shows what cases print while they run: pytest's option ``-s`` for cases that run in executors."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol

#: Seconds between two looks at the files of a running case.
ECHO_INTERVAL = 0.1
_MOST = 1 << 20


class GrowingFile(Protocol):
    """A file to which an executor appends."""

    descriptor: int

    def size(self) -> int:
        """Bytes written so far."""


class OutputEcho:
    """Copies the output files of an executor to standard output and standard error of this process."""

    def __init__(self, files: Sequence[GrowingFile], targets: Sequence[int]) -> None:
        """`targets`: the descriptors to copy to, in the order of the files."""
        self._pairs = [*zip(files, targets, strict=True)]
        self._positions = [0 for _ in files]

    def copy(self) -> None:
        """Copy what is new. A file that has been emptied is read from its start."""
        for index, (file, target) in enumerate(self._pairs):
            size = file.size()
            position = self._positions[index] if self._positions[index] <= size else 0
            self._positions[index] = size
            if size > position:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
            while position < size and (data := os.pread(file.descriptor, min(_MOST, size - position), position)):
                position += len(data)
                _write(target, data)


def _write(target: int, data: bytes) -> None:
    """Write all of the data; nothing if nobody reads it any more."""
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(target, data) :]
