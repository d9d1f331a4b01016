"""Snapshots of memory pools, with a workaround for a reference-counting bug in torch.

`torch.cuda.memory_snapshot` drops references to the numbers of a pool id that its caller owns (torch 2.11 to 2.14,
`THCPModule_memorySnapshot` in torch/csrc/cuda/Module.cpp, https://github.com/pytorch/pytorch/pull/196366). Python
shares small integers, so these are not affected at first. An integer above 256 is freed while in use, and the process
crashes later, at an unrelated place. Each snapshot here therefore adds the missing references in advance.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

import torch


def segments(pool: torch.cuda.MemPool, **options: bool) -> list[dict[str, Any]]:
    """Return the pool's segments, as `MemPool.snapshot` returns them with these options."""
    found: list[dict[str, Any]] = torch.cuda.memory_snapshot(spared(*pool.id), **options)
    return found


def inside(pool: torch.cuda.MemPool, tensor: torch.Tensor) -> bool:
    """Return whether a tensor is in one of the pool's segments."""
    return any(
        segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"]
        for segment in segments(pool)
    )


def spared(*numbers: int) -> tuple[int, ...]:
    """Return the numbers of the id, each with as many extra references as a snapshot drops."""
    for number in numbers:
        _refer(number, _taken())
    return numbers


def references_taken() -> int:
    """Return the number of references to an id number that a snapshot drops, and restore them."""
    number = int("1000001")  # no pool has this id, and it is not a constant, which others would reference
    references = [number] * 8
    before = sys.getrefcount(number)
    torch.cuda.memory_snapshot((0, number))
    taken = before - sys.getrefcount(number)
    _refer(number, taken)
    _refer(0, taken)
    del references
    return taken


@functools.cache
def _taken() -> int:
    return references_taken()


def _refer(number: int, times: int) -> None:
    for _ in range(times):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(number))
