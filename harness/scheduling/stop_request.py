"""The request that a run stop: the controller sends it, every supervisor hears it, whatever it waits for.

Each supervisor has a named pipe in a folder of the run, which it polls together with what it waits for. A file beside
the pipes holds the latest request for a supervisor that comes later.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.errors import HarnessError

#: The folder below the run's folder for temporary files.
FOLDER = "stop"
_REQUEST = "request.json"
_PIPE = ".pipe"


class StoppedError(HarnessError):
    """The run is told to stop: what was to be done is not done any more."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A request. `reason`: ``stopped by SIGTERM``. Cases that run may go on until `deadline` (of `time.monotonic`).

    `grace` is what that was in seconds when the request was made.
    """

    reason: str
    grace: float
    deadline: float

    @classmethod
    def after(cls, grace: float, reason: str) -> Stop:
        """A request from now on."""
        return cls(reason, grace, time.monotonic() + grace)

    @property
    def text(self) -> str:
        """Why a case was ended."""
        return f"{self.reason} after {self.grace:g} s of grace" if self.grace else f"{self.reason}, without grace"


def send(folder: Path, stop: Stop) -> None:
    """Tell every supervisor that has or will have a pipe in `folder`.

    Raises OSError when it cannot be kept for those that come later; the others have been told.
    """
    line = json.dumps(asdict(stop)).encode() + b"\n"
    told = _tell(line, {*folder.glob(f"*{_PIPE}")})
    new = folder / f".{_REQUEST}"
    new.write_bytes(line)
    new.replace(folder / _REQUEST)
    _tell(line, {*folder.glob(f"*{_PIPE}")} - told)  # those that came meanwhile, and may have found no file yet


def _tell(line: bytes, pipes: set[Path]) -> set[Path]:
    for path in pipes:
        # ENXIO: its supervisor is dead. EAGAIN: it has been told so often, and has not listened.
        with contextlib.suppress(OSError):
            _write(path, line)
    return pipes


def _write(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


class StopListener:
    """What one supervisor hears. To be polled for reading; after each poll `heard` is to be asked."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}{_PIPE}"
        os.mkfifo(path)
        # For writing as well: a pipe without a writer would be readable, at its end, for ever.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""
        self._stop: Stop | None = None
        with contextlib.suppress(FileNotFoundError):
            self._take((folder / _REQUEST).read_bytes())

    def fileno(self) -> int:
        return self._descriptor

    def heard(self) -> Stop | None:
        """The latest request, None while there is none."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._take(os.read(self._descriptor, 4096))
        return self._stop

    def refuse(self) -> None:
        """Raise StoppedError once there is a request: nothing new is to be begun."""
        stop = self.heard()
        if stop is not None:
            raise StoppedError(stop.reason)

    def close(self) -> None:
        os.close(self._descriptor)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            self._stop = Stop(**json.loads(lines[-1]))
