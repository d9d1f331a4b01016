"""The room in the arenas of Python's allocator, from which small objects come.

Python maps arenas of 1 MiB, and unmaps one when all of it is free. A case that needs 10 MiB of small objects for a
moment, and keeps three of them, pins up to three arenas in each run until those that are pinned hold 10 MiB: the
address space grows by some MiB, run after run, while Python could give out all of it again. What small objects are
kept is counted by the meter ``python_blocks``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

#: Bytes of an arena in 64-bit builds of CPython since 3.10.
ARENA = 1 << 20
#: Bytes of an object, and those after its head. From an arena come at most 512, with what Python's debug mode adds.
_OBJECT, _CONTENT = 448, 448 - 33
#: No more room than this is looked for. The objects are made in 10 ms.
_MOST = 64 << 20
#: Objects between two looks at the address space.
_STEP = 256


def room(mapped: Callable[[], int]) -> int:
    """Return how many bytes of objects fit into the arenas that are there, at most 64 MiB.

    `mapped` returns the bytes of address space. Objects are made until these grow, and freed again.
    """
    # All places first, and in lists that malloc takes from its heap.
    held: list[list[bytes | None]] = [[None] * _STEP for _ in range(_MOST // _OBJECT // _STEP)]
    before = mapped()
    for number, places in enumerate(held):
        for place in range(_STEP):
            places[place] = bytes(_CONTENT)
        if mapped() > before:
            return number * _STEP * _OBJECT
    return _MOST


class PinnedArenas:
    """The arenas that have become, since this was made, ones that Python can give out again."""

    def __init__(self, mapped: Callable[[], int]) -> None:
        self._mapped = mapped
        self._has_arenas = not os.environ.get("PYTHONMALLOC", "").startswith("malloc")
        self._room = room(mapped) if self._has_arenas else 0
        self._seen = mapped()
        self._bytes = 0

    def size(self) -> int:
        """Return the bytes of these arenas. They are counted again if the address space has grown."""
        mapped = self._mapped()
        if mapped > self._seen and self._has_arenas:
            # Some pools of each arena hold what is kept: two thirds of it are room.
            gained = max(0, room(self._mapped) - self._room)
            self._bytes = math.ceil(gained * 1.5 / ARENA) * ARENA
        self._seen = mapped
        return self._bytes
