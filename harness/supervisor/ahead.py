"""Which case pytest asks for next: so that it can begin while the last one is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Ahead:
    """The case that pytest asks for next, and the one after it, which decides what the first one tears down."""

    item: pytest.Item
    nextitem: pytest.Item | None


class RunOrder:
    """The order in which pytest runs the items of a session. Not for an xdist worker: the controller chooses there."""

    def __init__(self, is_case: Callable[[pytest.Item], bool]) -> None:
        self._is_case = is_case
        self._position = 0

    def ahead(self, item: pytest.Item, nextitem: pytest.Item | None) -> Ahead | None:
        """What follows `item`. None if no case does, or if pytest does not go by the session's list."""
        items = item.session.items
        if self._position >= len(items) or items[self._position] is not item:
            self._position = next((number for number, other in enumerate(items) if other is item), len(items))
        self._position += 1
        if nextitem is None or self._position >= len(items) or items[self._position] is not nextitem:
            return None
        last = self._position + 1 == len(items)
        following = None if last else items[self._position + 1]
        return Ahead(nextitem, following if following is not None and self._is_case(following) else None)
