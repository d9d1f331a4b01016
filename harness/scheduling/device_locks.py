"""Turns at devices: of the workers that want the same device, one has it, and the others wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import NoDeviceError

#: Seconds that one worker may hold a device before another gives it up: no healthy worker holds one for so long, since
#: it gives its device back after each case when somebody waits.
LIMIT = 3600.0
#: Seconds of waiting until the first word on it; further ones come each time it has taken twice as long.
FIRST_WORD = 30.0
#: Seconds of waiting at a stretch: then the run may have been told to stop.
_LONGEST_WAIT = 1.0


class Wait:
    """A wait for a device: when to look at who holds it, when to say a word, and when to give up. Times in seconds.

    It is given up once one holder has had the device for `limit` seconds of it: a queue that moves is waited in for as
    long as it takes.
    """

    def __init__(self, now: float, holder: str, *, limit: float, first_word: float) -> None:
        """`holder` is a text that changes with each turn at the device."""
        self.begun = self._since = now
        self._holder = holder
        self._limit = limit
        self._next_word = now + first_word

    @property
    def next_look(self) -> float:
        """The time until which there is nothing to do but wait."""
        return min(self._next_word, self._since + self._limit)

    def look(self, now: float, holder: str) -> tuple[bool, bool]:
        """Whether to say a word, and whether to give up."""
        if holder != self._holder:
            self._holder, self._since = holder, now
        word = now >= self._next_word
        if word:
            self._next_word = now + max(now - self.begun, 1.0)
        return word, now >= self._since + self._limit


class DeviceLocks:
    """One worker's turns at devices, kept by locks on files that end with the process, however it ends.

    Two files a device: one is held by whoever has it, the other by the first of those who wait. So the holder can see
    that somebody waits, and who gave a device back and wants it again comes after who waited. A third names the holder.
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
        """`folder` is the same for all workers. Not `enabled`: every turn is had at once, for devices are shared.

        `limit`: seconds to wait for one holder. `tell` is given a line about a wait of `first_word` seconds and more.
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
        """Wait until all of these devices, by UUID, are ours. Others that we hold are given back first.

        Every worker takes them in the same order, so that no two wait for each other. `waiting` makes the context, from
        a device, in which we wait for it; where it is free there is none. `interrupt` is called each second of a wait,
        and may raise. Raises NoDeviceError when one worker has held a device for `limit` seconds of our wait. After an
        error nothing is held.
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
        """Let others have what we hold."""
        while self._held:
            device, turn = self._held.pop()
            self._path(device, "holder").unlink(missing_ok=True)
            turn.release()

    def wanted(self) -> bool:
        """Whether somebody waits for a device that we hold."""
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
        words = f"worker {self._worker} (process {os.getpid()})"
        self._path(device, "holder").write_text(f"{words}\n{self._turns}\n")

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
            word, over = wait.look(now, holder)
            who = holder.partition("\n")[0] or "another worker"
            if word:
                took = now - wait.begun
                self._tell(f"worker {self._worker} has waited {took:.0f} s for device {device}, which {who} holds")
            if over:
                raise NoDeviceError(
                    f"device {device} did not become free: {who} has held it for over {self._limit:.0f} s; "
                    "look at what that process does"
                )

    def _holder(self, device: str) -> str:
        """Who has a device, in words, and which of its turns that is; "" where that is not known (yet)."""
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
