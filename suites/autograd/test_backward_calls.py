"""What `backward` and `autograd.grad` are asked for: inputs, starting gradients, graphs kept or not."""

from __future__ import annotations

import pytest
import torch

from .engines import LIST, Engine, Known, waived

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


def pair(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    y = torch.tensor([3.0, 4.0], device=device, requires_grad=True)
    return x, y


@pytest.mark.covers(ROW)
def test_backward_inputs_alone_get_gradients(engine: Engine, device: torch.device) -> None:
    """Contract: `backward(inputs=…)` accumulates into those tensors and no other leaf."""
    x, y = pair(device)
    middle = x * 2

    (middle * y).sum().backward(inputs=[y])
    assert (x.grad, y.grad is None) == (None, False)
    (middle * y).sum().backward(inputs=[x])

    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() == [6.0, 8.0]
    assert y.grad.tolist() == [2.0, 4.0]


def test_backward_inputs_may_be_within_the_graph(engine: Engine, device: torch.device) -> None:
    """Contract: a tensor within the graph that is among `inputs` gets its `.grad`, and the pass ends there."""
    x, y = pair(device)
    middle = x * 2
    middle.retain_grad()

    (middle * y).sum().backward(inputs=[middle])

    assert middle.grad is not None
    assert middle.grad.tolist() == [3.0, 4.0]
    assert x.grad is None
    assert y.grad is None


def test_backward_inputs_must_require_grad(engine: Engine, device: torch.device) -> None:
    """Contract: an empty list of inputs, and one with a tensor that requires no gradient, are refused."""
    x, _ = pair(device)

    with pytest.raises(RuntimeError, match="cannot be empty"):
        (x * 2).sum().backward(inputs=[])
    with pytest.raises(RuntimeError, match="requires_grad=False"):
        (x * 2).sum().backward(inputs=[torch.ones(1, device=device)])
    assert x.grad is None
    engine.still_works()


@pytest.mark.covers(ROW)
def test_autograd_grad_returns_gradients_in_order_and_writes_none(engine: Engine, device: torch.device) -> None:
    """Contract: `grad` returns one gradient for each input, in order, repeated ones too, and writes no `.grad`."""
    x, y = pair(device)

    found = torch.autograd.grad((x * x * y).sum(), [y, x, y])

    assert [one.tolist() for one in found] == [[1.0, 4.0], [6.0, 16.0], [1.0, 4.0]]
    assert (x.grad, y.grad) == (None, None)


@pytest.mark.covers(ROW)
def test_allow_unused_and_materialize_grads_for_an_input_without_part(engine: Engine, device: torch.device) -> None:
    """Contract: an input that the result does not depend on is an error; None with `allow_unused`; zeros of its shape
    with `materialize_grads`; whichever of the inputs it is."""
    x, _ = pair(device)
    y = torch.ones(1, 3, device=device, requires_grad=True)

    for inputs in ([x, y], [y, x]):
        with pytest.raises(RuntimeError, match="to not have been used in the graph"):
            torch.autograd.grad((x * 2).sum(), inputs)
        unused = torch.autograd.grad((x * 2).sum(), inputs, allow_unused=True)
        zeros = torch.autograd.grad((x * 2).sum(), inputs, materialize_grads=True)

        assert [None if one is None else one.tolist() for one in unused] == [
            [2.0, 2.0] if one is x else None for one in inputs
        ]
        assert [one.tolist() for one in zeros] == [[2.0, 2.0] if one is x else [[0.0] * 3] for one in inputs]


def test_autograd_grad_of_a_result_that_is_its_own_input(engine: Engine, device: torch.device) -> None:
    """Contract: the gradient of a tensor with respect to itself is what the pass started with."""
    x, _ = pair(device)
    y = x * 2
    start = torch.tensor([5.0, 7.0], device=device)

    at_result, at_leaf = torch.autograd.grad(y, [y, x], start)

    assert at_result.tolist() == [5.0, 7.0]
    assert at_leaf.tolist() == [10.0, 14.0]


def test_backward_of_a_leaf_accumulates_the_start(engine: Engine, device: torch.device) -> None:
    """Contract: `backward` of a leaf accumulates the starting gradient into it."""
    x, _ = pair(device)

    x.backward(torch.tensor([5.0, 7.0], device=device))
    x.backward(torch.tensor([1.0, 1.0], device=device))

    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 8.0]
    engine.still_works()


