"""The standard streams of an executor: files of the supervisor, to which Python writes without a buffer."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterable

from harness.core import linux

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def replace_standard_streams(out: int, err: int) -> None:
    """Replace the standard streams by an empty input, and the files `out` and `err`. Close both descriptors."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target, inheritable=True)
    for source in (null, out, err):
        os.close(source)
    linux.line_buffer_c_stdio()
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    # Unbuffered, because a crash loses buffered text. With escapes, because tests may print any text.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            UnbufferedFile(number, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
        )
        for number in (1, 2)
    )


class UnbufferedFile(io.FileIO):
    """A raw file that writes all of its data, as the text layer expects from a buffered file.

    A full disk is not the fault of the code that prints: the error is stored in `full`, and the text is dropped.
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


def raise_if_disk_full(streams: Iterable[object]) -> None:
    """Raise the OSError of a full disk that one of these streams has stored, if any."""
    for stream in streams:
        try:
            raw = stream.buffer  # type: ignore[attr-defined]
        except (AttributeError, ValueError):  # ValueError: the case has detached it
            continue
        if isinstance(raw, UnbufferedFile) and raw.full is not None:
            raise raw.full
