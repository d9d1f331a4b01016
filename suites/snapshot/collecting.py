"""Collections of garbage at chosen moments, so that what observes them is seen to be called."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def noop() -> None:
    """A call, which is when an observer gets its turn after a collection."""


def collect(generation: int = 2) -> None:
    """Collect everything, or what is young only, and give an observer its turn."""
    gc.collect(generation)
    noop()
    noop()


class Watched:
    """A tensor over memory of Python's, which tells whether the tensor is still there.

    A weak reference would not tell: the collector clears it when it finds the cycle, also where it then saves it.
    """

    def __init__(self) -> None:
        self._memory = bytearray(12)
        self._unheld = sys.getrefcount(self._memory)

    def tensor(self) -> torch.Tensor:
        """Three numbers in this memory."""
        return torch.frombuffer(self._memory, dtype=torch.float32)

    def is_held(self) -> bool:
        """Whether a tensor has this memory."""
        return sys.getrefcount(self._memory) > self._unheld


@contextmanager
def on_demand() -> Iterator[None]:
    """A block in which nothing is collected unless it is asked for, and after which the collector is as it was."""
    callbacks, enabled = list(gc.callbacks), gc.isenabled()
    gc.disable()
    gc.collect()
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
    """Leave a tensor in a cycle as they come about in practice: a function that needs itself and the tensor."""

    def again(more: bool) -> Any:
        return again(False) if more else x

    again(True)
