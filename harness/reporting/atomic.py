"""Write a file completely or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from harness.errors import WriteError

__all__ = ["WriteError", "write_atomically"]


def write_atomically(path: Path, data: bytes) -> Path:
    """Write `data` to `path` atomically: a reader sees the old file or the new one, never a part, even after a crash.

    Returns `path`. Raises WriteError if the folder is missing, not writable or full. The old file is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            # Without fsync, a power cut after the rename can leave an empty file under the final name.
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise WriteError(f"cannot write {str(path)!r}; make the folder writable and free space there") from error
    return path
