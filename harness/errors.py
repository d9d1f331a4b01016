"""The base class of every error that this package raises on purpose."""

from __future__ import annotations


class HarnessError(Exception):
    """Base class. The text is lower case, quotes the wrong value and says what to do next."""

    def __str__(self) -> str:
        """The message, followed by the messages of its causes, on one line."""
        own = super().__str__()
        cause = self.__cause__
        return own if cause is None else f"{own}: {cause}"
