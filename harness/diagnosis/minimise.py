"""The smallest part of a list that still does what the whole does. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimise(items: Sequence[T], does: Callable[[Sequence[T]], bool]) -> list[T]:
    """A part of `items`, in their order, for which `does` holds, and no longer holds when any one item is left out.

    `does` must hold for all of them, which is not asked again; the same question is never asked twice. Delta debugging
    (A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): a single culprit among n is
    found with about 2 log n questions, and at worst there are about n squared.
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
    """`positions` in `parts` runs of nearly the same length, the last first: what ran last is likeliest to matter."""
    edges = [len(positions) * part // parts for part in range(parts + 1)]
    return [list(positions[begin:end]) for begin, end in itertools.pairwise(edges)][::-1]
