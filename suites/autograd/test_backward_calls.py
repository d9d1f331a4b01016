"""Arguments of `backward` and `autograd.grad`: inputs, initial gradients, and retained graphs."""

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
    """`backward(inputs=…)` accumulates into the given tensors and into no other leaf."""
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
    """A non-leaf tensor in `inputs` gets its `.grad`, and the pass stops there."""
    x, y = pair(device)
    middle = x * 2
    middle.retain_grad()

    (middle * y).sum().backward(inputs=[middle])

    assert middle.grad is not None
    assert middle.grad.tolist() == [3.0, 4.0]
    assert x.grad is None
    assert y.grad is None


def test_backward_inputs_must_require_grad(engine: Engine, device: torch.device) -> None:
    """An empty `inputs` list, or one with a tensor that does not require grad, raises."""
    x, _ = pair(device)

    with pytest.raises(RuntimeError, match="cannot be empty"):
        (x * 2).sum().backward(inputs=[])
    with pytest.raises(RuntimeError, match="requires_grad=False"):
        (x * 2).sum().backward(inputs=[torch.ones(1, device=device)])
    assert x.grad is None
    engine.still_works()


@pytest.mark.covers(ROW)
def test_autograd_grad_returns_gradients_in_order_and_writes_none(engine: Engine, device: torch.device) -> None:
    """`autograd.grad` returns one gradient per input, in order and including repeated inputs, and writes no `.grad`."""
    x, y = pair(device)

    found = torch.autograd.grad((x * x * y).sum(), [y, x, y])

    assert [one.tolist() for one in found] == [[1.0, 4.0], [6.0, 16.0], [1.0, 4.0]]
    assert (x.grad, y.grad) == (None, None)


@pytest.mark.covers(ROW)
def test_allow_unused_and_materialize_grads_for_an_unused_input(engine: Engine, device: torch.device) -> None:
    """An input on which the result does not depend raises by default.

    `allow_unused` returns None for it, and `materialize_grads` returns zeros of its shape, for either position.
    """
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
    """The gradient of a tensor with respect to itself is the initial gradient."""
    x, _ = pair(device)
    y = x * 2
    start = torch.tensor([5.0, 7.0], device=device)

    at_result, at_leaf = torch.autograd.grad(y, [y, x], start)

    assert at_result.tolist() == [5.0, 7.0]
    assert at_leaf.tolist() == [10.0, 14.0]


def test_backward_of_a_leaf_accumulates_the_initial_gradient(engine: Engine, device: torch.device) -> None:
    """`backward` on a leaf accumulates the initial gradient into that leaf."""
    x, _ = pair(device)

    x.backward(torch.tensor([5.0, 7.0], device=device))
    x.backward(torch.tensor([1.0, 1.0], device=device))

    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 8.0]
    engine.still_works()


@pytest.mark.covers(ROW)
def test_backward_of_several_results_at_once(engine: Engine, device: torch.device) -> None:
    """`backward` from several results, each with its initial gradient, gives the sum of the individual gradients."""
    x, y = pair(device)
    a, b = x * y, x * x

    torch.autograd.backward([a, b, a], [torch.ones_like(a), torch.full_like(b, 10.0), torch.ones_like(a)])

    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() == [26.0, 48.0]
    assert y.grad.tolist() == [2.0, 4.0]


def test_backward_of_a_nonscalar_needs_an_initial_gradient(engine: Engine, device: torch.device) -> None:
    """`backward` without an initial gradient raises unless the result has one element.

    `backward` also raises if the initial gradient has another shape, or is complex for a real result, and if the result
    has no graph.
    """
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
def test_retain_graph_allows_a_second_backward(engine: Engine, device: torch.device) -> None:
    """A backward pass frees the saved tensors, so a second pass raises.

    With `retain_graph`, further passes give the same gradients, until a pass without it.
    """
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
    """A graph that saves no tensors, such as one of sums, can be traversed repeatedly without `retain_graph`."""
    x, _ = pair(device)
    y = (x + x + x).sum()

    for _ in range(3):
        y.backward()

    assert x.grad is not None
    assert x.grad.tolist() == [9.0, 9.0]


def test_retain_graph_for_two_graphs_that_share_a_subgraph(engine: Engine, device: torch.device) -> None:
    """The first pass frees the part that two graphs share, so a pass over the second raises unless it was retained.

    With `retain_graph`, the second pass gives the same gradients as on its own.
    """
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
def test_is_grads_batched_gives_stacked_gradients(engine: Engine, device: torch.device) -> None:
    """`is_grads_batched` returns the stacked gradients for a stack of initial gradients."""
    x, _ = pair(device)
    y = x * x
    starts = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]], device=device)

    (batched,) = torch.autograd.grad(y, x, starts, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(y, x, start, retain_graph=True)[0] for start in starts]

    assert torch.equal(batched, torch.stack(alone))


def test_backward_over_changing_graphs(engine: Engine, device: torch.device) -> None:
    """Each pass follows its own graph.

    Other sizes, numbers and functions give their own gradients, whatever ran before.
    """
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
