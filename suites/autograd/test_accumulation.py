"""Accumulation into `.grad`: in place, by addition, and the memory of the result."""

from __future__ import annotations

import pytest
import torch

from .engines import Engine

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


@pytest.mark.covers(ROW)
def test_backward_a_second_time_adds_to_grad_in_place(engine: Engine, device: torch.device) -> None:
    """A second backward pass accumulates into the existing `.grad` tensor in place, without replacing or moving it."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)

    (x * 3).sum().backward()
    first = x.grad
    assert first is not None
    place = first.data_ptr()
    (x * x).sum().backward()

    assert x.grad is first
    assert first.data_ptr() == place
    assert first.tolist() == [5.0, 7.0]


@pytest.mark.covers(ROW)
def test_backward_adds_to_a_grad_that_the_user_assigned(engine: Engine, device: torch.device) -> None:
    """The backward pass accumulates into a tensor that the user assigned to `.grad`.

    Views of that tensor see the sum.
    """
    flat = torch.tensor([10.0, 20.0, 30.0, 40.0], device=device)
    x = torch.ones(2, device=device, requires_grad=True)
    y = torch.ones(2, device=device, requires_grad=True)
    x.grad, y.grad = flat[:2], flat[2:]

    (x * 2 + y * 3).sum().backward()

    assert flat.tolist() == [12.0, 22.0, 33.0, 43.0]


def test_grad_is_not_shared_between_leaves(engine: Engine, device: torch.device) -> None:
    """Two leaves with equal gradients do not share memory, and a leaf's `.grad` does not alias the initial gradient."""
    x = torch.ones(2, device=device, requires_grad=True)
    y = torch.ones(2, device=device, requires_grad=True)
    start = torch.tensor([5.0, 6.0], device=device)

    (x + y).backward(start)
    assert x.grad is not None
    assert y.grad is not None
    x.grad.zero_()

    assert y.grad.tolist() == [5.0, 6.0]
    assert start.tolist() == [5.0, 6.0]
    y.grad.fill_(7)
    assert x.grad.tolist() == [0.0, 0.0]
    assert start.tolist() == [5.0, 6.0]


def test_grad_that_was_broadcast_has_memory_of_its_own(engine: Engine, device: torch.device) -> None:
    """The gradient of a sum, which is an expanded scalar, is materialized in `.grad`.

    Writing one element changes only that element.
    """
    x = torch.zeros(2, 3, device=device, requires_grad=True)

    x.sum().backward()
    assert x.grad is not None
    x.grad[0, 0] = 9.0

    assert x.grad.stride() == (3, 1)
    assert x.grad.tolist() == [[9.0, 1.0, 1.0], [1.0, 1.0, 1.0]]


LAYOUTS = {
    "contiguous": lambda: torch.zeros(2, 3, 4, 5),
    "transposed": lambda: torch.zeros(5, 4, 3, 2).permute(3, 2, 1, 0),
    "channels_last": lambda: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_grad_has_the_layout_of_its_leaf(layout: str, engine: Engine, device: torch.device) -> None:
    """The first gradient of a dense leaf gets the leaf's strides, however it was computed.

    Accumulation preserves the strides.
    """
    x = LAYOUTS[layout]().to(device).requires_grad_()
    weights = torch.arange(120.0, device=device).reshape(2, 3, 4, 5)

    (x * weights).sum().backward()
    assert x.grad is not None
    assert x.grad.stride() == x.stride()
    assert torch.equal(x.grad, weights)
    (x * weights.to(memory_format=torch.channels_last)).sum().backward()

    assert x.grad.stride() == x.stride()
    assert torch.equal(x.grad, weights * 2)


@pytest.mark.covers(ROW)
def test_backward_adds_up_all_uses_of_a_leaf(engine: Engine, device: torch.device) -> None:
    """Gradients from all uses of a leaf are summed within a pass, and the leaf's hook receives the sum."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    sums: list[list[float]] = []
    x.register_hook(lambda gradient: sums.append(gradient.tolist()))

    y = x * 1 + x * 2 + x * x
    (y + x[0] * 10).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [25.0, 7.0]
    assert sums == [[25.0, 7.0]]


def test_backward_leaves_grad_of_an_unused_leaf(engine: Engine, device: torch.device) -> None:
    """A leaf that does not take part in a pass keeps its `.grad`: None, or the gradient of an earlier pass."""
    x, y, z = (torch.ones(2, device=device, requires_grad=True) for _ in range(3))

    (x * y).sum().backward()
    (x * 2).sum().backward()

    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]
    assert y.grad.tolist() == [1.0, 1.0]
    assert z.grad is None


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_begins_anew(set_to_none: bool, engine: Engine, device: torch.device) -> None:
    """After `zero_grad`, the next pass yields the gradient of that pass alone.

    `.grad` is a new tensor after `set_to_none=True`, and otherwise the same tensor.
    """
    layer = torch.nn.Linear(2, 1, bias=False, device=device)
    x = torch.tensor([[1.0, 2.0]], device=device)

    layer(x).sum().backward()
    before = layer.weight.grad
    assert before is not None
    layer.zero_grad(set_to_none=set_to_none)
    assert before.tolist() == ([[1.0, 2.0]] if set_to_none else [[0.0, 0.0]])
    (layer(x) * 10).sum().backward()

    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[10.0, 20.0]]
    assert (layer.weight.grad is before) == (not set_to_none)


def test_backward_of_parts_of_a_batch_adds_up_to_the_whole(engine: Engine, device: torch.device) -> None:
    """Backward passes over parts of a batch accumulate to the gradient of the whole batch, up to rounding."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(8, 4, device=device, dtype=torch.float64)
    batch = torch.randn(6, 8, device=device, dtype=torch.float64)

    layer(batch).pow(2).sum().backward()
    whole = [one.grad.clone() for one in layer.parameters() if one.grad is not None]
    layer.zero_grad()
    for part in batch.split(2):
        layer(part).pow(2).sum().backward()
    parts = [one.grad for one in layer.parameters() if one.grad is not None]

    assert len(parts) == 2
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
