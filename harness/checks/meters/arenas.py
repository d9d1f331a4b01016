"""The free space in the arenas of Python's allocator, from which small objects come.

Python maps arenas of 1 MiB, and unmaps an arena when all of it is free. A case that briefly needs 10 MiB of small
objects, and keeps three of them, pins up to three arenas in each run until the pinned arenas hold 10 MiB. The address
space grows by some MiB in each of these runs, although Python can reuse all of it. The meter ``python_blocks`` counts
the small objects that are kept.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

#: Bytes of an arena in 64-bit builds of CPython since 3.10.
ARENA = 1 << 20
#: Bytes of an object, and its bytes after the header. Arenas serve at most 512 bytes, including those that Python's
#: debug mode adds.
_OBJECT, _CONTENT = 448, 448 - 33
#: The search for free space ends here. These objects are made in 10 ms.
_MOST = 64 << 20
#: Objects between two readings of the address space.
_STEP = 256


def room(mapped: Callable[[], int]) -> int:
    """Return how many bytes of objects fit into the existing arenas, at most 64 MiB.

    `mapped` returns the bytes of address space. Objects are made until the address space grows, and then freed.
    """
    # Allocate all places before measuring, in lists that malloc takes from its heap.
    held: list[list[bytes | None]] = [[None] * _STEP for _ in range(_MOST // _OBJECT // _STEP)]
    before = mapped()
    for number, places in enumerate(held):
        for place in range(_STEP):
            places[place] = bytes(_CONTENT)
        if mapped() > before:
            return number * _STEP * _OBJECT
    return _MOST


class PinnedArenas:
    """The arenas that became free for reuse since this object was made."""

    def __init__(self, mapped: Callable[[], int]) -> None:
        self._mapped = mapped
        self._has_arenas = not os.environ.get("PYTHONMALLOC", "").startswith("malloc")
        self._room = room(mapped) if self._has_arenas else 0
        self._seen = mapped()
        self._bytes = 0

    def size(self) -> int:
        """Return the bytes of these arenas. They are measured again if the address space has grown."""
        mapped = self._mapped()
        if mapped > self._seen and self._has_arenas:
            # Kept objects occupy some pools of each arena: two thirds of the arena are free.
            gained = max(0, room(self._mapped) - self._room)
            self._bytes = math.ceil(gained * 1.5 / ARENA) * ARENA
        self._seen = mapped
        return self._bytes
