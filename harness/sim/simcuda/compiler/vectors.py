"""Disables vector instructions in code for simulated devices, and the search for them.

Inductor detects the available kinds by compiling and loading a program for each, which takes half a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch._inductor import codecache, cpu_vec_isa


class _State(threading.local):
    """Whether this thread generates or compiles code for simulated devices."""

    plain = False


_state = _State()


@contextmanager
def no_vectors() -> Iterator[None]:
    """Make Inductor choose no vector instructions in this thread."""
    before, _state.plain = _state.plain, True
    try:
        yield
    finally:
        _state.plain = before


def _choice(pick: Callable[[], cpu_vec_isa.VecISA]) -> Callable[[], cpu_vec_isa.VecISA]:
    def chosen() -> cpu_vec_isa.VecISA:
        return cpu_vec_isa.invalid_vec_isa if _state.plain else pick()

    return chosen


def install_choice() -> None:
    """Make Inductor's choice respect `no_vectors`, under both of its names."""
    chosen = _choice(cpu_vec_isa.pick_vec_isa)
    cpu_vec_isa.pick_vec_isa = chosen
    codecache.pick_vec_isa = chosen  # type: ignore[attr-defined]