@pytest.mark.covers(ROW)
def test_backward_of_several_results_at_once(engine: Engine, device: torch.device) -> None:
    """Contract: a pass from several results, each with its starting gradient, gives the sum of what each gives."""
    x, y = pair(device)
    a, b = x * y, x * x

    torch.autograd.backward([a, b, a], [torch.ones_like(a), torch.full_like(b, 10.0), torch.ones_like(a)])

    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() == [26.0, 48.0]
    assert y.grad.tolist() == [2.0, 4.0]


def test_backward_needs_a_start_for_more_than_one_number(engine: Engine, device: torch.device) -> None:
    """Contract: without a starting gradient the result must be one number; a start has the result's shape, and is
    complex only where that is; a result without a history has no pass."""
    x, _ = pair(device)

    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        (x * 2).backward()
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        (x * 2).backward(torch.ones(3, device=device))
    with pytest.raises(RuntimeError, match="complex"):
        (x * 2).backward(torch.ones(2, device=device, dtype=torch.complex64))
    with pytest.raises(RuntimeError, match="does not require grad and does not have a grad_fn"):
        torch.ones(1, device=device).backward()
    assert x.grad is None

    (x[:1] * 2).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 0.0]


@pytest.mark.covers(ROW)
def test_retain_graph_lets_a_graph_serve_again(engine: Engine, device: torch.device) -> None:
    """Contract: a pass frees what was saved, so that a second one is an error that says so; with `retain_graph` the
    graph serves again, with the same gradients, until a pass without."""
    x, _ = pair(device)
    y = (x.exp() * x).sum()

    kept = [torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2)]
    (last,) = torch.autograd.grad(y, x)

    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[0], last)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        torch.autograd.grad(y, x)
    engine.still_works()


def test_retain_graph_is_not_needed_by_a_graph_that_saved_nothing(engine: Engine, device: torch.device) -> None:
    """Contract: a graph in which nothing was saved, of sums alone, serves any number of times."""
    x, _ = pair(device)
    y = (x + x + x).sum()

    for _ in range(3):
        y.backward()

    assert x.grad is not None
    assert x.grad.tolist() == [9.0, 9.0]


def test_retain_graph_for_two_graphs_that_share_a_piece(engine: Engine, device: torch.device) -> None:
    """Contract: what two results share is freed with the first pass: the second one needs the first to have retained
    it, and then gets what a pass of its own would."""
    x, _ = pair(device)
    shared = x.exp()
    first, second = shared.sum(), (shared * 2).sum()

    first.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        second.backward()

    x.grad = None
    shared = x.exp()
    first, second = shared.sum(), (shared * 2).sum()
    first.backward(retain_graph=True)
    second.backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 3 * x.detach().exp())


@pytest.mark.covers(ROW)
@waived(Known("tensors within vmap cannot be captured", LIST, NotImplementedError))
def test_is_grads_batched_gives_gradients_of_several_starts(engine: Engine, device: torch.device) -> None:
    """Contract: `is_grads_batched` gives for a stack of starting gradients the stack of what each gives."""
    x, _ = pair(device)
    y = x * x
    starts = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]], device=device)

    (batched,) = torch.autograd.grad(y, x, starts, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(y, x, start, retain_graph=True)[0] for start in starts]

    assert torch.equal(batched, torch.stack(alone))


def test_backward_over_changing_graphs(engine: Engine, device: torch.device) -> None:
    """Contract: a pass follows the graph at hand: other sizes, other numbers and other functions have their own
    gradients, whatever ran before."""
    found = []
    for size, factor, steps in ((2, 3.0, 1), (3, 3.0, 1), (2, 5.0, 1), (2, 3.0, 2), (4, 7.0, 3), (2, 3.0, 1)):
        x = torch.ones(size, device=device, requires_grad=True)
        y = x
        for _ in range(steps):
            y = y * factor
        y.sum().backward()
        assert x.grad is not None
        found.append(x.grad.tolist())

    assert found == [[3.0] * 2, [3.0] * 3, [5.0] * 2, [9.0] * 2, [343.0] * 4, [3.0] * 2]
