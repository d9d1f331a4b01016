"""The standard streams of an executor: files of the supervisor's, to which Python writes without a buffer."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterable

from harness import linux

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def replace(out: int, err: int) -> None:
    """Give this process standard streams of its own: nothing to read, and two files, whose descriptors are closed."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target, inheritable=True)
    for source in (null, out, err):
        os.close(source)
    linux.line_buffer_c_stdio()
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    # Unbuffered, since what is still in a buffer is lost in a crash; visible escapes, since any text may be printed.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            Unbuffered(number, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
        )
        for number in (1, 2)
    )


class Unbuffered(io.FileIO):
    """A raw file that writes all it is given, which is what the text layer expects of a buffered one.

    That there is no room for it on the disk is no fault of whoever prints: it is kept in `full`, and the text dropped.
    """

    full: OSError | None = None

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        done = 0
        try:
            while done < len(view):
                done += super().write(view[done:])
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self.full = error
        return len(view)


def expect_room(streams: Iterable[object]) -> None:
    """Raise the OSError that one of these streams of ours has kept, if any has."""
    for stream in streams:
        raw = getattr(stream, "buffer", None)
        if isinstance(raw, Unbuffered) and raw.full is not None:
            raise raw.full
