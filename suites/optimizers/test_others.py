"""Optimizers that use more than one element of a weight: Adafactor, Muon, L-BFGS, and those for sparse gradients."""

from __future__ import annotations

import math

import pytest
import torch

from . import references
from .catalogue import KINDS

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")

FOREACH = pytest.mark.parametrize("foreach", [False, True], ids=["one_by_one", "foreach"])
STEPS = 5


# ---- Adafactor ----


def adafactor(weight: torch.Tensor, gradients: list[torch.Tensor], lr: float, decay: float, d: float) -> torch.Tensor:
    """Return the published steps (arXiv:1804.04235, in torch's documented order), in float64."""
    rows, columns, flat = torch.zeros(()), torch.zeros(()), torch.zeros_like(weight)
    for step, g in enumerate(gradients, start=1):
        fresh = step**-0.8
        size = max(1e-3, weight.norm().item() / math.sqrt(weight.numel())) * min(lr, 1 / math.sqrt(step))
        weight = weight * (1 - lr * decay)
        squares = g * g
        if g.dim() > 1:
            rows = (1 - fresh) * rows + fresh * squares.mean(-1, keepdim=True)
            columns = (1 - fresh) * columns + fresh * squares.mean(-2, keepdim=True)
            spread = rows @ columns / rows.mean(-2, keepdim=True)
        else:
            flat = (1 - fresh) * flat + fresh * squares
            spread = flat
        update = g / spread.sqrt()
        weight = weight - size * update / max(1.0, update.norm().item() / (math.sqrt(update.numel()) * d))
    return weight


@FOREACH
@pytest.mark.parametrize("shape", [(6,), (4, 3), (2, 4, 3)], ids=["vector", "matrix", "matrices"])
@pytest.mark.parametrize("settings", [(0.1, 0.0, 1.0), (0.3, 0.2, 2.0)], ids=["plain", "decay"])
@pytest.mark.types("float64")
def test_adafactor_steps_are_the_published_ones(
    device: torch.device, foreach: bool, shape: tuple[int, ...], settings: tuple[float, float, float]
) -> None:
    """Adafactor's steps equal the published ones, with factored second moments for matrices and full ones for vectors.

    The tolerance is 1e-5 relative to float64, because foreach computes scales in float32.
    """
    lr, decay, d = settings
    start = torch.randn(shape, dtype=torch.float64)
    gradients = [torch.randn(shape, dtype=torch.float64) for _ in range(STEPS)]
    weight = start.to(device, copy=True).requires_grad_(requires_grad=True)
    optimiser = torch.optim.Adafactor([weight], lr=lr, weight_decay=decay, d=d, foreach=foreach)

    for gradient in gradients:
        weight.grad = gradient.to(device)
        optimiser.step()

    wanted = adafactor(start.clone(), gradients, lr, decay, d)
    torch.testing.assert_close(weight.detach().cpu(), wanted, rtol=1e-5, atol=1e-5)


# ---- Muon ----


def orthogonal(g: torch.Tensor) -> torch.Tensor:
    """Return five steps of the quintic Newton-Schulz iteration with Muon's published coefficients, in float64."""
    tall = g.shape[0] > g.shape[1]
    x = (g.t() if tall else g) / g.norm()
    for _ in range(5):
        gram = x @ x.t()
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.t() if tall else x


@pytest.mark.requires(any=[{"bf16": True}, {"not_": {"device": "cuda"}}])
@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6)], ids=["square", "tall", "wide"])
@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
def test_muon_steps_are_the_published_ones(device: torch.device, shape: tuple[int, int], nesterov: bool) -> None:
    """Muon's steps equal the published ones: orthogonalized momentum, a shape-dependent rate, and decoupled decay.

    The iteration has fifteen products in bfloat16 (eight bits): its entries, below one, are within 0.05, and with a
    rate of 0.02 over five steps, weights are within 0.005. Decay and Nesterov momentum move some weights further than
    that.
    """
    lr, momentum, decay = 0.02, 0.9, 2.0
    start = torch.randn(shape, dtype=torch.float64)
    gradients = [torch.randn(shape, dtype=torch.float64) for _ in range(STEPS)]
    weight = start.float().to(device).requires_grad_(requires_grad=True)
    optimiser = torch.optim.Muon([weight], lr=lr, momentum=momentum, weight_decay=decay, nesterov=nesterov)
    wanted, buffer = start.clone(), torch.zeros(shape, dtype=torch.float64)

    for gradient in gradients:
        weight.grad = gradient.float().to(device)
        optimiser.step()
        buffer = momentum * buffer + (1 - momentum) * gradient
        update = orthogonal((1 - momentum) * gradient + momentum * buffer if nesterov else buffer)
        wanted = wanted * (1 - lr * decay) - lr * math.sqrt(max(1, shape[0] / shape[1])) * update

    assert (wanted - start).abs().max() > 3 * 0.01
    torch.testing.assert_close(weight.detach().cpu().double(), wanted, rtol=0, atol=0.005)


