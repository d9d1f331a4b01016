"""The request to stop a run: the controller sends it, and every supervisor receives it, even while it waits.

Each supervisor has a named pipe in a folder of the run. It polls the pipe together with its other descriptors. A file
beside the pipes holds the latest request, for supervisors that start later.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.core import clock
from harness.core.errors import HarnessError

#: The folder below the run's folder for temporary files.
FOLDER = "stop"
_REQUEST = "request.json"
_PIPE = ".pipe"


class StoppedError(HarnessError):
    """The run got a request to stop, so the operation was not done."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to stop. `reason`: for example ``stopped by SIGTERM``. Running cases may continue until `deadline`.

    `deadline` is a time of `harness.core.clock.monotonic`. `grace`: seconds from the request to the deadline.
    """

    reason: str
    grace: float
    deadline: float

    @classmethod
    def after(cls, grace: float, reason: str) -> StopRequest:
        """Return a request with its deadline `grace` seconds from now."""
        return cls(reason, grace, clock.monotonic() + grace)

    @property
    def text(self) -> str:
        """The reason why a case was stopped, as text."""
        return f"{self.reason} after {self.grace:g} s of grace" if self.grace else f"{self.reason}, without grace"


def send_stop(folder: Path, stop: StopRequest) -> None:
    """Send the request to every supervisor that has or will have a pipe in `folder`.

    Raise OSError if the request cannot be stored for later supervisors. The existing ones have then received it.
    """
    line = json.dumps(asdict(stop)).encode() + b"\n"
    reached = _write_all(line, {*folder.glob(f"*{_PIPE}")})
    new = folder / f".{_REQUEST}"
    new.write_bytes(line)
    new.replace(folder / _REQUEST)
    _write_all(line, {*folder.glob(f"*{_PIPE}")} - reached)  # supervisors that started before the file existed


def _write_all(line: bytes, pipes: set[Path]) -> set[Path]:
    for path in pipes:
        # The supervisor is dead, or its pipe is full, because it did not read many requests.
        with contextlib.suppress(OSError):
            write_to_pipe(path, line)
    return pipes


class StopListener:
    """The receiving end of one supervisor. Poll it for reading, and call `receive` after each poll."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = create_pipe(folder / f"{name}{_PIPE}")
        self._rest = b""
        self._stop: StopRequest | None = None
        with contextlib.suppress(FileNotFoundError):
            self._take((folder / _REQUEST).read_bytes())

    def fileno(self) -> int:
        return self._descriptor

    def receive(self) -> StopRequest | None:
        """Return the latest request, or None."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._take(os.read(self._descriptor, 4096))
        return self._stop

    @property
    def known(self) -> StopRequest | None:
        """The latest request that `receive` returned, or None. Does not look for a new one."""
        return self._stop

    def refuse(self) -> None:
        """Raise StoppedError if there is a request. Call this before new work begins."""
        stop = self.receive()
        if stop is not None:
            raise StoppedError(stop.reason)

    def close(self) -> None:
        os.close(self._descriptor)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            self._stop = StopRequest(**json.loads(lines[-1]))


# Named pipes on which a worker waits, and into which other processes write without waiting.

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
