"""Shapes, dtypes, devices and strides of gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .engines import Engine

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_grad_has_the_dtype_of_its_leaf(dtype: torch.dtype, engine: Engine, device: torch.device) -> None:
    """A gradient has the dtype, shape and device of its leaf, even if the result was computed in another dtype."""
    x = torch.tensor([1.0, 2.0], dtype=dtype, device=device, requires_grad=True)
    other = torch.tensor([3.0, 4.0], dtype=torch.float64, device=device, requires_grad=True)

    result = x * other
    (result.to(torch.float32) * 2).sum().backward()

    assert result.dtype == torch.float64
    assert x.grad is not None
    assert other.grad is not None
    assert (x.grad.dtype, x.grad.device, x.grad.shape) == (dtype, device, x.shape)
    assert other.grad.dtype == torch.float64
    assert x.grad.tolist() == [6.0, 8.0]
    assert other.grad.tolist() == [2.0, 4.0]


BROADCASTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "a_number": ((), (2, 3)),
    "a_row": ((3,), (2, 3)),
    "a_column": ((2, 1), (2, 3)),
    "both": ((2, 1), (1, 3)),
    "more_dimensions": ((3,), (4, 2, 3)),
    "one_element": ((1, 1, 1), (2, 3)),
    "nothing": ((0, 3), (1, 3)),
}


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("shapes", BROADCASTS)
def test_broadcast_gradients_are_summed(shapes: str, engine: Engine, device: torch.device) -> None:
    """A broadcast operand gets a gradient of its shape, summed over its uses, as with an explicit expansion."""
    mine, others = BROADCASTS[shapes]
    x = torch.arange(1.0, 1 + torch.Size(mine).numel(), device=device).reshape(mine).requires_grad_()
    y = torch.arange(2.0, 2 + torch.Size(others).numel(), device=device).reshape(others).requires_grad_()
    whole = torch.broadcast_shapes(mine, others)
    start = torch.arange(1.0, 1 + whole.numel(), device=device).reshape(whole)

    (x * y).backward(start)

    assert x.grad is not None
    assert y.grad is not None
    assert torch.equal(x.grad, (start * y.detach()).sum_to_size(mine))
    assert torch.equal(y.grad, (start * x.detach()).sum_to_size(others))


EXPANSIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expand": lambda x: x.expand(4, 2, 3),
    "expand_a_dimension": lambda x: x[:, :1].expand(2, 5),
    "repeat": lambda x: x.repeat(2, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=0),
    "tile": lambda x: x.tile(1, 2),
    "stack_of_itself": lambda x: torch.stack([x, x, x]),
    "cat_with_itself": lambda x: torch.cat([x, x[:1]]),
}


@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_expand_and_repeat_gradients_are_summed(expansion: str, engine: Engine, device: torch.device) -> None:
    """A copied element gets the sum of the gradients of its copies, checked with numbered elements."""
    x = torch.arange(6.0, device=device).reshape(2, 3).requires_grad_()
    copies = EXPANSIONS[expansion](x)
    start = torch.arange(1.0, 1 + copies.numel(), device=device).reshape(copies.shape)

    copies.backward(start)

    expected = torch.zeros(6, device=device)
    origin = EXPANSIONS[expansion](x.detach()).long().flatten()
    for place, value in zip(origin.tolist(), start.flatten().tolist(), strict=True):
        expected[place] += value
    assert x.grad is not None
    assert x.grad.flatten().tolist() == expected.tolist()


def test_backward_initial_gradient_with_other_strides(engine: Engine, device: torch.device) -> None:
    """Transposed, strided and expanded initial gradients give the same result as equal contiguous ones."""
    x = torch.arange(6.0, device=device).reshape(2, 3).requires_grad_()
    values = torch.arange(10.0, 16.0, device=device).reshape(2, 3)
    strided = torch.zeros(2, 6, device=device)[:, ::2].copy_(values)
    found = []

    for start in (values, values.t().contiguous().t(), strided, torch.ones(1, 1, device=device).expand(2, 3)):
        (gradient,) = torch.autograd.grad(x * x, x, start)
        found.append(gradient)

    assert torch.equal(found[0], 2 * x.detach() * values)
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])
    assert torch.equal(found[3], 2 * x.detach())


def test_backward_of_tensors_of_no_elements(engine: Engine, device: torch.device) -> None:
    """Empty tensors have empty gradients and do not affect others."""
    empty = torch.zeros(0, 3, device=device, requires_grad=True)
    x = torch.ones(2, 3, device=device, requires_grad=True)

    (torch.cat([empty, x]) * 5).sum().backward()

    assert empty.grad is not None
    assert x.grad is not None
    assert empty.grad.shape == (0, 3)
    assert x.grad.tolist() == [[5.0] * 3] * 2


@pytest.mark.covers(ROW)
def test_backward_of_a_cpu_number_with_a_device_tensor(engine: Engine, device: torch.device) -> None:
    """A scalar on the CPU can be combined with tensors on any device, and its gradient is on the CPU."""
    number = torch.tensor(3.0, requires_grad=True)
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)

    (number * x).sum().backward()

    assert number.grad is not None
    assert x.grad is not None
    assert (number.grad.device.type, number.grad.shape) == ("cpu", ())
    assert number.grad.item() == 3.0
    assert (x.grad.device, x.grad.tolist()) == (device, [3.0, 3.0])


def test_to_passes_gradients_across_devices_and_dtypes(engine: Engine, device: torch.device) -> None:
    """`to` converts gradients back to the source's device and dtype, with the rounding of the conversion."""
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    third = torch.tensor(1.0 / 3.0, dtype=torch.float32, device=device)

    (x.to(device=device, dtype=torch.float32) * third).sum().backward()

    assert x.grad is not None
    assert (x.grad.device.type, x.grad.dtype) == ("cpu", torch.float64)
    assert x.grad.tolist() == [third.item()] * 2
