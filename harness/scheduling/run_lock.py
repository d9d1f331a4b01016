"""The lock of a run directory: one run writes to it at a time."""

from __future__ import annotations

import contextlib
from pathlib import Path

from filelock import FileLock, Timeout

from harness.core.errors import HarnessError

LOCK_FILE = ".lock"


class RunLockedError(HarnessError):
    """Another process writes to the run directory."""


class RunLock:
    """The lock of a run's controller. The kernel releases it when the process ends in any way."""

    def __init__(self, run_dir: Path) -> None:
        """Take the lock. Raise RunLockedError if another process has it, OSError if the folder is not writable."""
        self._lock = FileLock(run_dir / LOCK_FILE, thread_local=False)
        try:
            # Without file locks, runs work, but cannot detect that two of them share a folder.
            with contextlib.suppress(NotImplementedError):
                self._lock.acquire(blocking=False)
        except Timeout:
            raise RunLockedError("another run writes to it now: wait for its end, or stop it") from None

    def release(self) -> None:
        """Release the lock. The file stays, because a file that is removed and created again could be locked twice."""
        self._lock.release()
