"""Backward passes captured by compiled autograd, run beside those of the engine, and counted.

A *capture* is a backward pass that was traced, because none like it had been seen; a *compile* is a graph that the back
end was given while captured passes ran, one a capture and dynamic shape unless something breaks the graph.

Whoever comes here gets a compiler that has seen nothing, and leaves one behind that has seen nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _torch_private_compiled as private

#: Why cases that come here are marked with `keeps`: seen with torch 2.11 to 2.13, after each reset and collection.
KEEPS = "each capture keeps its graph and some fake tensors for good, as each graph compiled for any size does"
#: How much at most: twice to three times what was seen in a repetition (213 tensors; 1.7 MiB of malloc memory, 8 MiB of
#: address space, 49,000 blocks of Python's allocator; 4.5 KiB of a device, by what a capture is traced with and by
#: checks for NaN). Threads, descriptors and all else does not grow.
KEPT = {"tensors": 600, "host": "20MiB", "device": "16KiB"}

#: The row of suites that PyTorch runs again under compiled autograd, besides those of autograd itself.
WRAPPED_SUITES = (
    "test_compiled_autograd::TestNestedCheckpoint / HigherOrderOpTests / FuncTorchHigherOrderOpTests / "
    "ActivationCheckpointingTests / TestDTensorCompile, each …WithCompiledAutograd::*"
)

#: What both runs of a comparison begin with.
SEED = 4711


@dataclass(frozen=True)
class Counts:
    """How many backward passes were captured, and how many graphs the back end compiled of them."""

    captures: int
    compiles: int


@dataclass
class Recording:
    """What happens in a `compiled_backward` block, while it happens and afterwards."""

    #: The captured passes, in order, before anything compiled them.
    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    #: What the back end was given, in order: whole passes, or pieces of them where a graph was broken.
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
    """How far a compiled result may be from the eager one, and why it is not the same."""

    relative: float
    absolute: float
    because: str


EXACTLY = Within(0.0, 0.0, "the same operations run in the same order")


@dataclass
class _Given:
    """A function given to torch, which keeps it for good: `compiled_autograd/test_contexts.py` has a case for that.

    `function` is taken back in the end. Otherwise torch would keep graphs, and tensors on the device that they were
    traced with, and a leak of the case itself would not be seen among them.
    """

    function: Callable[..., Any] | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert self.function is not None, "torch called back after a reset of the compiler"
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

    private.reset_compiler()
    try:
        with private.enable(give(compile_graph)):
            yield recording
    finally:
        private.reset_compiler()
        for each in given:
            each.function = None


@contextmanager
def compiling_backward() -> Iterator[Callable[[], int]]:
    """What is given to `torch.compile` in the block has its backward passes captured too: the documented switch.

    Yields what tells how many were captured so far. The compiler is reset before and after.
    """
    private.reset_compiler()
    before = captured()
    try:
        with private.compiler_unheard(), private.config(compiled_autograd=True):
            yield lambda: captured() - before
    finally:
        private.reset_compiler()


def captured() -> int:
    """How many backward passes this process has captured. Others may reset it: take differences."""
    return private.counter("compiled_autograd", "captures")


def compare(
    work: Callable[[], Iterable[object]],
    *,
    backend: str | Callable[..., Any] = "aot_eager",
    dynamic: bool | None = None,
    fullgraph: bool = True,
    within: Within = EXACTLY,
) -> Counts:
    """Run `work` with the engine and with compiled autograd, from the same seed; what it yields must agree.

    `work` makes all that it works on, and yields tensors and plain values: copied when yielded, so that what is changed
    in place later is compared as it was. Returns what was captured and compiled in the second run, which must be
    something. Raises AssertionError, with the place, where the two differ.
    """
    with private.compiler_unheard():
        expected = run(work)
    with compiled_backward(backend, dynamic, fullgraph=fullgraph) as recording:
        actual = run(work)
    assert recording.captures > 0, "no backward pass was captured"
    assert_same(expected, actual, within)
    return recording.counts


def run(work: Callable[[], Iterable[object]]) -> list[object]:
    """What `work` yields, copied, from the seed that a comparison begins with; there must be something."""
    torch.manual_seed(SEED)
    values = [copied(value) for value in work()]
    assert values, "nothing was yielded, so nothing would be compared"
    return values


def copied(value: object) -> object:
    """The value as it is now: tensors without their history, and what lists and tuples hold, are copied."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return [copied(one) for one in value]
    return value


def assert_same(expected: Sequence[object], actual: Sequence[object], within: Within = EXACTLY) -> None:
    """That two lists of what was yielded agree: tensors in type, device, layout, shape and values, others by `==`."""
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
