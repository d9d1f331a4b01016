"""Leaks below the threshold for a second run after one case, and one that is always reported."""

from __future__ import annotations

import mmap

import numpy as np
import torch

EXPECTED = {
    "test_tensor": "leaked: 1 more torch tensor",
    "test_mapping": "leaked: 1.0 MiB more address space outside malloc",
    "test_between": "passed",
    "test_array": "leaked: 160.",
    "test_after": "passed",
}

MAPS: list[mmap.mmap] = []
ARRAYS: list[np.ndarray] = []
TENSORS: list[torch.Tensor] = []


def test_tensor() -> None:
    TENSORS.append(torch.zeros(1))


def test_mapping() -> None:
    MAPS.append(mmap.mmap(-1, 1 << 20))


def test_between() -> None:
    np.ones(160 << 10, dtype=np.uint8)  # a first call keeps more than the leak
    assert MAPS == []


def test_array() -> None:
    ARRAYS.append(np.ones(160 << 10, dtype=np.uint8))


def test_after() -> None:
    assert ARRAYS == []
