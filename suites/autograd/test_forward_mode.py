"""Forward-mode autograd with dual numbers, compared with the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwAD  # noqa: N812 (the alias that the documentation uses)

from .engines import LIST, Engine, Known, waived
from .functions import apply

# Modules that the first dual number of a process imports.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is")

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


def double(device: torch.device, *values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "product": lambda x: x * x.flip(0),
    "matrix": lambda x: (x.outer(x) @ x).sin(),
    "reduction": lambda x: x.exp().sum() * x,
    "softmax": lambda x: x.softmax(0),
    "cumulative": lambda x: x.cumsum(0).cumprod(0),
    "norm": lambda x: x / x.norm(),
    "view": lambda x: x.view(1, 3).t().expand(3, 2),
    "in_place": lambda x: x.clone().mul_(x).add_(3).sin_(),
    "indexing": lambda x: x[[2, 0, 0]] * x[:1],
    "selection": lambda x: torch.where(x > 1, x * x, x.exp()),
}


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_make_dual_forward_and_backward_agree(name: str, engine: Engine, device: torch.device) -> None:
    """For a tangent v and an initial gradient u, u · (J v) of forward mode equals (u J) · v of the backward pass.

    The two agree up to rounding.
    """
    function = FUNCTIONS[name]
    x = double(device, 0.5, 1.5, -0.25)
    v = double(device, 1.0, -2.0, 0.5)

    with fwAD.dual_level():
        tangent = fwAD.unpack_dual(function(fwAD.make_dual(x, v))).tangent
    assert tangent is not None
    leaf = x.clone().requires_grad_()
    result = function(leaf)
    u = torch.linspace(-1, 2, result.numel(), dtype=torch.float64, device=device).reshape(result.shape)
    result.backward(u)

    assert leaf.grad is not None
    torch.testing.assert_close((u * tangent).sum(), (leaf.grad * v).sum(), rtol=1e-12, atol=1e-12)


def test_make_dual_tangent_lives_as_long_as_its_dual_level(engine: Engine, device: torch.device) -> None:
    """A tangent exists only within its dual level.

    `make_dual` raises outside, and the tensor has no tangent afterwards. A tangent whose shape differs from its
    tensor's raises.
    """
    x, v = double(device, 1.0, 2.0), double(device, 3.0, 4.0)

    with pytest.raises(RuntimeError, match=r"no level exists|not possible to create"):
        fwAD.make_dual(x, v)
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, v)
        kept = dual * 2
        tangent = fwAD.unpack_dual(kept).tangent
        assert tangent is not None
        assert tangent.tolist() == [6.0, 8.0]
        assert fwAD.unpack_dual(x * 2).tangent is None
        with pytest.raises(RuntimeError, match=r"(?i)size|shape"):
            fwAD.make_dual(x, double(device, 1.0, 2.0, 3.0))
    with fwAD.dual_level():
        assert fwAD.unpack_dual(kept).tangent is None
    engine.still_works()


@waived(Known("the backward node of a tangent cannot be captured", LIST, NotImplementedError))
def test_make_dual_tangent_can_require_grad(engine: Engine, device: torch.device) -> None:
    """The backward pass differentiates through forward mode.

    The result is the Hessian-vector product and the tangent's gradient.
    """
    x = double(device, 1.0, 2.0).requires_grad_()
    v = double(device, 3.0, -1.0).requires_grad_()

    with fwAD.dual_level():
        dual = fwAD.make_dual(x, v)
        along = fwAD.unpack_dual((dual**3).sum()).tangent
        assert along is not None
        of_primal, of_tangent = torch.autograd.grad(along, [x, v])

    torch.testing.assert_close(of_primal, 6 * x.detach() * v.detach())
    torch.testing.assert_close(of_tangent, 3 * x.detach() ** 2)


def test_function_jvp_is_its_own_rule(engine: Engine, device: torch.device) -> None:
    """Forward mode calls the `jvp` of a custom function, and the backward pass its `backward`.

    `jvp` receives None for inputs without a tangent.
    """

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            ctx.factor = factor
            return x**3 * factor

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * ctx.factor * gradients[0], None

        @staticmethod
        def jvp(ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            assert tangents[1] is None
            return 3 * x**2 * ctx.factor * tangents[0]

    x, v = double(device, 1.0, 2.0), double(device, 1.0, 10.0)

    with fwAD.dual_level():
        tangent = fwAD.unpack_dual(apply(Cube, fwAD.make_dual(x, v), 2.0)).tangent
    leaf = x.clone().requires_grad_()
    apply(Cube, leaf, 2.0).backward(v)

    assert tangent is not None
    assert leaf.grad is not None
    assert tangent.tolist() == [6.0, 240.0]
    assert torch.equal(leaf.grad, tangent)


def test_function_without_jvp_raises_in_forward_mode(engine: Engine, device: torch.device) -> None:
    """Forward mode through a custom function without `jvp` raises and names the missing method."""

    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] * 2

    x, v = double(device, 1.0), double(device, 1.0)

    with fwAD.dual_level(), pytest.raises((RuntimeError, NotImplementedError), match="jvp"):
        apply(Plain, fwAD.make_dual(x, v))
    leaf = x.requires_grad_()
    apply(Plain, leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.item() == 2.0


def test_make_dual_view_changed_in_place_changes_the_tangent_of_its_base(engine: Engine, device: torch.device) -> None:
    """An in-place write to a view of a dual tensor updates the tangent of its base, as in the backward pass."""
    x, v = double(device, 1.0, 2.0, 3.0), double(device, 1.0, 1.0, 1.0)

    def change(given: torch.Tensor) -> torch.Tensor:
        base = given * 1
        base[1:].mul_(base[:1] * 10)
        return base

    with fwAD.dual_level():
        tangent = fwAD.unpack_dual(change(fwAD.make_dual(x, v))).tangent
    leaf = x.clone().requires_grad_()
    change(leaf).sum().backward()

    assert tangent is not None
    assert leaf.grad is not None
    assert tangent.tolist() == [1.0, 30.0, 40.0]
    assert (leaf.grad * v).sum().item() == tangent.sum().item()
