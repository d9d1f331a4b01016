"""The table of quick tests: name, estimated time, weight, and function. `harness.ready.plan` chooses among them.

The functions import torch and are called in disposable processes only; this module imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from harness.ready.plan import QuickTest

#: What a test that fails says about the GPU: a kind of the table of next steps.
WRONG, CONTRACT, PEER, COLLECTIVE = "wrong_result", "driver_contract", "wrong_peer", "wrong_collective"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table.

    `function`: ``module:function``, or ``module:factory:argument``. `full`, `small`: the estimated seconds per GPU, on
    a GPU (a guess: no GPU has run them) and on one of eight simulated GPUs that share two processors (measured).
    `finds`: see `QuickTest`. `kind`: the kind of problem if it fails.
    """

    name: str
    function: str
    kind: str
    full: float
    small: float
    finds: float
    after: tuple[str, ...] = ("context",)
    group: bool = False

    @property
    def promise(self) -> str:
        """What the GPU does if it passes: a clause that begins with "that"."""
        text = PROMISES["product" if self.name.startswith("product_") else self.name]
        return f"that {text.format(self.name.partition('_')[2])}"

    def test(self, *, full: bool) -> QuickTest:
        """Return the row as the planner knows it."""
        lacks = "" if full or self.name not in _SILICON else "a simulated device has no library of its own for it"
        return QuickTest(self.name, self.full if full else self.small, self.finds, self.after, self.group, lacks)

    def load(self) -> Callable[..., None]:
        """Import and return the function."""
        module, name, *argument = self.function.split(":")
        found = getattr(importlib.import_module(f"harness.ready.{module}"), name)
        return cast(Callable[..., None], found(*argument) if argument else found)


#: Operations that a simulated device takes from the CPU, after an import of sympy by torch that takes seconds.
_SILICON = frozenset({"product_fp8", "product_int8", "fourier"})


def _arithmetic(name: str, kind: str, full: float, small: float, finds: float) -> Entry:
    return Entry(name, f"arithmetic:{name}", kind, full, small, finds)


def _order(name: str, kind: str, full: float, small: float, finds: float) -> Entry:
    return Entry(name, f"order:{name}", kind, full, small, finds)


#: What each test expects, for reports.
PROMISES = {
    "context": "a context is created, and a sum is right",
    "kernels_in_order": "a chain of operations runs once each, in order",
    "copies": "copied bytes arrive unchanged, both ways and on the GPU",
    "waits": "a wait for a stream, event or device ends after the work before it",
    "graphs": "a graph has each piece of work once, and each replay runs all of it",
    "memory": "memory holds what is written to it",
    "adjacent_order": "fills and copies of a stream run in order",
    "stream_waits": "a stream waits for an event of another stream",
    "events": "events measure time, and streams have their priority",
    "errors": "a wrong call returns its documented error",
    "fills": "a fill writes its range and nothing else",
    "pools": "a memory pool counts what is used, and returns it",
    "memory_accounts": "free memory follows allocations, and most of it can be allocated",
    "launches": "a small kernel takes less than a millisecond, and has its effect",
    "integers": "products and sums of integers are exact",
    "asynchronous_copies": "a copy of pinned memory returns at once",
    "external_events": "a graph waits for an external event",
    "product": "a product of matrices in {} is exact",
    "convolution": "a convolution of integers is exact",
    "attention": "attention over equal keys is the running mean",
    "fourier": "Fourier transforms of an impulse and a wave are the known ones",
    "repeated": "the same product has the same bits each time",
    "allocations": "each of many blocks keeps its value",
    "pairs": "copies between each two GPUs are right, and in order",
    "collectives": "all-reduce, broadcast and gather over all GPUs are right, and in time",
}

TABLE: tuple[Entry, ...] = (
    Entry("context", "arithmetic:context", WRONG, 2.0, 0.6, 8, after=()),
    _order("kernels_in_order", WRONG, 0.1, 0.1, 4),
    _arithmetic("copies", WRONG, 2.0, 0.3, 6),
    _order("waits", WRONG, 0.2, 0.2, 5),
    _order("graphs", WRONG, 0.2, 0.2, 7),
    _arithmetic("memory", WRONG, 3.0, 0.2, 6),
    _order("adjacent_order", WRONG, 0.1, 0.1, 3),
    _order("stream_waits", WRONG, 0.1, 0.1, 5),
    _order("events", CONTRACT, 0.1, 0.1, 3),
    _order("errors", CONTRACT, 0.05, 0.05, 4),
    _order("fills", CONTRACT, 0.1, 0.1, 4),
    _order("pools", CONTRACT, 0.1, 0.1, 4),
    _order("memory_accounts", CONTRACT, 0.2, 0.1, 3),
    _order("launches", WRONG, 0.2, 0.2, 2),
    _arithmetic("integers", WRONG, 0.4, 0.4, 4),
    _order("asynchronous_copies", CONTRACT, 0.1, 0.1, 1),
    _order("external_events", WRONG, 0.1, 0.1, 7),
    *(
        Entry(f"product_{kind}", f"arithmetic:product:{kind}", WRONG, 0.8, 0.15, 3)
        for kind in ("bf16", "fp16", "fp8", "tf32", "fp32", "fp64", "int8")
    ),
    _arithmetic("convolution", WRONG, 0.8, 0.1, 3),
    _arithmetic("attention", WRONG, 0.5, 0.1, 2),
    _arithmetic("fourier", WRONG, 0.5, 0.1, 2),
    _arithmetic("repeated", WRONG, 0.2, 0.2, 4),
    _order("allocations", CONTRACT, 0.3, 0.3, 1),
    Entry("pairs", "group:pairs", PEER, 5.0, 1.0, 5, group=True),
    Entry("collectives", "group:collectives", COLLECTIVE, 8.0, 3.0, 14, group=True),
)
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in TABLE}


def quick_tests(*, full: bool) -> list[QuickTest]:
    """Return all rows for the planner. `full`: sizes for GPUs."""
    return [entry.test(full=full) for entry in TABLE]


def run_test(name: str, *arguments: Any) -> None:
    """Run a test in this process. Raise HealthError, CannotTestError, or whatever torch raises."""
    ENTRIES[name].load()(*arguments)
