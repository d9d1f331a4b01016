"""The cases that pytest will ask for next, so that they can begin while earlier ones are reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pytest

from harness.collection.cases import is_case
from harness.scheduling.workers import HandedOutList


@dataclass(frozen=True, slots=True)
class Ahead:
    """A case that pytest will ask for later, and the item after it.

    The next item decides which fixtures the case tears down.
    """

    item: pytest.Item
    nextitem: pytest.Item | None


class Upcoming(Protocol):
    """Returns up to `count` cases that pytest will ask for next, without the first `behind`."""

    def __call__(self, behind: int, count: int) -> Sequence[Ahead]: ...


class RunOrder:
    """The order in which pytest asks for the items of a session.

    It is the order of its list, or, on an xdist worker, the order in which the controller hands items out.
    """

    def __init__(self, handed_out: HandedOutList | None = None) -> None:
        """`handed_out`: for an xdist worker, the positions of its items in the list."""
        self._handed_out = handed_out
        self._items: list[pytest.Item] = []
        #: The position after the item that pytest has asked for.
        self._position = 0
        self._is_known = False

    def at(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Note that pytest asks for `item`. The items after it are unknown if `nextitem` contradicts the order."""
        self._refresh(item.session, 2)
        items = self._items
        if self._position >= len(items) or items[self._position] is not item:
            self._position = next((number for number, other in enumerate(items) if other is item), len(items))
        self._position += 1
        self._is_known = self._position < len(items) and nextitem is not None and items[self._position] is nextitem

    def ahead(self, behind: int, count: int) -> list[Ahead]:
        """Return up to `count` cases that pytest will ask for next, without the first `behind`.

        Stop at an item that is no case.
        """
        upcoming: list[Ahead] = []
        if not self._is_known:
            return upcoming
        first = self._position + behind
        self._refresh(self._items[0].session, behind + count + 1)
        for position in range(first, min(first + count, len(self._items))):
            item = self._items[position]
            is_last = position + 1 == len(self._items)
            if not is_case(item) or (is_last and not self._is_whole):
                break
            following = None if is_last else self._items[position + 1]
            upcoming.append(Ahead(item, following if following is not None and is_case(following) else None))
        return upcoming

    @property
    def starves(self) -> bool:
        """Whether the next case cannot begin because the controller has not handed out the item after it.

        Pytest begins a case once it knows the next item.
        """
        if self._handed_out is None or not self._items:
            return False
        self._refresh(self._items[0].session, 2)
        return not self._handed_out.ended and len(self._items) < self._position + 2

    @property
    def _is_whole(self) -> bool:
        """Whether the last known item is the last one of the session."""
        return self._handed_out is None or self._handed_out.ended

    def _refresh(self, session: pytest.Session, wanted: int) -> None:
        """Look for newly handed out items, unless `wanted` items from the current position on are known."""
        if self._handed_out is None:
            self._items = session.items
        elif not self._handed_out.ended and self._position + wanted > len(self._items):
            self._handed_out.refresh()
            new = self._handed_out.positions[len(self._items) :]
            self._items += [session.items[position] for position in new]
