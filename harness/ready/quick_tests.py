"""The table of quick tests, which of them fit into a budget, and the order for their process with the lines it sends.

The functions of the tests import torch and are called in disposable processes only; this module imports none of them.
An order is one JSON object in a file; the lines that come back are JSON objects in another. Both sides are on one
machine, but a device that corrupts memory may damage a line: a reader skips what is none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

#: Characters of a text.
MOST_TEXT = 2000
#: Bytes of all lines that are read: a test that writes more is broken.
MOST_BYTES = 32 << 20

Text = Annotated[str, Meta(max_length=MOST_TEXT)]
Number = Annotated[float, Meta(ge=0, le=1e18)]
Phase = Literal["solo", "group"]


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU to test. `label`: its name in texts. `masks`: the variables that show a process this GPU alone."""

    uuid: str
    label: str
    masks: dict[str, str]


_Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,255}$")]


class Fabric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part of this node in a test of several nodes: its GPUs are the ranks from `first` on, of `world` ranks.

    Rank 0 listens at the address. `limit`: seconds for a place of the test, and for the ranks to wait for each other.
    """

    kind: _Word
    first: Annotated[int, Meta(ge=0, le=1 << 20)]
    world: Annotated[int, Meta(ge=0, le=1 << 20)]
    gpus: Annotated[int, Meta(ge=0, le=1024)]
    address: _Word
    port: Annotated[int, Meta(ge=0, le=65535)]
    limit: Annotated[int, Meta(ge=0, le=3600)]

    @property
    def word(self) -> str:
        """The part as one word of a command."""
        return ",".join(f"{name}={getattr(self, name)}" for name in self.__struct_fields__)

    @classmethod
    def parse(cls, word: str) -> Fabric:
        """Return the part in a word. Raise msgspec.ValidationError."""
        return msgspec.convert(dict(part.partition("=")[::2] for part in word.split(",")), cls, strict=False)


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tests to run. `full`: sizes for GPUs, not for simulated ones.

    Seconds: `start_until` after the start of the process no test begins. `hang`: a test that has not ended after so
    many seconds, without those in which no processor was free, hangs. `end`: after that everything is killed.
    `fabric`: the tests of groups are with other nodes, and no others run. `whole_exit`: processes end by the whole
    exit, in which drivers may crash. `parent`: the process with whose end all ends.
    """

    kind: str
    gpus: tuple[Gpu, ...]
    solo: tuple[str, ...]
    group: tuple[str, ...]
    folder: str
    start_until: float
    hang: float
    end: float
    seed: int
    full: bool
    whole_exit: bool
    fabric: Fabric | None = None
    parent: int = 0


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What happened to a GPU, or to the process as a whole (without `gpu`).

    - ``imported``: torch is there, after `seconds`.
    - ``test``: the test `name` begins. ``place``: it has come to the place `text`.
    - ``done``: it has ended as `state` says; `figures` is what it measured.
    - ``left``: the tests `names` were not begun, since the time was used up.
    - ``complete``: all tests of the process have ended.
    - ``end``: the process has ended with `status` (None: it could not be killed). `state` is why: ``hang``, ``budget``
      (the time was used up), ``others`` (another process of the group had failed) or empty. `starved`: seconds in which
      the test in hand had no processor.
    - ``failed``: the process as a whole cannot work; `text` is why.
    """

    what: Literal["imported", "test", "place", "done", "left", "complete", "end", "failed"]
    phase: Phase = "solo"
    gpu: Annotated[str, Meta(max_length=200)] = ""
    name: Annotated[str, Meta(max_length=200)] = ""
    names: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()
    state: Annotated[str, Meta(max_length=20)] = ""
    text: Text = ""
    seconds: Number = 0.0
    starved: Number = 0.0
    status: int | None = None
    figures: Annotated[dict[str, float], Meta(max_length=100)] = {}


_decoder = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """Return the line with its end."""
    return msgspec.json.encode(line) + b"\n"


def decode(data: bytes) -> Iterator[Line]:
    """Return the lines in the bytes; whatever is no line is left out."""
    for line in data.split(b"\n"):
        try:
            yield _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue


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
        return cast("Callable[..., None]", found(*argument) if argument else found)


#: Operations that a simulated device takes from the CPU, after an import of sympy by torch that takes seconds.
_SILICON = frozenset({"product_fp8", "product_int8", "fourier"})


def _entry(function: str, kind: str, full: float, small: float, finds: float, holds: str) -> Entry:
    return Entry(function.partition(":")[2], function, kind, full, small, finds, holds)


TABLE: tuple[Entry, ...] = (
    _entry("arithmetic:context", WRONG, 2.0, 0.6, 8, "a context is created, and a sum is right"),
    _entry("order:kernels_in_order", WRONG, 0.1, 0.1, 4, "a chain of operations runs once each, in order"),
    _entry("arithmetic:copies", WRONG, 2.0, 0.3, 6, "copied bytes arrive unchanged, both ways and on the GPU"),
    _entry("order:waits", WRONG, 0.2, 0.2, 5, "a wait for a stream, event or device ends after the work before it"),
    _entry("order:graphs", WRONG, 0.2, 0.2, 7, "a graph has each piece of work once, and each replay runs all of it"),
    _entry("arithmetic:memory", WRONG, 3.0, 0.2, 6, "memory holds what is written to it"),
    _entry("order:adjacent_order", WRONG, 0.1, 0.1, 3, "fills and copies of a stream run in order"),
    _entry("order:stream_waits", WRONG, 0.1, 0.1, 5, "a stream waits for an event of another stream"),
    _entry("order:events", CONTRACT, 0.1, 0.1, 3, "events measure time, and streams have their priority"),
    _entry("order:errors", CONTRACT, 0.05, 0.05, 4, "a wrong call returns its documented error"),
    _entry("order:fills", CONTRACT, 0.1, 0.1, 4, "a fill writes its range and nothing else"),
    _entry("order:pools", CONTRACT, 0.1, 0.1, 4, "a memory pool counts what is used, and returns it"),
    _entry(
        "order:memory_accounts",
        CONTRACT,
        0.2,
        0.1,
        3,
        "free memory follows allocations, and most of it can be allocated",
    ),
    _entry("order:launches", WRONG, 0.2, 0.2, 2, "a small kernel takes less than a millisecond, and has its effect"),
    _entry("arithmetic:integers", WRONG, 0.4, 0.4, 4, "products and sums of integers are exact"),
    _entry("order:asynchronous_copies", CONTRACT, 0.1, 0.1, 1, "a copy of pinned memory returns at once"),
    _entry("order:external_events", WRONG, 0.1, 0.1, 7, "a graph waits for an external event"),
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
    _entry("arithmetic:convolution", WRONG, 0.8, 0.1, 3, "a convolution of integers is exact"),
    _entry("arithmetic:attention", WRONG, 0.5, 0.1, 2, "attention over equal keys is the running mean"),
    _entry("arithmetic:fourier", WRONG, 0.5, 0.1, 2, "Fourier transforms of an impulse and a wave are the known ones"),
    _entry("arithmetic:repeated", WRONG, 0.2, 0.2, 4, "the same product has the same bits each time"),
    _entry("order:allocations", CONTRACT, 0.3, 0.3, 1, "each of many blocks keeps its value"),
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
