"""Write a file completely or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from harness.core.errors import WriteError

__all__ = ["WriteError", "create_exclusively", "open_atomically", "write_atomically"]


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> Path:
    """Write `data` to `path`, see `open_atomically`. Return `path`."""
    with open_atomically(path, mode) as file:
        file.write(data)
    return path


def create_exclusively(path: Path, mode: int = 0o666) -> BinaryIO:
    """Open a new file for writing, never an existing one. A file or link of this name is removed first.

    Other users may be able to write to the folder: through a link that they made, the data would replace another file.
    Raise OSError if the name cannot be freed, or if it was taken again.
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, mode), "wb")


@contextlib.contextmanager
def open_atomically(path: Path, mode: int = 0o666) -> Generator[BinaryIO]:
    """Yield a file that replaces `path` at the end: readers see the old file or the whole new one, even after a crash.

    Others may write the same file at the same time. `mode`: its permissions, less those that the umask removes. Raise
    WriteError if the folder is missing, not writable or full. In this case, and if the block raises, the old file
    stays unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        try:
            with create_exclusively(temporary, mode) as file:
                yield file
                file.flush()
                # Without fsync, a power cut after the rename can leave an empty file under the final name.
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise WriteError(f"cannot write {str(path)!r}; make the folder writable and free space there") from error
