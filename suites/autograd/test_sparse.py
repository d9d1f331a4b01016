"""Sparse gradients from embeddings and sparse products, and their accumulation with sparse and dense gradients."""

from __future__ import annotations

import pytest
import torch

from .engines import LIST, Engine, Known, each, waived

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"

pytestmark = [
    pytest.mark.requires(sparse=True),
    # Releases before 2.13 issue it once per process, whether or not invariants are checked.
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning"),
]

SPARSE = Known("a captured pass loses its inputs if one of them is sparse", LIST, (IndexError, RuntimeError))

INDICES = [1, 3, 1]


def embedding(device: torch.device) -> torch.nn.Embedding:
    """Return a sparse embedding of five rows with two elements each."""
    return torch.nn.Embedding(5, 2, sparse=True, device=device)


def loss(layer: torch.nn.Embedding, factor: float = 1.0) -> torch.Tensor:
    rows: torch.Tensor = layer(torch.tensor(INDICES, device=layer.weight.device))
    weights = torch.arange(1.0, 7.0, device=layer.weight.device).reshape(3, 2)
    return (rows * weights).sum() * factor


EXPECTED = [[0.0, 0.0], [6.0, 8.0], [0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]


@pytest.mark.covers(ROW)
def test_sparse_gradient_of_embedding(engine: Engine, device: torch.device) -> None:
    """The gradient of a sparse embedding is sparse and has entries only for the rows used.

    Converted to dense, it is the gradient of the dense embedding.
    """
    layer = embedding(device)
    dense = torch.nn.Embedding(5, 2, device=device)

    loss(layer).backward()
    loss(dense).backward()

    gradient = layer.weight.grad
    assert gradient is not None
    assert dense.weight.grad is not None
    assert gradient.is_sparse
    assert set(gradient.coalesce().indices().flatten().tolist()) == set(INDICES)
    assert gradient.to_dense().tolist() == EXPECTED
    assert torch.equal(gradient.to_dense(), dense.weight.grad)


@pytest.mark.covers(ROW)
@waived(SPARSE)
def test_sparse_gradients_add_up(engine: Engine, device: torch.device) -> None:
    """A second sparse gradient is added to the first, and the sum is sparse."""
    layer = embedding(device)

    loss(layer).backward()
    loss(layer, 10.0).backward()

    assert layer.weight.grad is not None
    assert layer.weight.grad.is_sparse
    assert layer.weight.grad.to_dense().tolist() == [[11 * value for value in row] for row in EXPECTED]


@pytest.mark.covers(ROW)
@each("first", ["dense", "sparse"], {"sparse": SPARSE})
def test_sparse_and_dense_gradients_give_a_dense_sum(first: str, engine: Engine, device: torch.device) -> None:
    """A sparse and a dense gradient of one leaf accumulate to a dense sum, in either order."""
    layer = embedding(device)

    def dense() -> torch.Tensor:
        return layer.weight.sum() * 100

    for part in (dense, lambda: loss(layer)) if first == "dense" else (lambda: loss(layer), dense):
        part().backward()

    assert layer.weight.grad is not None
    assert not layer.weight.grad.is_sparse
    assert layer.weight.grad.tolist() == [[100 + value for value in row] for row in EXPECTED]


def test_sparse_and_dense_gradients_in_one_pass_give_a_dense_sum(engine: Engine, device: torch.device) -> None:
    """A sparse and a dense gradient of one leaf within one pass give a dense sum."""
    layer = embedding(device)

    (loss(layer) + layer.weight.sum() * 100).backward()

    assert layer.weight.grad is not None
    assert not layer.weight.grad.is_sparse
    assert layer.weight.grad.tolist() == [[100 + value for value in row] for row in EXPECTED]


@pytest.mark.covers(ROW)
@waived(SPARSE)
def test_sparse_mm_gradient(engine: Engine, device: torch.device) -> None:
    """`sparse.mm` has the gradients of the dense product.

    The gradient is full for the dense operand, and at its entries for the sparse one.
    """
    places = torch.tensor([[0, 1, 1], [2, 0, 2]], device=device)
    values = torch.tensor([1.0, 2.0, 3.0], device=device)
    sparse = torch.sparse_coo_tensor(places, values, (2, 3), check_invariants=False).coalesce().requires_grad_()
    left = sparse.detach().to_dense().requires_grad_()
    right = torch.arange(6.0, device=device).reshape(3, 2).requires_grad_()
    again = right.detach().clone().requires_grad_()

    torch.sparse.mm(sparse, right).pow(2).sum().backward()
    (left @ again).pow(2).sum().backward()

    assert right.grad is not None
    assert again.grad is not None
    assert sparse.grad is not None
    assert left.grad is not None
    assert torch.equal(right.grad, again.grad)
    found = sparse.grad.coalesce().to_dense() if sparse.grad.is_sparse else sparse.grad
    assert torch.equal(found[places[0], places[1]], left.grad[places[0], places[1]])


@waived(SPARSE)
def test_to_sparse_and_to_dense_pass_gradients_on(engine: Engine, device: torch.device) -> None:
    """Gradients pass through `to_sparse` and `to_dense`, and from a sparse tensor to the values that built it."""
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0]], device=device, requires_grad=True)
    entries = torch.tensor([5.0, 7.0], device=device, requires_grad=True)
    places = torch.tensor([[0, 1], [1, 0]], device=device)

    (x.to_sparse().to_dense() * torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)).sum().backward()
    made = torch.sparse_coo_tensor(places, entries, (2, 2), check_invariants=False)
    (made.to_dense() * torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)).sum().backward()

    assert x.grad is not None
    assert entries.grad is not None
    assert x.grad.to_dense()[places[0], places[1]].tolist() == [2.0, 3.0]
    assert entries.grad.tolist() == [2.0, 3.0]
