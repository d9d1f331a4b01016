"""Backward passes captured by compiled autograd, compared with the engine's and counted.

A *capture* is the trace of a backward pass for which no equivalent one was cached; a *compile* is a graph passed to the
backend while captured passes ran, one per capture and dynamic shape unless something breaks the graph.

Every user of this module starts with a reset compiler and leaves a reset compiler behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from . import _torch_private_compiled as private

#: The reason for the `keeps` marker of cases that use this module: seen with torch 2.11 to 2.13, after each reset and
#: collection.
KEEPS = "each capture keeps its graph and some fake tensors permanently, as does each graph compiled for dynamic sizes"
#: Upper bounds: two to three times the maximum seen per repetition (213 tensors; 1.7 MiB of malloc memory, 8 MiB of
#: address space, 49,000 blocks of Python's allocator; 4.5 KiB of a device, for the inputs of captures and for NaN
#: checks). Threads, descriptors and everything else do not grow.
KEPT = {"tensors": 600, "host": "20MiB", "device": "16KiB"}

#: The inventory row of the suites that PyTorch also runs under compiled autograd, other than those of autograd itself.
WRAPPED_SUITES = (
    "test_compiled_autograd::TestNestedCheckpoint / HigherOrderOpTests / FuncTorchHigherOrderOpTests / "
    "ActivationCheckpointingTests / TestDTensorCompile, each …WithCompiledAutograd::*"
)

#: torch's compiler keeps the random numbers of an operator that runs again on these devices only
#: (torch/_prims/rng_prims.py).
REPLAYS = pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"device": "cuda"}, {"device": "xpu"}])

#: The seed of both runs of a comparison.
SEED = 4711


@dataclass(frozen=True)
class Counts:
    """The number of captured backward passes, and of graphs that the backend compiled for them."""

    captures: int
    compiles: int


@dataclass
class Recording:
    """The record of a `compiled_backward` block, during the block and afterwards."""

    #: The captured passes, in order, before compilation.
    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    #: The graphs passed to the backend, in order: whole passes, or parts of them after graph breaks.
    pieces: list[torch.fx.GraphModule] = field(default_factory=list)

    @property
    def counts(self) -> Counts:
        return Counts(len(self.graphs), len(self.pieces))

    @property
    def captures(self) -> int:
        return len(self.graphs)

    @property
    def compiles(self) -> int:
        return len(self.pieces)


@dataclass(frozen=True)
class Within:
    """The tolerance of a compiled result relative to the eager one, and the reason for it."""

    relative: float
    absolute: float
    because: str


EXACTLY = Within(0.0, 0.0, "the same operations run in the same order")


@dataclass
class _Given:
    """A function passed to torch, which keeps it permanently: `compiled_autograd/test_contexts.py` has a case for that.

    `function` is removed at the end. Otherwise torch would keep graphs, and the device tensors with which they were
    traced, and this would hide a leak of the case itself.
    """

    function: Callable[..., Any] | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert self.function is not None, "torch called the function after a reset of the compiler"
        return self.function(*args, **kwargs)


@contextmanager
def compiled_backward(
    backend: str | Callable[..., Any] = "aot_eager", dynamic: bool | None = None, *, fullgraph: bool = True
) -> Iterator[Recording]:
    """Capture every backward pass in the block, of `backward` and `autograd.grad`, and run it compiled.

    `backend`, `dynamic` and `fullgraph` are those of `torch.compile`. The compiler is reset before and after.
    """
    recording = Recording()
    given: list[_Given] = []
    inner = private.back_end(backend) if isinstance(backend, str) else backend

    def compile_piece(piece: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
        recording.pieces.append(piece)
        return inner(piece, examples)

    def compile_graph(graph: torch.fx.GraphModule) -> Callable[..., Any]:
        recording.graphs.append(graph)
        return give(torch.compile(graph, backend=compile_piece, dynamic=dynamic, fullgraph=fullgraph))

    def give(function: Callable[..., Any]) -> _Given:
        given.append(_Given(function))
        return given[-1]

    try:
        with private.fresh_compiler(), private.enable(give(compile_graph)):
            yield recording
    finally:
        for each in given:
            each.function = None


@contextmanager
def compiling_backward() -> Iterator[Callable[[], int]]:
    """Also capture the backward passes of functions that `torch.compile` compiles in the block.

    This uses the documented switch.

    Yield a function that returns the number of captures so far. The compiler is reset before and after.
    """
    with private.fresh_compiler(), private.config(compiled_autograd=True):
        before = captured()
        yield lambda: captured() - before


def captured() -> int:
    """Return the number of captures in this process. Other code may reset it, so use differences."""
    return private.counter("compiled_autograd", "captures")


def compare(
    work: Callable[[], Iterable[object]],
    *,
    backend: str | Callable[..., Any] = "aot_eager",
    dynamic: bool | None = None,
    fullgraph: bool = True,
    within: Within = EXACTLY,
) -> Counts:
    """Run `work` with the engine and with compiled autograd, from the same seed; the yielded values must agree.

    `work` creates all of its inputs, and yields tensors and plain values, which are copied when yielded, so that later
    in-place changes do not matter. Return the counts of the second run, which must capture something. Raise
    AssertionError with the position if the values differ.
    """
    with private.compiler_warnings_ignored():
        expected = run(work)
    with compiled_backward(backend, dynamic, fullgraph=fullgraph) as recording:
        actual = run(work)
    assert recording.captures > 0, "no backward pass was captured"
    assert_same(expected, actual, within)
    return recording.counts


def run(work: Callable[[], Iterable[object]]) -> list[object]:
    """Return copies of the values that `work` yields from the comparison's seed; there must be at least one."""
    torch.manual_seed(SEED)
    values = [copied(value) for value in work()]
    assert values, "nothing was yielded, so there is nothing to compare"
    return values


def copied(value: object) -> object:
    """Return a copy of the value: tensors without their graph, and the contents of lists and tuples."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return [copied(one) for one in value]
    return value


def assert_same(expected: Sequence[object], actual: Sequence[object], within: Within = EXACTLY) -> None:
    """Check that yielded values agree: tensors in dtype, device, layout, shape and values, others by `==`."""
    assert len(actual) == len(expected), (
        f"{len(actual)} values were yielded under compiled autograd, not {len(expected)}"
    )
    for index, (wanted, found) in enumerate(zip(expected, actual, strict=True)):
        if isinstance(wanted, torch.Tensor):
            assert isinstance(found, torch.Tensor), f"value {index} is {found!r} under compiled autograd, not a tensor"
            torch.testing.assert_close(
                found,
                wanted,
                rtol=within.relative,
                atol=within.absolute,
                equal_nan=True,
                msg=lambda message, index=index: f"value {index} under compiled autograd: {message}",  # type: ignore[misc]
            )
        elif isinstance(wanted, list) and isinstance(found, list):
            assert_same(wanted, found, within)
        else:
            assert found == wanted, f"value {index} is {found!r} under compiled autograd, not {wanted!r}"
