"""Snapshots of memory pools, without the harm that torch's own do.

`torch.cuda.memory_snapshot` drops references of its caller to the numbers of a pool's id (torch 2.11 to 2.14,
`THCPModule_memorySnapshot` in torch/csrc/cuda/Module.cpp, https://github.com/pytorch/pytorch/pull/196366). Python
shares small numbers, so at first nothing happens. A number above 256 is freed while it is in use, and the process
crashes at some later time, in some other place. So each snapshot here gives its numbers one reference more before.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

import torch


def segments(pool: torch.cuda.MemPool, **options: bool) -> list[dict[str, Any]]:
    """What `MemPool.snapshot` gives with these options: the pool's segments."""
    found: list[dict[str, Any]] = torch.cuda.memory_snapshot(spared(*pool.id), **options)
    return found


def spared(*numbers: int) -> tuple[int, ...]:
    """The numbers, each with as many references more as a snapshot takes away."""
    for number in numbers:
        _refer(number, _taken())
    return numbers


def references_taken() -> int:
    """How many references to a number of an id are gone after a snapshot. They are given back."""
    number = int("1000001")  # no pool has it, and it is not a constant, to which others refer
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
