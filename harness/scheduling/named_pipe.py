"""Named pipes on which a worker waits, and into which other processes write without waiting."""

from __future__ import annotations

import os
from pathlib import Path

_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


def create_pipe(path: Path) -> int:
    """Create a named pipe, and return its descriptor for poll and reads. Raise OSError."""
    os.mkfifo(path)
    # Opened for writing too, because a pipe without a writer is at end of file, so that poll would always return.
    return os.open(path, os.O_RDWR | _FLAGS)


def write_to_pipe(path: Path, data: bytes) -> None:
    """Write to the pipe of another process.

    Raise OSError, with ENXIO if that process is dead, and EAGAIN if the pipe is full because it has not been read.
    """
    descriptor = os.open(path, os.O_WRONLY | _FLAGS)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
