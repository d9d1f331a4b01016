"""Garbage collections at chosen times, so that cases can check when observers are called."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def noop() -> None:
    """Do nothing. During the call, an observer runs after a collection."""


def collect(generation: int = 2) -> None:
    """Collect all generations, or up to the given one, and let observers run."""
    gc.collect(generation)
    noop()
    noop()


class Watched:
    """A tensor over memory owned by Python, which shows whether the tensor still exists.

    A weak reference would not: the collector clears it when it finds the cycle, even if the cycle is then kept alive.
    """

    def __init__(self) -> None:
        self._memory = bytearray(12)
        self._unheld = sys.getrefcount(self._memory)

    def tensor(self) -> torch.Tensor:
        """Return three numbers in this memory."""
        return torch.frombuffer(self._memory, dtype=torch.float32)

    def is_held(self) -> bool:
        """Return whether a tensor holds this memory."""
        return sys.getrefcount(self._memory) > self._unheld


@contextmanager
def on_demand() -> Iterator[None]:
    """Disable automatic collections in the block. The collector is restored at its end."""
    callbacks, enabled = list(gc.callbacks), gc.isenabled()
    gc.disable()
    for _ in range(10):  # what a collection frees may leave further cycles
        if not gc.collect():
            break
    try:
        yield
    finally:
        gc.callbacks[:] = callbacks
        gc.set_debug(0)
        gc.garbage.clear()
        sys.setprofile(None)
        gc.collect()
        if enabled:
            gc.enable()


def leave_a_cycle(x: torch.Tensor) -> None:
    """Leave a tensor in a typical cycle: a function that refers to itself and to the tensor."""

    def again(more: bool) -> Any:
        return again(False) if more else x

    again(True)
