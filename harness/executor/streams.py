"""The standard streams of an executor: files of the supervisor, to which Python writes without a buffer."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterable

# By its own name: a case may have replaced it.
from os import fstat
from typing import Any

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
    sys.stdin = NoInput(io.FileIO(0, closefd=False))
    # Unbuffered, because a crash loses buffered text. With escapes, because tests may print any text.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            UnbufferedFile(number, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
        )
        for number in (1, 2)
    )


class NoInput(io.TextIOWrapper):
    """Standard input of a case. A read raises OSError, as with pytest's capturing: nobody is there to answer."""

    def read(self, size: int | None = -1, /) -> str:  # noqa: ARG002
        raise OSError("a case must not read from standard input; to be asked by it, run it with --pdb")

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        return self.read(size)

    def readlines(self, hint: int = -1, /) -> list[str]:  # type: ignore[override]
        return [self.read(hint)]

    def __next__(self) -> str:  # type: ignore[override]
        return self.read()

    def fileno(self) -> int:
        raise io.UnsupportedOperation("standard input of a case has no fileno()")

    def isatty(self) -> bool:
        return False


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


class StandardStreams:
    """The standard streams of this process."""

    def __init__(self) -> None:
        self._own = _streams_now()

    @property
    def error(self) -> Any:
        """The executor's own stream for errors."""
        return self._own[2]

    def flush(self) -> None:
        """Flush all output to the files. Their sizes then separate the output of one phase from that of the next."""
        for stream in (*self._own[1:], *_streams_now()[1:]):
            try:
                stream.flush()
            except BaseException:  # noqa: BLE001 - a stream that the case has closed, or an object of its own
                continue
        linux.flush_c_stdio()

    def sizes(self) -> tuple[int, int]:
        """Return the bytes in the files for output and for errors."""
        return _size(1), _size(2)

    def raise_if_disk_full(self) -> None:
        """Raise the OSError of a full disk that one of the streams has stored, if any."""
        raise_if_disk_full(self._own)


def raise_if_disk_full(streams: Iterable[object]) -> None:
    """Raise the OSError of a full disk that one of these streams has stored, if any."""
    for stream in streams:
        try:
            raw = stream.buffer  # type: ignore[attr-defined]
        except (AttributeError, ValueError):  # ValueError: the case has detached it
            continue
        if isinstance(raw, UnbufferedFile) and raw.full is not None:
            raise raw.full


def _streams_now() -> tuple[Any, Any, Any]:
    """Return Python's standard streams, None for one that the case has deleted."""
    return getattr(sys, "stdin", None), getattr(sys, "stdout", None), getattr(sys, "stderr", None)


def _size(descriptor: int) -> int:
    try:
        return fstat(descriptor).st_size
    except OSError:
        return 0
