"""Modes, tensor subclasses and higher-order operators in a captured pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from suites import _torch_private_compiled as private
from suites.compiled import compare, compiled_backward

ROW = "test_compiled_autograd::TestCompiledAutograd::"


class Scales(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.ones_like(x) * gradients[0]


@pytest.mark.covers(f"{ROW}test_torch_function_mode")
def test_torchfunctionmode_sees_the_call_of_backward(device: torch.device) -> None:
    """A TorchFunctionMode sees the call of `backward` that is captured, and does not affect it.

    The mode need not see the calls of a custom backward, because the compiled pass was traced before.
    """
    called: list[str] = []

    class Notes(BaseTorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(getattr(function, "__name__", str(function)))
            return super().__torch_function__(function, types, args, kwargs)

    x = torch.randn(2, 2).to(device).requires_grad_()
    with compiled_backward(backend="eager", fullgraph=False) as recording, Notes():
        loss = Scales.apply(x * 3)
        called.append("now")
        loss.backward()

    assert recording.captures == 1
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full_like(x, 3))
    assert "backward" in called[called.index("now") :]
    assert "mul" in called[: called.index("now")]


@pytest.mark.covers(f"{ROW}test_torch_dispatch_mode")
def test_torchdispatchmode_sees_a_captured_pass(device: torch.device) -> None:
    """A TorchDispatchMode sees the operators of a captured pass."""
    called: list[str] = []

    class Notes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    x = torch.randn(2, 2).to(device).requires_grad_()
    with compiled_backward(backend="eager", fullgraph=False) as recording, Notes():
        loss = Scales.apply(x * 3)
        called.append("now")
        loss.backward()

    assert recording.captures == 1
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full_like(x, 3))
    assert {"ones_like", "mul"} <= set(called[called.index("now") :])


class Pair(torch.Tensor):
    """Two tensors of one shape, to which every operator is applied in parallel."""

    a: torch.Tensor
    b: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    @torch.compiler.disable
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Pair:
        made: Pair = torch.Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )
        made.a, made.b = a, b
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pair({self.a!r}, {self.b!r})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], _: Any, __: Any, ___: Any) -> Pair:
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils import _pytree as tree

        kwargs = kwargs or {}
        sides = []
        for side in ("a", "b"):
            plain, named = tree.tree_map_only(cls, lambda pair, side=side: getattr(pair, side), (args, kwargs))
            sides.append(function(*plain, **named))
        return tree.tree_map(lambda a, b: cls(a, b) if isinstance(a, torch.Tensor) else a, *sides)


@pytest.mark.covers(f"{ROW}test_tensor_subclass_basic")
def test_tensor_subclass_gradients(device: torch.device) -> None:
    """A compiled forward over a tensor subclass has its backward captured, with a gradient of that subclass."""

    def work() -> Iterator[object]:
        a, b = torch.randn(3).to(device), torch.randn(3).to(device)
        x = Pair(a, b).requires_grad_()
        out = torch.compile(lambda pair: (pair * pair).exp(), backend="aot_eager")(x)
        out.sum().backward()
        assert isinstance(x.grad, Pair)
        yield [x.grad.a, x.grad.b]

    assert compare(work, backend="aot_eager", fullgraph=False).captures == 1


Operator = Callable[[torch.Tensor], torch.Tensor]


def _cond() -> Operator:
    return lambda x: torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 3, (x,))


def _nested_region() -> Operator:
    region: Operator = torch.compiler.nested_compile_region(lambda x: torch.sin(x) * 2)
    return lambda x: region(x) + region(x + 1)


def _map() -> Operator:
    over_rows = private.higher_order("map")
    return lambda x: over_rows(lambda row: row * 2 + 1, x)


OPERATORS = {"cond": _cond, "nested_region": _nested_region, "map": _map}


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.covers("test_compiled_autograd::TestCompiledAutogradOpInfo::test_hops_in_bwd")
def test_cond_map_and_compiled_region_in_a_backward(device: torch.device, kind: str) -> None:
    """A custom backward may call `cond`, `map` and a compiled region; the captured pass is one correct graph."""
    operator = OPERATORS[kind]()

    class Calls(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return operator(gradients[0].contiguous())

    def work() -> Iterator[object]:
        for sign in (1.0, -1.0):
            x = torch.ones(4, device=device, requires_grad=True)
            (Calls.apply(x) * sign * torch.arange(1.0, 5.0, device=device)).sum().backward()
            yield x.grad

    assert compare(work, backend="eager").captures == 1


@pytest.mark.xfail(
    raises=RuntimeError,
    reason="a branch in a compiled forward cannot be captured with its pass: the compiler does not trace the "
    "function that the branch was made (https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0008.html)",
)
def test_cond_in_a_compiled_forward(device: torch.device) -> None:
    """A forward compiled with a data-dependent branch has its pass captured, with the branch that was taken."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))

    def work() -> Iterator[object]:
        for sign in (1.0, -1.0):
            x = torch.full((4,), sign, device=device, requires_grad=True)
            torch.compile(forward, backend="aot_eager")(x).sum().backward()
            yield x.grad

    compare(work, backend="eager")