@pytest.mark.parametrize("name", ["Adafactor", "Muon", "SparseAdam"])
def test_step_with_a_closure_returns_its_loss(name: str) -> None:
    """Adafactor, Muon and SparseAdam call a closure once before the step, with grad mode on, and return its result."""
    weight = torch.ones(2, 2, requires_grad=True)
    optimizer = getattr(torch.optim, name)([weight], lr=0.1)
    modes: list[bool] = []

    def closure() -> float:
        modes.append(torch.is_grad_enabled())
        gradient = torch.ones(2, 2)
        weight.grad = gradient.to_sparse() if name == "SparseAdam" else gradient
        return 3.5

    with torch.no_grad():
        assert optimizer.step(closure) == 3.5
    assert modes == [True]
    assert not torch.equal(weight.detach(), torch.ones(2, 2))


def test_muon_is_for_matrices(device: torch.device) -> None:
    """A weight that is not a matrix raises ValueError in the constructor."""
    for shape in ((), (3,), (2, 2, 2)):
        with pytest.raises(ValueError, match="2D"):
            torch.optim.Muon([torch.zeros(2, 2, device=device), torch.zeros(shape, device=device)])


def test_muon_takes_fewer_than_100_steps_of_its_iteration(device: torch.device) -> None:
    """A step with 100 Newton-Schulz steps raises ValueError, and one with 99 does not."""
    weight = torch.zeros(2, 2, device=device)
    weight.grad = torch.eye(2, device=device)
    torch.optim.Muon([weight], ns_steps=99).step()
    with pytest.raises(ValueError, match="less than 100"):
        torch.optim.Muon([weight], ns_steps=100).step()


# ---- L-BFGS ----


@pytest.mark.parametrize("search", [None, "strong_wolfe"], ids=["fixed_step", "line_search"])
@pytest.mark.types("float64")
def test_lbfgs_finds_the_minimum(device: torch.device, search: str | None) -> None:
    """L-BFGS finds the minimum of a quadratic form, known from linear equations in float64, within 1e-6.

    It calls the closure more than once, and at most `max_eval` times plus the 25 calls of a started line search. It
    returns the closure's first result.
    """
    torch.manual_seed(4)
    factor = torch.randn(5, 5, dtype=torch.float64)
    matrix = factor @ factor.t() / 5 + torch.eye(5, dtype=torch.float64)
    target = torch.randn(5, dtype=torch.float64)
    lowest = torch.linalg.solve(matrix, target)
    a, b = matrix.to(device), target.to(device)
    x = torch.zeros(5, dtype=torch.float64, device=device, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [x],
        lr=1.0 if search else 0.3,
        max_iter=100,
        max_eval=150,
        tolerance_grad=1e-10,
        tolerance_change=0.0,
        line_search_fn=search,
    )
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimiser.zero_grad()
        loss = 0.5 * (x * (a * x).sum(1)).sum() - (b * x).sum()
        loss.backward()
        return loss

    first = optimiser.step(closure)

    assert float(first.detach()) == 0.0
    assert 1 < calls <= 150 + 25 * bool(search)
    torch.testing.assert_close(x.detach().cpu(), lowest, rtol=1e-6, atol=1e-6)

    with torch.no_grad():
        x.zero_()
    calls = 0
    torch.optim.LBFGS([x], lr=0.3, max_iter=100, max_eval=4, tolerance_change=0.0, line_search_fn=search).step(closure)
    assert 1 < calls <= 4 + 25 * bool(search)


