"""The base class of every error that this package raises deliberately, and errors that several packages use."""

from __future__ import annotations

import contextlib
from collections.abc import Generator


class HarnessError(Exception):
    """The base class. The message is in lower case, quotes the wrong value and ends with the next step."""

    def __str__(self) -> str:
        """Return the message, followed by the messages of its causes, on one line."""
        own = super().__str__()
        cause = self.__cause__
        return own if cause is None else f"{own}: {cause}"


class NoDeviceError(HarnessError):
    """No device is available for a case: too few are healthy, or none becomes free."""


class WriteError(HarnessError):
    """A file that a run must write cannot be written: the file system is full, read-only or broken."""


@contextlib.contextmanager
def convert_to_write_error(target: str) -> Generator[None]:
    """Turn an OSError in the block into a WriteError: `target` cannot be written."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write {target}") from error
