"""Cases that grow over many repetitions, far below the leak check's threshold for one run; and cases that do not.

``SHAPES`` has the report's word for each case, ``GROWS`` its text for those that grow. In one repetition, all of them
together grow by less than the threshold of a batch's leak check (64 KiB).
"""

from __future__ import annotations

import itertools

import numpy as np

GROWS = {
    "test_heap": "heap_bytes: malloc memory of C code, NumPy or torch on the CPU grew by 4.",
    "test_objects": "python_blocks: memory blocks of Python's own allocator grew by 50",
}
SHAPES = {
    "test_heap": "GROWS",
    "test_objects": "GROWS",
    "test_flat": "FLAT",
    "test_fills_a_cache": "SETTLED",
    "test_empties_a_cache": "UNSTEADY",
}
EXPECTED = {
    "test_heap": "passed",
    "test_objects": "passed",
    "test_flat": "passed",
    "test_fills_a_cache": "passed",
    "test_empties_a_cache": "passed",
}

ARRAYS: list[np.ndarray] = []
OBJECTS: list[list[float]] = []
CACHE: dict[int, np.ndarray] = {}
EMPTIED: list[np.ndarray] = []
RUNS = itertools.count()


def test_heap() -> None:
    ARRAYS.append(np.ones(4 << 10, dtype=np.uint8))


def test_objects() -> None:
    # The lists are short enough for Python's own allocator, so they do not use malloc.
    OBJECTS.extend([float(number) for number in range(40)] for _ in range(12))


def test_flat() -> None:
    assert np.ones(64 << 10, dtype=np.uint8).sum() == 64 << 10


def test_fills_a_cache() -> None:
    number = next(RUNS) % 8
    CACHE.setdefault(number, np.ones(16 << 10, dtype=np.uint8))


def test_empties_a_cache() -> None:
    EMPTIED.append(np.ones(16 << 10, dtype=np.uint8))
    if len(EMPTIED) == 7:
        EMPTIED.clear()
