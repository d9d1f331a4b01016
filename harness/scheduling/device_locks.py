"""Turns at devices: of the workers that want the same device, one has it, and the others wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout


class DeviceLocks:
    """One worker's turns at devices, kept by locks on files that end with the process, however it ends.

    Two files a device: one is held by whoever has it, the other by the first of those who wait. So the holder can see
    that somebody waits, and who gave a device back and wants it again comes after who waited.
    """

    def __init__(self, folder: Path, *, enabled: bool) -> None:
        """`folder` is the same for all workers. Not `enabled`: every turn is had at once, for devices are shared."""
        self._folder = folder
        self._enabled = enabled
        self._held: list[tuple[str, FileLock]] = []

    def take(
        self, devices: Iterable[str], *, waiting: Callable[[str], AbstractContextManager[object]] = nullcontext
    ) -> None:
        """Wait until all of these devices, by UUID, are ours. Others that we hold are given back first.

        Every worker takes them in the same order, so that no two wait for each other. `waiting` makes the context, from
        a device, in which we wait for it; where it is free there is none.
        """
        wanted = sorted(devices) if self._enabled else []
        if {*wanted} <= {device for device, _ in self._held}:
            return
        self.give_back()
        for device in wanted:
            queue, turn = self._lock(device, "queue"), self._lock(device, "turn")
            self._acquire(queue, waiting, device)
            try:
                self._acquire(turn, waiting, device)
            finally:
                queue.release()
            self._held.append((device, turn))

    def give_back(self) -> None:
        """Let others have what we hold."""
        while self._held:
            self._held.pop()[1].release()

    def wanted(self) -> bool:
        """Whether somebody waits for a device that we hold."""
        return any(self._is_held(self._lock(device, "queue")) for device, _ in self._held)

    def _lock(self, device: str, what: str) -> FileLock:
        self._folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self._folder / f"{device.replace('/', '_')}.{what}")

    @staticmethod
    def _acquire(lock: FileLock, waiting: Callable[[str], AbstractContextManager[object]], device: str) -> None:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            with waiting(device):
                lock.acquire()

    @staticmethod
    def _is_held(lock: FileLock) -> bool:
        try:
            with lock.acquire(blocking=False):
                return False
        except Timeout:
            return True