def test_lbfgs_has_one_group(device: torch.device) -> None:
    """L-BFGS, which treats all weights together, raises for several groups."""
    groups = [{"params": [torch.zeros(1, device=device)]}, {"params": [torch.zeros(1, device=device)]}]
    with pytest.raises(ValueError, match="parameter groups"):
        torch.optim.LBFGS(groups)


# ---- sparse gradients ----

SPARSE = pytest.mark.requires(sparse=True)


def sparse(rows: list[int], values: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, size, check_invariants=True)


@SPARSE
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_sparse_gradients_move_sgd_and_adagrad_as_dense_ones(device: torch.device, name: str) -> None:
    """SGD and Adagrad accept sparse gradients with duplicate rows, and give the same weights as with dense ones.

    This also holds with `foreach`.
    """
    for foreach in (None, True):
        start = torch.randn(6, 2, dtype=torch.float64)
        one, two = (start.to(device, copy=True).requires_grad_(requires_grad=True) for _ in range(2))
        cls = getattr(torch.optim, name)
        optimisers = [cls([weight], lr=0.1, foreach=foreach) for weight in (one, two)]

        for rows in ([1, 4, 1], [0, 4, 5], [2, 2, 2]):
            gradient = sparse(rows, torch.randn(3, 2, dtype=torch.float64), (6, 2)).to(device)
            one.grad, two.grad = gradient, gradient.to_dense()
            for optimiser in optimisers:
                optimiser.step()

        assert not torch.equal(one.detach().cpu(), start)
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@SPARSE
@pytest.mark.parametrize("maximize", [False, True], ids=["minimize", "maximize"])
def test_sparseadam_moves_rows_that_have_a_gradient(device: torch.device, maximize: bool) -> None:
    """SparseAdam updates the rows in the gradient like Adam, with lazily updated moments and the global step count.

    Other rows are bitwise unchanged. SparseAdam applies its epsilon differently from Adam, so it is negligibly small
    here.
    """
    start = torch.randn(5, dtype=torch.float64)
    weight = start.to(device, copy=True).requires_grad_(requires_grad=True)
    optimiser = torch.optim.SparseAdam([weight], lr=0.1, eps=1e-16, maximize=maximize)
    models = [references.Adam(lr=0.1, eps=1e-16, maximize=maximize) for _ in start]
    wanted = start.tolist()

    for step, rows in enumerate(([0, 3], [3, 3], [0, 1])):
        values = torch.randn(2, dtype=torch.float64)
        weight.grad = sparse(rows, values, (5,)).to(device)
        optimiser.step()
        for row in set(rows):
            models[row].steps = step
            gradient = sum(value for place, value in zip(rows, values.tolist(), strict=True) if place == row)
            wanted[row] = models[row].step(wanted[row], gradient)

    assert weight.tolist() == pytest.approx(wanted, rel=1e-10)
    assert weight[[2, 4]].tolist() == start[[2, 4]].tolist()


@SPARSE
def test_sparseadam_refuses_dense_gradients_and_sparse_weights(device: torch.device) -> None:
    """SparseAdam raises for dense gradients and for sparse weights."""
    weight = torch.zeros(3, device=device, requires_grad=True)
    optimiser = torch.optim.SparseAdam([weight])
    weight.grad = torch.ones(3, device=device)

    with pytest.raises(RuntimeError, match="dense gradients"):
        optimiser.step()
    with pytest.raises(ValueError, match="dense"):
        torch.optim.SparseAdam([torch.zeros(3, device=device).to_sparse()])


@SPARSE
@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("SGD", "Adagrad")])
def test_sparse_gradients_are_refused_by_other_optimizers(device: torch.device, name: str) -> None:
    """An optimizer without support for sparse gradients raises RuntimeError and leaves the weights unchanged.

    The message has the name of the optimizer.
    """
    weight = torch.ones(3, device=device, requires_grad=True)
    optimiser = getattr(torch.optim, name)([weight], lr=0.1)
    weight.grad = sparse([1], torch.ones(1), (3,)).to(device)

    named = "Adam" if name == "AdamW" else name
    with pytest.raises(RuntimeError, match=f"{named} does not support sparse gradients"):
        optimiser.step()
    assert weight.tolist() == [1.0] * 3
