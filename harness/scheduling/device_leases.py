"""Leases of devices between all processes of a host that use one board: a folder.

The board is a file with all leases and all waiting claims. It is read and replaced under a lock. A worker that has or
wants a lease holds a lock on its own file while it lives. When the worker dies in any way, the kernel releases this
lock, and the next worker that waits removes the claims of the dead one. A lease is also bound to the processes that use
the devices: it lasts until they are dead, even if its worker died first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
import tempfile
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from filelock import FileLock

from harness.core import clock, linux
from harness.core.atomic import create_exclusively
from harness.core.errors import HarnessError, NoDeviceError, convert_to_write_error
from harness.scheduling.leases import BoardEntry, Claim, Lease, LeaseBoard, Process
from harness.scheduling.stop_request import create_pipe, write_to_pipe

#: The environment variable with the folder of the board. All runs that share devices must use the same one.
VARIABLE = "HARNESS_LEASE_DIR"
#: Seconds that one worker may hold a device before a waiting worker gives up. A healthy worker never holds a device
#: that long: it ends its lease after each case if another worker waits.
LIMIT = 3600.0
#: Seconds of waiting before the first message. Each further message comes when the wait has doubled.
FIRST_MESSAGE = 30.0
#: Maximum seconds of one wait, between two checks for dead processes and for a request to stop the run.
_LONGEST_WAIT = 1.0
_BOARD = "board.json"
_MODE = 0o660  # for users of the same group


class BoardError(HarnessError):
    """The board cannot be used."""


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the board of this host, for users of this user's group."""
    return Path(environ.get(VARIABLE) or Path(tempfile.gettempdir(), f"gpu-conformance-leases-{os.getgid()}"))


class LeaseWait:
    """A wait for a device: when to check its holder, when to send a message, and when to give up. Times in seconds.

    The worker gives up if one holder keeps the device for `limit` seconds of the wait. While holders change, the wait
    has no limit.
    """

    def __init__(self, now: float, holder: str, *, limit: float, first_message: float) -> None:
        """`holder` is a text that changes with each new hold of the device."""
        self.begun = self._since = now
        self._holder = holder
        self._limit = limit
        self._next_message = now + first_message

    @property
    def next_look(self) -> float:
        """The time of the next call of `look`."""
        return min(self._next_message, self._since + self._limit)

    def look(self, now: float, holder: str) -> tuple[bool, bool]:
        """Return whether to send a message, and whether to give up."""
        if holder != self._holder:
            self._holder, self._since = holder, now
        message_due = now >= self._next_message
        if message_due:
            self._next_message = now + max(now - self.begun, 1.0)
        return message_due, now >= self._since + self._limit


