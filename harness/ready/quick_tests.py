"""The table of quick tests, and which of them fit into a budget. Pure, but for the import of a test.

The functions import torch and are called in disposable processes only; this module imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

#: What a test that fails says about the GPU: a kind of the table of next steps.
WRONG, CONTRACT, PEER, COLLECTIVE = "wrong_result", "driver_contract", "wrong_peer", "wrong_collective"
#: The test without which the others say nothing.
FIRST = "context"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table.

    `function`: ``module:function``, or ``module:factory:argument``. `kind`: the kind of problem if it fails. `full`,
    `small`: the estimated seconds per GPU, on a GPU (a guess: no GPU has run them) and on one of eight simulated GPUs
    that share two processors (measured). `finds`: its weight, which is the number of known faults that it finds, as
    measured on the simulated CUDA (``docs/ready.md``), plus the kinds of damage that only hardware has. `holds`: what
    is the case if it passes. `group`: it is about several GPUs together.
    """

    name: str
    function: str
    kind: str
    full: float
    small: float
    finds: float
    holds: str
    group: bool = False

    @property
    def promise(self) -> str:
        """What the GPU does if it passes: a clause that begins with "that"."""
        return f"that {self.holds}"

    def load(self) -> Callable[..., None]:
        """Import and return the function."""
        module, name, *argument = self.function.split(":")
        found = getattr(importlib.import_module(f"harness.ready.{module}"), name)
        return cast(Callable[..., None], found(*argument) if argument else found)


#: Operations that a simulated device takes from the CPU, after an import of sympy by torch that takes seconds.
_SILICON = frozenset({"product_fp8", "product_int8", "fourier"})


def _arithmetic(name: str, kind: str, full: float, small: float, finds: float, holds: str) -> Entry:
    return Entry(name, f"arithmetic:{name}", kind, full, small, finds, holds)


def _order(name: str, kind: str, full: float, small: float, finds: float, holds: str) -> Entry:
    return Entry(name, f"order:{name}", kind, full, small, finds, holds)


TABLE: tuple[Entry, ...] = (
    _arithmetic("context", WRONG, 2.0, 0.6, 8, "a context is created, and a sum is right"),
    _order("kernels_in_order", WRONG, 0.1, 0.1, 4, "a chain of operations runs once each, in order"),
    _arithmetic("copies", WRONG, 2.0, 0.3, 6, "copied bytes arrive unchanged, both ways and on the GPU"),
    _order("waits", WRONG, 0.2, 0.2, 5, "a wait for a stream, event or device ends after the work before it"),
    _order("graphs", WRONG, 0.2, 0.2, 7, "a graph has each piece of work once, and each replay runs all of it"),
    _arithmetic("memory", WRONG, 3.0, 0.2, 6, "memory holds what is written to it"),
    _order("adjacent_order", WRONG, 0.1, 0.1, 3, "fills and copies of a stream run in order"),
    _order("stream_waits", WRONG, 0.1, 0.1, 5, "a stream waits for an event of another stream"),
    _order("events", CONTRACT, 0.1, 0.1, 3, "events measure time, and streams have their priority"),
    _order("errors", CONTRACT, 0.05, 0.05, 4, "a wrong call returns its documented error"),
    _order("fills", CONTRACT, 0.1, 0.1, 4, "a fill writes its range and nothing else"),
    _order("pools", CONTRACT, 0.1, 0.1, 4, "a memory pool counts what is used, and returns it"),
    _order(
        "memory_accounts", CONTRACT, 0.2, 0.1, 3, "free memory follows allocations, and most of it can be allocated"
    ),
    _order("launches", WRONG, 0.2, 0.2, 2, "a small kernel takes less than a millisecond, and has its effect"),
    _arithmetic("integers", WRONG, 0.4, 0.4, 4, "products and sums of integers are exact"),
    _order("asynchronous_copies", CONTRACT, 0.1, 0.1, 1, "a copy of pinned memory returns at once"),
    _order("external_events", WRONG, 0.1, 0.1, 7, "a graph waits for an external event"),
    *(
        Entry(
            f"product_{kind}",
            f"arithmetic:product:{kind}",
            WRONG,
            0.8,
            0.15,
            3,
            f"a product of matrices in {kind} is exact",
        )
        for kind in ("bf16", "fp16", "fp8", "tf32", "fp32", "fp64", "int8")
    ),
    _arithmetic("convolution", WRONG, 0.8, 0.1, 3, "a convolution of integers is exact"),
    _arithmetic("attention", WRONG, 0.5, 0.1, 2, "attention over equal keys is the running mean"),
    _arithmetic("fourier", WRONG, 0.5, 0.1, 2, "Fourier transforms of an impulse and a wave are the known ones"),
    _arithmetic("repeated", WRONG, 0.2, 0.2, 4, "the same product has the same bits each time"),
    _order("allocations", CONTRACT, 0.3, 0.3, 1, "each of many blocks keeps its value"),
    Entry("pairs", "group:pairs", PEER, 5.0, 1.0, 5, "copies between each two GPUs are right, and in order", True),
    Entry(
        "collectives",
        "group:collectives",
        COLLECTIVE,
        8.0,
        3.0,
        14,
        "all-reduce, broadcast and gather over all GPUs are right, and in time",
        group=True,
    ),
)
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in TABLE}


@dataclass(frozen=True, slots=True)
class Plan:
    """`run`: the names of tests in order. `skipped`: those that do not fit, each with the reason."""

    run: tuple[str, ...]
    skipped: Mapping[str, str]


def plan(budget: float, gpus: int, *, full: bool, table: Sequence[Entry] = TABLE) -> Plan:
    """Return the tests for a budget in seconds, so that each budget is well spent: most faults per second first.

    Tests of groups come last, and need two GPUs. A test that does not fit is left out, and a shorter one may still fit.
    """
    left, run, skipped = budget, [], {}
    seconds = {entry.name: entry.full if full else entry.small for entry in table}
    for entry in sorted(
        table, key=lambda each: (each.name != FIRST, each.group, -each.finds / max(seconds[each.name], 1e-3))
    ):
        if entry.name in _SILICON and not full:
            skipped[entry.name] = "a simulated device has no library of its own for it"
        elif entry.group and gpus < 2:
            skipped[entry.name] = "it needs two whole GPUs that one process can use together"
        elif FIRST in skipped:
            skipped[entry.name] = f"it follows {FIRST}, which is skipped"
        elif seconds[entry.name] > left:
            estimate = f"it takes about {seconds[entry.name]:.0f} s"
            skipped[entry.name] = f"{estimate}, and {left:.0f} s of the budget of {budget:.0f} s are left"
        else:
            left -= seconds[entry.name]
            run.append(entry.name)
    return Plan(tuple(run), skipped)


def run_test(name: str, *arguments: Any) -> None:
    """Run a test in this process. Raise HealthError, CannotTestError, or whatever torch raises."""
    ENTRIES[name].load()(*arguments)
