"""Indexing, gather and scatter: each gradient goes to the element that was read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .engines import Engine

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"

PICKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "integers": lambda x: x[[3, 0, 3, 3]],
    "negative": lambda x: x[-1],
    "two_lists": lambda x: x[[0, 1, 0], [2, 2, 2]],
    "mask": lambda x: x[torch.tensor([True, False, False, True], device=x.device)],
    "mask_of_elements": lambda x: x[x > 4],
    "list_and_slice": lambda x: x[[1, 1], 1:],
    "new_dimension": lambda x: x[:, None, ::2],
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 2, 0], device=x.device)),
    "gather": lambda x: x.gather(1, torch.tensor([[0, 0], [2, 1], [1, 1], [0, 2]], device=x.device)),
    "take": lambda x: x.take(torch.tensor([0, 11, 11], device=x.device)),
    "take_along_dim": lambda x: torch.take_along_dim(x, torch.tensor([[3, 3, 0]], device=x.device), 0),
    "sort": lambda x: x.sort(dim=0, descending=True).values,
    "topk": lambda x: x.topk(2, dim=1).values,
    "roll_and_flip": lambda x: x.roll(1, 0).flip(1),
    "tril": lambda x: x.tril(),
}


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("pick", PICKS)
def test_indexing_gradients_go_where_elements_were_picked(pick: str, engine: Engine, device: torch.device) -> None:
    """Each element gets the sum of the gradients of the positions for which it was picked, or zero.

    The elements are numbered.
    """
    x = torch.arange(1.0, 13.0, device=device).reshape(4, 3).requires_grad_()
    picked = PICKS[pick](x)
    start = torch.arange(1.0, 1 + picked.numel(), device=device).reshape(picked.shape)

    picked.backward(start)

    expected = [0.0] * 13
    for origin, value in zip(picked.detach().flatten().tolist(), start.flatten().tolist(), strict=True):
        expected[int(origin)] += value
    assert x.grad is not None
    assert x.grad.flatten().tolist() == (
        expected[1:]
        if pick != "tril"
        else [value * (place % 3 <= place // 3) for place, value in enumerate(start.flatten().tolist())]
    )


@pytest.mark.parametrize("reduce", ["add", "replace"])
def test_scatter_and_its_gradients(reduce: str, engine: Engine, device: torch.device) -> None:
    """Scattered values get the gradient of their target position.

    The target keeps its gradient where values were added, and gets zero where they replaced it.
    """
    target = torch.ones(4, device=device, requires_grad=True)
    source = torch.tensor([5.0, 6.0], device=device, requires_grad=True)
    indices = torch.tensor([2, 0], device=device)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)

    scattered = target.scatter_add(0, indices, source) if reduce == "add" else target.scatter(0, indices, source)
    (scattered * weights).sum().backward()

    assert source.grad is not None
    assert target.grad is not None
    assert source.grad.tolist() == [3.0, 1.0]
    assert target.grad.tolist() == ([1.0, 2.0, 3.0, 4.0] if reduce == "add" else [0.0, 2.0, 0.0, 4.0])


def test_index_add_and_index_copy(engine: Engine, device: torch.device) -> None:
    """Rows added by index, including repeated ones, get the gradient of their target row.

    Copied rows take the gradient from the rows that they replace.
    """
    base = torch.ones(3, 2, device=device, requires_grad=True)
    rows = torch.ones(3, 2, device=device, requires_grad=True)
    weights = torch.tensor([[1.0], [10.0], [100.0]], device=device)

    added = base.index_add(0, torch.tensor([0, 2, 2], device=device), rows, alpha=2)
    copied = base.index_copy(0, torch.tensor([1], device=device), rows[:1])
    ((added + copied) * weights).sum().backward()

    assert rows.grad is not None
    assert base.grad is not None
    assert rows.grad[:, 0].tolist() == [12.0, 200.0, 200.0]
    assert base.grad[:, 0].tolist() == [2.0, 10.0, 200.0]


def test_where_sends_each_gradient_to_the_selected_operand(engine: Engine, device: torch.device) -> None:
    """`where` sends the gradient of each element to the operand it was taken from, summed to that operand's shape."""
    condition = torch.tensor([[True, False], [False, False]], device=device)
    x = torch.ones(2, 2, device=device, requires_grad=True)
    number = torch.tensor(7.0, device=device, requires_grad=True)
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)

    (torch.where(condition, x, number) * weights).sum().backward()

    assert x.grad is not None
    assert number.grad is not None
    assert x.grad.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert number.grad.item() == 9.0
