"""The inputs of a captured pass: one list, which the pass empties so that activations are freed after their use."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from suites import _torch_private_compiled as private
from suites.compiled import compiled_backward

ROW = "test_compiled_autograd::TestCompiledAutograd::"
NAMESPACE = "conformance_inputs"


@contextmanager
def looking_operator(
    look: Callable[[], None], device: torch.device
) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Yield an operator that copies its argument and calls `look` when it runs, invisibly to the compiler."""

    def run(x: torch.Tensor) -> torch.Tensor:
        look()
        return x.clone()

    with torch.library._scoped_library(NAMESPACE, "FRAGMENT") as library:
        library.define("look(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl("look", run, device.type.upper())
        library.impl("look", torch.empty_like, "Meta")
        yield lambda x: getattr(torch.ops, NAMESPACE).look(x)


@pytest.mark.covers(f"{ROW}test_dynamo_boxed")
def test_compiler_gets_the_tensors_of_a_pass_in_one_list(device: torch.device) -> None:
    """The compiler of a pass gets a graph with one placeholder for a list of all tensors.

    Sizes come separately, as numbers or as shapes of empty tensors. A forward has one placeholder per tensor.
    """
    kinds: list[list[str]] = []

    def kind(value: object) -> str:
        if isinstance(value, torch.Tensor):
            return "tensor" if value.numel() else "size"
        return "size" if isinstance(value, int | torch.SymInt) else type(value).__name__

    def note(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:  # noqa: ARG001
        found = [kind(node.meta["example_value"]) for node in graph.graph.find_nodes(op="placeholder")]
        kinds.append([each for each in found if each != "size"])
        return graph

    leaves = [torch.randn(size).to(device).requires_grad_() for size in ((1, 2), (2, 3), (3, 4))]
    with compiled_backward(backend=note) as recording:
        out = torch.compile(lambda a, b, c: (a @ b @ c).sum(), backend=note)(*leaves)
        out.backward()

    assert recording.captures == 1
    assert kinds == [["tensor"] * 3, ["list"]]
    assert None not in [leaf.grad for leaf in leaves]


@pytest.mark.covers(f"{ROW}test_inputs_aliasing_bytecode_attr_mutations")
def test_inputs_list_is_empty_after_a_compiled_pass(device: torch.device) -> None:
    """A compiled pass empties its input list, and still writes the gradient of a leaf that only the list refers to."""
    lengths: list[tuple[int, int]] = []

    def compile_graph(graph: torch.fx.GraphModule) -> private.Compiled:
        compiled = torch.compile(graph, backend="aot_eager")

        def run(inputs: list[torch.Tensor], *rest: Any) -> Any:
            before = len(inputs)
            result = compiled(inputs, *rest)
            lengths.append((before, len(inputs)))
            return result

        return run

    leaf = torch.randn(100).to(device).requires_grad_()
    with private.fresh_compiler(), private.enable(compile_graph):
        for _ in range(2):
            leaf.grad = None
            (leaf.exp() * 2).sum().backward()
            assert leaf.grad is not None
            torch.testing.assert_close(leaf.grad, 2 * leaf.detach().exp())

    assert len(lengths) == 2
    assert all(before > 0 and after == 0 for before, after in lengths)


class Wrapped(torch.Tensor):
    """A tensor subclass unknown to the compiler, which delegates to its inner tensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made: Wrapped = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Wrapped({self.inner})"  # the compiler's debug log (TORCH_LOGS) shows it

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        return function(*plain, **(kwargs or {}))


@pytest.mark.requires(cpp_compiler=True, inductor=True)
@pytest.mark.covers(
    f"{ROW}test_inputs_aliasing_bytecode_stack_restore",
    f"{ROW}test_logging_tensor_flaky",
)
def test_inputs_list_with_a_tensor_subclass_is_emptied_too(device: torch.device) -> None:
    """A graph that may empty its list does so, correctly, if the list has a tensor subclass that breaks the graph.

    This also holds after other graphs were compiled in the process.
    """

    def forward(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return ((inputs[0] + 1 + inputs[1]).cpu(),)

    leaf = torch.arange(1.0, 10.0, device=device).requires_grad_()
    with compiled_backward(backend="inductor"):
        leaf.sum().backward()
    graph = torch.fx.symbolic_trace(forward)
    private.steal(graph, ["inputs"])
    inputs = [torch.ones(1000, device=device), Wrapped(torch.full((1,), 5.0, device=device))]
    try:
        (out,) = torch.compile(graph, backend="inductor")(inputs)
    finally:
        private.reset_compiler()

    assert torch.equal(out, torch.full((1000,), 7.0))
    assert inputs == []
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.ones_like(leaf))


@pytest.mark.requires(cpp_compiler=True)
@pytest.mark.parametrize(
    "backend",
    ["aot_eager", pytest.param("inductor", marks=[pytest.mark.extended, pytest.mark.requires(inductor=True)])],
)
@pytest.mark.covers(f"{ROW}test_free_activation_memory")
def test_activation_is_freed_after_its_use(device: torch.device, backend: str) -> None:
    """In a captured pass, a saved activation is freed once its function has run, and not at the end of the pass.

    A later operator finds the memory freed. As controls, an earlier operator finds it allocated, and so does the later
    one if the graph is retained.
    """
    gone: list[bool] = []
    watch: list[private.Watch] = []

    with looking_operator(lambda: gone.append(watch[-1].gone()), device) as look:

        class Looks(torch.autograd.Function):
            @staticmethod
            def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
                return x.clone()

            @staticmethod
            def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
                return look(gradients[0])

        def forward(leaf: torch.Tensor) -> torch.Tensor:
            activation = Looks.apply(leaf).exp()
            watch.append(private.Watch(activation))
            loss: torch.Tensor = Looks.apply(activation).sum()
            return loss

        leaf = torch.randn(10_000).to(device).requires_grad_()
        with compiled_backward(backend=backend) as recording:
            for _ in range(2):
                forward(leaf).backward()
        first, second, third, fourth = gone
        assert recording.captures >= 1
        assert (first, third) == (False, False)
        assert (second, fourth) == (True, True)

        with compiled_backward(backend=backend):
            loss = forward(leaf)
            loss.backward(retain_graph=True)
        assert gone[4:] == [False, False]


@pytest.mark.requires(device="cuda", triton=True)
@pytest.mark.covers(f"{ROW}test_free_activation_memory")
def test_memory_allocated_goes_down_within_a_captured_pass(device: torch.device) -> None:
    """With inductor on a GPU, less memory is allocated late in a pass, by the size of the activations already used.

    With a retained graph, the memory stays allocated.
    """
    size = 1 << 20
    readings: list[int] = []

    with looking_operator(lambda: readings.append(torch.cuda.memory_allocated(device)), device) as look:

        class Looks(torch.autograd.Function):
            @staticmethod
            def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
                return x.clone()

            @staticmethod
            def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
                return look(gradients[0])

        def peak_behind(*, keep: bool) -> int:
            """Return the additional memory allocated when the operator runs, relative to the end of the pass."""
            leaf = torch.ones(1, device=device, requires_grad=True)
            loss = Looks.apply(leaf).expand(size).exp().sin().exp().sum()
            loss.backward(retain_graph=keep)
            torch.cuda.synchronize(device)
            reading = readings[-1]
            del loss
            gc.collect()
            return reading - torch.cuda.memory_allocated(device)

        with compiled_backward(backend="inductor") as recording:
            peak_behind(keep=False)
            freed, kept = peak_behind(keep=False), peak_behind(keep=True)

    assert recording.captures >= 1
    assert kept >= 2 * size * 4
    assert freed < size * 4


@pytest.mark.requires(device="cuda", triton=True)
@pytest.mark.covers(f"{ROW}test_free_activation_memory_subclass")
def test_memory_allocated_goes_down_with_tensor_subclass_activations(device: torch.device) -> None:
    """A graph may empty a list with a nested tensor, a tensor subclass.

    The plain tensor in the list is freed before a later operator runs.
    """
    size = 100_000
    readings: list[int] = []
    with looking_operator(lambda: readings.append(torch.cuda.memory_allocated(device)), torch.device("cpu")) as look:

        def forward(inputs: list[torch.Tensor]) -> torch.Tensor:
            _, plain = inputs
            return look(plain.cpu())

        graph = torch.fx.symbolic_trace(forward)
        private.steal(graph, ["inputs"])
        before = torch.cuda.memory_allocated(device)
        parts = [torch.ones(1, size, device=device) for _ in range(2)]
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged, device=device)
        del parts
        inputs = [nested, torch.full((1, size), 3.0, device=device)]
        del nested
        full = torch.cuda.memory_allocated(device) - before
        assert full >= 3 * size * 4
        try:
            with private.compiler_warnings_ignored():
                out = torch.compile(graph)(inputs)
        finally:
            private.reset_compiler()

    assert inputs == []
    assert torch.equal(out, torch.full((1, size), 3.0))
    assert readings
    assert readings[-1] - before <= full - size * 4
