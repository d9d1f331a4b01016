"""Delta debugging: reduces a list to a minimal part that still has a property. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimise(items: Sequence[T], does: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a part of `items`, in order, for which `does` holds, but no longer if any one item is left out.

    `does` must hold for all `items`; this is not checked. `does` is never called twice with the same items. Delta
    debugging (A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): a single culprit
    among n items takes about 2 log n calls, the worst case about n squared.
    """
    asked: dict[tuple[int, ...], bool] = {}

    def holds(positions: Sequence[int]) -> bool:
        key = tuple(positions)
        if key not in asked:
            asked[key] = does([items[position] for position in key])
        return asked[key]

    kept = list(range(len(items)))
    if holds([]):
        return []
    parts = 2
    while len(kept) > 1:
        chunks = _chunks(kept, parts)
        smaller = next((chunk for chunk in chunks if holds(chunk)), None)
        if smaller is not None:
            kept, parts = smaller, 2
            continue
        rests = ([position for position in kept if position not in chunk] for chunk in chunks)
        smaller = next((rest for rest in rests if holds(rest)), None)
        if smaller is not None:
            kept, parts = smaller, max(parts - 1, 2)
        elif parts >= len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    return [items[position] for position in kept]


def _chunks(positions: Sequence[int], parts: int) -> list[list[int]]:
    """Return `positions` in `parts` chunks of nearly equal length.

    The last chunk is first: the latest cases are the likeliest causes.
    """
    edges = [len(positions) * part // parts for part in range(parts + 1)]
    return [list(positions[begin:end]) for begin, end in itertools.pairwise(edges)][::-1]
