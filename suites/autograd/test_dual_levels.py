"""Levels of forward mode: numbers, refused calls, and the rules that the first dual number imports."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as fwAD  # noqa: N812 (the alias that the documentation uses)
import torch.nn.functional as F  # noqa: N812 (the alias that the documentation uses)
from torch.func import jvp

# Modules that the first dual number of a process imports.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is")


@pytest.fixture
def x(device: torch.device) -> torch.Tensor:
    return torch.tensor([1.0, 2.0], device=device)


@pytest.fixture
def v(device: torch.device) -> torch.Tensor:
    return torch.tensor([3.0, 4.0], device=device)


def test_enter_dual_level_and_exit_dual_level_agree_on_the_level(x: torch.Tensor, v: torch.Tensor) -> None:
    """The only level is 0, which `enter_dual_level` and the block of `dual_level` return; it can be entered again.

    A second level within it is refused, and so is the end of a level other than the last.
    """
    for _ in range(2):
        assert fwAD.enter_dual_level() == 0
        with pytest.raises(RuntimeError, match="Nested forward mode AD is not supported"):
            fwAD.enter_dual_level()
        with pytest.raises(RuntimeError, match="was not the last one that was created"):
            fwAD.exit_dual_level(level=1)
        dual = fwAD.make_dual(x, v)
        fwAD.exit_dual_level(level=0)
        assert fwAD.unpack_dual(dual).tangent is None
        with pytest.raises(RuntimeError, match="level"):
            fwAD.exit_dual_level()
    with fwAD.dual_level() as level:
        assert level == 0


def test_make_dual_and_unpack_dual_take_the_current_level(x: torch.Tensor, v: torch.Tensor) -> None:
    """Without `level=`, `make_dual` and `unpack_dual` use the current level. Another level is refused.

    A negative level has no tangents. Outside of a level, a tensor is its own primal, without a tangent.
    """
    with fwAD.dual_level() as level:
        dual = fwAD.make_dual(x, v, level=level)
        primal, tangent = fwAD.unpack_dual(dual, level=level)
        assert torch.equal(primal, x)
        assert tangent is not None
        assert torch.equal(tangent, v)
        assert fwAD.unpack_dual(dual, level=-1).tangent is None
        with pytest.raises(RuntimeError, match="level"):
            fwAD.make_dual(x, v, level=level + 1)
        with pytest.raises(RuntimeError, match="level"):
            fwAD.unpack_dual(dual, level=level + 1)
    assert fwAD.unpack_dual(dual) == (dual, None)


def test_make_dual_refuses_whole_numbers(x: torch.Tensor, v: torch.Tensor) -> None:
    """A dual number cannot have integers as its primal or tangent; complex numbers are accepted."""
    with fwAD.dual_level():
        with pytest.raises(ValueError, match="Expected primal to be floating point or complex"):
            fwAD.make_dual(x.long(), v)
        with pytest.raises(ValueError, match="Expected tangent to be floating point or complex"):
            fwAD.make_dual(x, v.long())
        whole = torch.complex(x, v)
        found = fwAD.unpack_dual(fwAD.make_dual(whole, whole * 2) * 2).tangent
        assert found is not None
        assert torch.equal(found, whole * 4)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_make_dual_goes_through_a_backward_pass(name: str, device: torch.device) -> None:
    """Forward mode over a backward pass gives the Hessian times the tangent, like two backward passes.

    The derivatives of these functions have no formula for forward mode: `make_dual` loads their decompositions.
    """
    x = torch.tensor([0.5, 1.5, -0.25], device=device, dtype=torch.float64)
    v = torch.tensor([1.0, -2.0, 0.5], device=device, dtype=torch.float64)

    def slope(at: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad((FUNCTIONS[name](at) ** 3).sum(), at, create_graph=True)
        return found

    with fwAD.dual_level():
        found = fwAD.unpack_dual(slope(fwAD.make_dual(x.clone().requires_grad_(), v))).tangent
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad((slope(leaf) * v).sum(), leaf)
    assert found is not None
    torch.testing.assert_close(found.detach(), wanted)


@pytest.mark.requires(torch=">=2.13")
def test_func_jvp_works_under_inference_mode(x: torch.Tensor, v: torch.Tensor) -> None:
    """Inference mode disables forward mode for dual numbers, but not for `torch.func.jvp`.

    It is disabled again afterwards.
    """

    def tangent() -> torch.Tensor | None:
        with fwAD.dual_level():
            return fwAD.unpack_dual(fwAD.make_dual(x, v) * 2).tangent

    with torch.inference_mode():
        assert tangent() is None
        _, found = jvp(torch.square, (x,), (v,))
        assert tangent() is None
    assert found.tolist() == [6.0, 16.0]
    assert tangent() is not None
