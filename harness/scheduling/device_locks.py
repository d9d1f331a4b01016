"""Device locks: of the workers that need the same device, one holds it, and the others wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import NoDeviceError

#: Seconds that one worker may hold a device before a waiting worker gives up. A healthy worker never holds one so long:
#: it releases its device after each case if another worker waits.
LIMIT = 3600.0
#: Seconds of waiting until the first message about it. Each further message comes when the wait has doubled.
FIRST_WORD = 30.0
#: The most seconds of one wait, after which a request to stop the run is checked.
_LONGEST_WAIT = 1.0


class Wait:
    """A wait for a device: when to check its holder, when to send a message, and when to give up. Times in seconds.

    The wait ends once one holder has kept the device for `limit` seconds of it. While the holder changes, the wait has
    no limit.
    """

    def __init__(self, now: float, holder: str, *, limit: float, first_word: float) -> None:
        """`holder` is a text that changes with each new hold of the device."""
        self.begun = self._since = now
        self._holder = holder
        self._limit = limit
        self._next_message = now + first_word

    @property
    def next_look(self) -> float:
        """The time of the next call of `look`."""
        return min(self._next_message, self._since + self._limit)

    def look(self, now: float, holder: str) -> tuple[bool, bool]:
        """Returns whether to send a message, and whether to give up."""
        if holder != self._holder:
            self._holder, self._since = holder, now
        message_due = now >= self._next_message
        if message_due:
            self._next_message = now + max(now - self.begun, 1.0)
        return message_due, now >= self._since + self._limit


class DeviceLocks:
    """One worker's device locks: locks on files, which the kernel releases when the process ends in any way.

    Each device has two lock files. The worker that uses the device holds one; the first waiting worker holds the other.
    So the holder sees that another worker waits, and a waiting worker gets the device before the last holder gets it
    again. A third file names the holder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        enabled: bool,
        worker: str = "main",
        limit: float = LIMIT,
        first_word: float = FIRST_WORD,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`folder` is the same for all workers. If not `enabled`, devices are shared, and no worker waits.

        `limit`: seconds to wait for one holder. `tell` is called with a line about a wait of at least `first_word`
        seconds.
        """
        self._folder = folder
        self._enabled = enabled
        self._worker = worker
        self._limit = limit
        self._first_word = first_word
        self._tell = tell
        self._turns = 0
        self._held: list[tuple[str, FileLock]] = []

    def take(
        self,
        devices: Iterable[str],
        *,
        waiting: Callable[[str], AbstractContextManager[object]] = nullcontext,
        interrupt: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait until this worker holds all of these devices, by UUID. Devices that it holds already are released first.

        All workers take devices in the same order, so that they cannot deadlock. `waiting` makes the context of a wait
        for a device; it is not used if the device is free. `interrupt` is called each second of a wait, and may raise.
        Raises NoDeviceError if one worker has held a device for `limit` seconds of the wait. After an error no device
        is held.
        """
        wanted = sorted(devices) if self._enabled else []
        if {*wanted} <= {device for device, _ in self._held}:
            return
        self.give_back()
        try:
            for device in wanted:
                self._take(device, waiting, interrupt)
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        """Release all devices of this worker."""
        while self._held:
            device, turn = self._held.pop()
            self._path(device, "holder").unlink(missing_ok=True)
            turn.release()

    def wanted(self) -> bool:
        """Whether another worker waits for a device of this worker."""
        return any(self._is_held(self._lock(device, "queue")) for device, _ in self._held)

    def _take(
        self, device: str, waiting: Callable[[str], AbstractContextManager[object]], interrupt: Callable[[], object]
    ) -> None:
        queue, turn = self._lock(device, "queue"), self._lock(device, "turn")
        self._acquire(queue, device, waiting, interrupt)
        try:
            self._acquire(turn, device, waiting, interrupt)
        finally:
            queue.release()
        self._held.append((device, turn))
        self._turns += 1
        holder = f"worker {self._worker} (process {os.getpid()})"
        self._path(device, "holder").write_text(f"{holder}\n{self._turns}\n")

    def _acquire(
        self,
        lock: FileLock,
        device: str,
        waiting: Callable[[str], AbstractContextManager[object]],
        interrupt: Callable[[], object],
    ) -> None:
        """Take one lock of a device. Raises NoDeviceError."""
        try:
            lock.acquire(blocking=False)
        except Timeout:
            with waiting(device):
                self._await(lock, device, interrupt)

    def _await(self, lock: FileLock, device: str, interrupt: Callable[[], object]) -> None:
        """Wait for one lock of a device. Raises NoDeviceError."""
        wait = Wait(time.monotonic(), self._holder(device), limit=self._limit, first_word=self._first_word)
        while True:
            try:
                lock.acquire(timeout=max(0.0, min(_LONGEST_WAIT, wait.next_look - time.monotonic())))
                return
            except Timeout:
                interrupt()
                holder = self._holder(device)
            now = time.monotonic()
            message_due, over = wait.look(now, holder)
            who = holder.partition("\n")[0] or "another worker"
            if message_due:
                took = now - wait.begun
                self._tell(f"worker {self._worker} has waited {took:.0f} s for device {device}, which {who} holds")
            if over:
                raise NoDeviceError(
                    f"device {device} did not become free: {who} has held it for over {self._limit:.0f} s; "
                    "check what that process does"
                )

    def _holder(self, device: str) -> str:
        """Returns text with the holder of a device and the number of its hold; "" if that is not known yet."""
        try:
            return self._path(device, "holder").read_text()
        except FileNotFoundError:
            return ""

    def _path(self, device: str, what: str) -> Path:
        return self._folder / f"{device.replace('/', '_')}.{what}"

    def _lock(self, device: str, what: str) -> FileLock:
        self._folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self._path(device, what))

    @staticmethod
    def _is_held(lock: FileLock) -> bool:
        try:
            with lock.acquire(blocking=False):
                return False
        except Timeout:
            return True
