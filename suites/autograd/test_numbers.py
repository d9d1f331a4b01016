"""Numerical checks: first- and second-order gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function, gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

from .engines import LIST, Engine, Known, each, waived
from .functions import apply

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


UNDEFINED = Known("undefined gradients, which gradcheck also passes, are added to defined ones", LIST, TypeError)


def made(device: torch.device, *shape: int) -> torch.Tensor:
    """Return deterministic values of a shape on the device, with none near zero or near another."""
    count = int(torch.tensor(shape).prod())
    values = torch.linspace(0.3, 1.7, count, dtype=torch.float64)
    mixed = values[torch.arange(count) * 7 % count] if count % 7 else values
    return mixed.reshape(shape).to(device, copy=True).requires_grad_()


FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "matmul": (torch.matmul, ((2, 3), (3, 2))),
    "linear": (nn.functional.linear, ((2, 3), (2, 3), (2,))),
    "layer_norm": (lambda x, w: nn.functional.layer_norm(x, (3,), w), ((2, 3), (3,))),
    "softmax": (lambda x: x.softmax(-1), ((2, 3),)),
    "convolution": (nn.functional.conv1d, ((1, 2, 4), (2, 2, 3))),
    "division_by_broadcast": (torch.div, ((2, 3), (3,))),
    "logsumexp": (lambda x: x.logsumexp(0), ((3, 2),)),
    "inverse": (lambda x: torch.linalg.inv(x + 3 * torch.eye(2, dtype=x.dtype, device=x.device)), ((2, 2),)),
    "gelu": (nn.functional.gelu, ((4,),)),
}


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck_gradients_are_those_by_differences(device: torch.device, name: str, engine: Engine) -> None:
    """Gradients match finite differences, entry by entry of the Jacobian, in double precision."""
    function, shapes = FUNCTIONS[name]

    assert gradcheck(function, tuple(made(device, *shape) for shape in shapes))


@pytest.mark.parametrize("name", ["matmul", "softmax", "division_by_broadcast"])
def test_gradcheck_gradients_of_strided_inputs(device: torch.device, name: str, engine: Engine) -> None:
    """Gradients of transposed inputs match finite differences too."""
    function, shapes = FUNCTIONS[name]
    inputs = [
        made(device, *reversed(shape)).detach().permute(*reversed(range(len(shape)))).requires_grad_()
        for shape in shapes
    ]

    assert not inputs[0].is_contiguous()
    assert gradcheck(function, tuple(inputs))


@pytest.mark.covers(ROW)
@each("name", ["matmul", "layer_norm", "gelu"], {"matmul": UNDEFINED})
def test_gradgradcheck_second_derivatives_are_those_by_differences(
    device: torch.device, name: str, engine: Engine
) -> None:
    """Second-order gradients match finite differences of gradients."""
    function, shapes = FUNCTIONS[name]

    assert gradgradcheck(function, tuple(made(device, *shape) for shape in shapes))


@waived(UNDEFINED)
def test_gradcheck_complex_gradients_are_those_by_differences(device: torch.device, engine: Engine) -> None:
    """Complex gradients, in the conjugate convention, match finite differences along both axes."""
    z = torch.tensor([0.5 + 1.0j, -1.0 + 0.25j], dtype=torch.complex128, device=device, requires_grad=True)

    assert gradcheck(lambda given: (given * given.conj() + given.exp()) * 1j, (z,))


def test_gradcheck_finds_a_wrong_gradient(device: torch.device, engine: Engine) -> None:
    """A backward that is wrong in one entry makes `gradcheck` raise with both Jacobians.

    With `raise_exception=False` it returns False.
    """

    class OffByOne(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] * gradients[0].new_tensor([3.0, 3.1])

    x = torch.tensor([1.0, 2.0], dtype=torch.float64, device=device, requires_grad=True)

    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradcheck(lambda given: apply(OffByOne, given), (x,))
    assert not gradcheck(lambda given: apply(OffByOne, given), (x,), raise_exception=False)