class DeviceLeases:
    """The lease of one worker, at most one at a time."""

    def __init__(
        self,
        folder: Path | None,
        *,
        worker: str = "main",
        memory: Mapping[str, int] | None = None,
        limit: float = LIMIT,
        first_message: float = FIRST_MESSAGE,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`folder`: the folder of the board; None for devices that need no leases, because each process has its own.

        `memory`: the bytes of each device. `limit`: seconds to wait for one holder. `log` is called with a line about
        a wait of at least `first_message` seconds.
        """
        self._folder = folder or Path()
        self._shared = folder is not None
        self._worker = worker
        self._memory = dict(memory or {})
        self._limit = limit
        self._first_message = first_message
        self._log = log
        self._holder = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._alive: int | None = None
        self._pipe: int | None = None
        self._entry: BoardEntry | None = None
        self._seen: tuple[int, int] | None = None
        self._wanted = False

    def take(
        self,
        claim: Claim,
        *,
        waiting: Callable[[str], AbstractContextManager[object]] = nullcontext,
        interrupt: Callable[[], object] = lambda: None,
    ) -> tuple[str, ...]:
        """Wait for a lease that meets the claim, and return its devices.

        A current lease that does not meet the claim ends first.

        `waiting` makes the context of a wait for a device; it is not used if the devices are free. `interrupt` is
        called each second of a wait, and may raise. Raise NoDeviceError if one worker has held a device for `limit`
        seconds of the wait, BoardError and WriteError. After an error no device is held.
        """
        if not self._shared:
            return (claim.own, *claim.others[: claim.count - 1])
        if self._lease is not None and (devices := claim.within(self._lease)):
            return devices
        self.give_back()
        self._begin()
        try:
            self._apply(claim)
            if self._lease is None:
                self._look()
            if self._lease is None:
                with waiting(self._blocked()[0]):
                    self._await(interrupt)
        except BaseException:
            self.give_back()
            raise
        assert self._lease is not None
        return self._lease.devices

    def bind(self, pid: int) -> None:
        """Bind the lease to the process `pid`, a user of its devices: the lease outlasts the process."""
        process = Process.of(pid)
        if self._entry is None or process is None:
            return
        used = (*(user for user in self._entry.processes if user.lives), process)
        self._entry = mine = replace(self._entry, processes=used)
        with self._changing() as change:
            change.board = change.board.updated(mine)

    def give_back(self) -> None:
        """End the lease. If a process that uses the devices is alive, the devices become free at its end."""
        mine, self._entry = self._entry, None
        if mine is None:
            return
        with self._changing() as change:
            if mine.in_use:
                change.board = change.board.updated(replace(mine, ended=True))
            else:
                change.board = change.board.without(mine.turn).settled()

    def wanted(self) -> bool:
        """Return whether another claim waits for a device of this lease."""
        if self._lease is None:
            return False
        try:
            status = os.stat(self._folder / _BOARD)
        except FileNotFoundError:  # the folder was cleaned up: the next change of the board shows this
            return False
        seen = status.st_mtime_ns, status.st_ino
        if seen != self._seen:
            held = {*self._lease.devices}
            self._seen, self._wanted = seen, any(held & {*devices} for devices in self._read().awaited().values())
        return self._wanted

    def close(self) -> None:
        """End the lease, and remove the files of this worker."""
        self.give_back()
        if self._alive is not None:
            self._remove_files(self._holder)
            os.close(self._alive)
            self._alive = None
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    @property
    def _lease(self) -> Lease | None:
        return None if self._entry is None else self._entry.lease

    def _begin(self) -> None:
        """Create the folder and the files of this worker. Raise BoardError, WriteError."""
        if self._alive is not None:
            return
        prepare_board(self._folder)
        with convert_to_write_error(f"into {str(self._folder)!r}"):
            self._pipe = create_pipe(self._file("pipe"))
            self._alive = os.open(self._file("alive"), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
            fcntl.flock(self._alive, fcntl.LOCK_EX)
            os.fchmod(self._pipe, _MODE)
            os.fchmod(self._alive, _MODE)

    def _apply(self, claim: Claim) -> None:
        """Put a claim on the board. The claim is granted immediately if the devices are free."""
        with self._changing() as change:
            board = change.board
            who = f"worker {self._worker} (process {os.getpid()})"
            mine = BoardEntry(board.turns + 1, self._holder, who, claim)
            memory = {**board.memory, **self._memory}
            change.board = replace(board, turns=mine.turn, entries=(*board.entries, mine), memory=memory).settled()
            self._entry = change.board.find(mine.turn)

    def _await(self, interrupt: Callable[[], object]) -> None:
        """Wait until the claim is granted. Raise NoDeviceError."""
        assert self._pipe is not None
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        wait = LeaseWait(clock.monotonic(), self._blocked()[1], limit=self._limit, first_message=self._first_message)
        while True:
            poll.poll(max(0.0, min(_LONGEST_WAIT, wait.next_look - clock.monotonic())) * 1000)
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipe, 4096)
            self._look()
            if self._lease is not None:
                return
            interrupt()
            device, holder = self._blocked()
            now = clock.monotonic()
            message_due, over = wait.look(now, holder)
            who = holder.partition("\n")[0] or "another worker"
            if message_due:
                took = now - wait.begun
                self._log(f"worker {self._worker} has waited {took:.0f} s for device {device}, which {who} holds")
            if over:
                raise NoDeviceError(
                    f"device {device} did not become free: {who} has held it for over {self._limit:.0f} s; "
                    "check what that process does"
                )

    def _look(self) -> None:
        """Return whether the claim has been granted. If it has not, remove the leases of dead processes first."""
        mine = self._mine(self._read())
        if mine.lease is None:
            with self._changing() as change:
                over = [entry.turn for entry in change.board.entries if self._is_over(entry)]
                change.board = change.board.without(*over).settled()
                mine = self._mine(change.board)
        self._entry = mine

    def _mine(self, board: LeaseBoard) -> BoardEntry:
        assert self._entry is not None
        entry = board.find(self._entry.turn)
        if entry is None:
            raise BoardError(
                f"the claim of this worker was removed from {str(self._folder / _BOARD)!r}: leave it alone during runs"
            )
        return entry

    def _blocked(self) -> tuple[str, str]:
        """Return a device that this worker waits for, and its holder: a text that changes with each new holder."""
        assert self._entry is not None
        board = self._read()
        awaited = board.awaited().get(self._entry.turn) or (self._entry.claim.own,)
        for entry in board.entries:
            common = [device for device in awaited if entry.lease is not None and device in entry.lease.devices]
            if common:
                return common[0], f"{entry.who}\n{entry.turn}"
        return awaited[0], ""

    def _is_over(self, entry: BoardEntry) -> bool:
        """Return whether no process uses or wants the devices of this entry any longer."""
        if entry.holder == self._holder and not entry.ended:
            return False
        return not entry.in_use and (entry.ended or not self._lives(entry.holder))

    def _lives(self, holder: str) -> bool:
        """Return whether the worker with these files lives, so that it locks one of them.

        Remove the files of a dead worker.
        """
        try:
            descriptor = os.open(self._file("alive", holder), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        self._remove_files(holder)
        return False

    @contextlib.contextmanager
    def _changing(self) -> Generator[_Change]:
        """Read, change and write the board while no other process does. Wake up workers that get a lease by the change.

        Raise BoardError, WriteError.
        """
        with convert_to_write_error(f"into {str(self._folder)!r}"), FileLock(self._folder / "lock", mode=_MODE):
            before = self._read()
            change = _Change(before)
            yield change
            if change.board == before:
                return
            new = self._file("new")
            with create_exclusively(new) as file:
                os.fchmod(file.fileno(), _MODE)
                file.write(change.board.to_json().encode())
            new.replace(self._folder / _BOARD)
        waited = {entry.turn for entry in before.entries if entry.lease is None}
        for entry in change.board.entries:
            if entry.lease is not None and entry.turn in waited and entry.holder != self._holder:
                self._wake(entry.holder)

    def _wake(self, holder: str) -> None:
        # A dead worker has no pipe, or its pipe has no reader. A worker with a full pipe checks each second anyway.
        with contextlib.suppress(OSError):
            write_to_pipe(self._file("pipe", holder), b"\n")

    def _read(self) -> LeaseBoard:
        """Return the board. It is empty if there is none, or if it is older than the last boot. Raise BoardError."""
        path, boot = self._folder / _BOARD, linux.boot_id()
        try:
            # A pipe of another user of the group would block, and a link would lead elsewhere.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, encoding="utf-8") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ValueError("not a regular file")
                board = LeaseBoard.from_json(file.read())
        except FileNotFoundError:
            return LeaseBoard(boot)
        except (OSError, ValueError, TypeError, ZeroDivisionError, RecursionError, msgspec.MsgspecError) as error:
            raise BoardError(
                f"{str(path)!r} is not a board of leases ({error!r}): remove it once no run uses a GPU of this machine"
            ) from None
        return board if board.boot == boot else LeaseBoard(boot)

    def _remove_files(self, holder: str) -> None:
        for kind in ("pipe", "alive"):
            self._file(kind, holder).unlink(missing_ok=True)

    def _file(self, kind: str, holder: str | None = None) -> Path:
        return self._folder / f"{holder or self._holder}.{kind}"


@dataclass(slots=True)
class _Change:
    board: LeaseBoard


def prepare_board(folder: Path) -> None:
    """Create the folder of the board, for users of the group. Raise BoardError if others could change the board."""
    with convert_to_write_error(f"into {str(folder.parent)!r}"):
        try:
            folder.mkdir(parents=True)
            folder.chmod(0o2770)
        except FileExistsError:
            pass
        status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise BoardError(f"{str(folder)!r} is not a folder: name one for leases of devices in {VARIABLE}")
    groups = {os.getegid(), *os.getgroups()}
    if status.st_mode & stat.S_IWOTH or (status.st_uid != os.getuid() and status.st_gid not in groups):
        raise BoardError(
            f"the folder {str(folder)!r} for leases of devices belongs to another user, or is writable by everyone: "
            f"remove it, or name another one in {VARIABLE}"
        )
