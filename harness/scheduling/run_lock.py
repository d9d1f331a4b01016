"""The lock of a run directory: one run writes to it at a time."""

from __future__ import annotations

import contextlib
from pathlib import Path

from filelock import FileLock, Timeout

from harness.core.errors import HarnessError

_FILE = ".lock"


class RunLockedError(HarnessError):
    """Another process writes to the run directory."""


class RunLock:
    """Held by a run's controller while it lives: the kernel releases it when the process ends in any way."""

    def __init__(self, run_dir: Path) -> None:
        """Take the lock. Raises RunLockedError if another process has it, OSError if the folder is not writable."""
        self._lock = FileLock(run_dir / _FILE, thread_local=False)
        try:
            # Without locks in the file system, runs work as before, and nobody can tell that two share a folder.
            with contextlib.suppress(NotImplementedError):
                self._lock.acquire(blocking=False)
        except Timeout:
            raise RunLockedError("another run writes to it now: wait for its end, or stop it") from None

    def release(self) -> None:
        """Release the lock. The file stays: removed, it could be locked twice."""
        self._lock.release()
