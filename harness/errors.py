"""The root of every error this package raises on purpose."""

from __future__ import annotations

import contextlib
from collections.abc import Generator


class HarnessError(Exception):
    """Root class. Its text is lower case, quotes the offending value and says what to do next."""

    def __str__(self) -> str:
        """The message, followed by those of its causes: one line a reader can act on."""
        own = super().__str__()
        cause = self.__cause__
        return own if cause is None else f"{own}: {cause}"


class WriteError(HarnessError):
    """Something that a run must write cannot be written: the file system is full, read-only or broken."""


@contextlib.contextmanager
def writing(what: str) -> Generator[None]:
    """Within it an OSError is a WriteError: `what` cannot be written."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write {what}") from error
