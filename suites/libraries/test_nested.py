"""Nested tensors of the layout `torch.jagged`: rows of different lengths, consecutive in memory, compared with NumPy.

Each row is computed by itself in float64. Values are of the order of one, and sums have up to 40 terms, so an error is
below 200 roundings of the type. Source: documentation of `torch.nested`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from .oracle import Array, assert_equal, assert_within, numbers, tensor, types, unit
from .slopes import assert_slopes
from .transformer import softmax

#: torch's warnings of the state of its nested tensors are not under test.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    # The software device has no nested tensors.
    pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"device": "cuda"}]),
]

F32, F64 = torch.float32, torch.float64
TYPE = types(F32, F64)
#: A single step, and lengths around the width of a vector and of a warp.
LENGTHS = (3, 1, 17, 33, 8)
WIDTH = 6


def _rows(rng: np.random.Generator, *more: int) -> list[Array]:
    """Return rows of numbers that float32 holds exactly, so that those of float64 are the same."""
    return [rng.uniform(-1, 1, (length, *more)).astype(np.float32).astype(np.float64) for length in LENGTHS]


def _jagged(rows: list[Array], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a nested tensor (rows, steps that differ, ...), whose values require gradients."""
    values = tensor(np.concatenate(rows), dtype, device).requires_grad_()
    offsets = torch.tensor([0, *np.cumsum(LENGTHS).tolist()], device=device)
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=min(LENGTHS), max_seqlen=max(LENGTHS))


def _check(found: torch.Tensor, wanted: list[Array], dtype: torch.dtype) -> None:
    """Check the shape of each row, and its numbers."""
    assert found.is_nested
    assert found.layout == torch.jagged
    assert found.dtype == dtype
    for each, row in zip(found.unbind(), wanted, strict=True):
        assert_within(each, row, 200 * unit(dtype) * (1 + np.abs(row)))


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_a_nested_tensor_has_the_rows_it_was_made_of(
    device: torch.device, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    """A nested tensor from a list or from values and offsets has its rows, values, offsets, sizes and padded form."""
    rows = [rng.integers(0, 2, (length, WIDTH)) for length in LENGTHS]
    host = [torch.from_numpy(row).to(dtype) for row in rows]
    made = torch.nested.nested_tensor(host, layout=torch.jagged, device=device)
    offsets = np.array([0, *np.cumsum(LENGTHS)])
    joined = torch.nested.nested_tensor_from_jagged(torch.cat(host).to(device), torch.from_numpy(offsets).to(device))
    for nested in (made, joined, joined.cpu().to(device), joined.clone(), joined.detach()):
        assert nested.device == device
        assert nested.dtype == dtype
        assert (nested.size(0), nested.size(2), nested.dim()) == (len(rows), WIDTH, 3)
        assert_equal(nested.values(), np.concatenate(rows))
        assert_equal(nested.offsets(), offsets)
        for each, row in zip(nested.unbind(), rows, strict=True):
            assert_equal(each, row)
    if dtype.is_floating_point:
        for steps in (max(LENGTHS), 40):
            wanted = np.full((len(rows), steps, WIDTH), 2.0)
            for place, row in enumerate(rows):
                wanted[place, : len(row)] = row
            assert_equal(torch.nested.to_padded_tensor(made, 2.0, (len(rows), steps, WIDTH)), wanted)


def test_narrow_takes_steps_of_each_row(device: torch.device, rng: np.random.Generator) -> None:
    """`torch.nested.narrow` of a dense tensor takes a start and a length per row, and is a view of the same memory."""
    dense = rng.uniform(-1, 1, (4, 9, WIDTH))
    x = tensor(dense, F64, device)
    starts, lengths = torch.tensor([0, 2, 8, 4], device=device), torch.tensor([9, 3, 1, 5], device=device)
    found = torch.nested.narrow(x, 1, starts, lengths, layout=torch.jagged)
    taken = [dense[row, start : start + length] for row, (start, length) in enumerate([(0, 9), (2, 3), (8, 1), (4, 5)])]
    for each, row in zip(found.unbind(), taken, strict=True):
        assert_equal(each, row)
        assert each.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    whole = found.contiguous()
    assert_equal(whole.values(), np.concatenate(taken))


#: Operations on rows (steps, WIDTH) with a weight (WIDTH, WIDTH): by torch, and by NumPy for one row.
_Torch = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_ROWWISE: dict[str, tuple[_Torch, Callable[[Array, Array], Array]]] = {
    "linear": (functional.linear, lambda x, w: x @ w.T),
    "matmul": (torch.matmul, lambda x, w: x @ w),
    "product": (lambda x, w: x * w[0], lambda x, w: x * w[0]),
    "sum": (lambda x, w: x + (x * w[1]).sin(), lambda x, w: x + np.sin(x * w[1])),
    "softmax": (lambda x, w: functional.softmax(x * w[0], -1), lambda x, w: softmax(x * w[0])),
    "layer_norm": (
        lambda x, w: functional.layer_norm(x, (WIDTH,), w[0], w[1]),
        lambda x, w: (x - x.mean(-1, keepdims=True)) / np.sqrt(_variance(x) + 1e-5) * w[0] + w[1],
    ),
    "sum of steps": (lambda x, w: (x * w[0]).sum(1), lambda x, w: (x * w[0]).sum(0)),
    "mean of steps": (lambda x, w: (x * w[0]).mean(1), lambda x, w: (x * w[0]).mean(0)),
}


def _variance(x: Array) -> Any:
    """Return the variance without absolute values, for derivatives by imaginary steps."""
    return ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)


@pytest.mark.parametrize("name", _ROWWISE)
@TYPE
def test_operation_of_each_row_is_that_of_the_row_alone(
    device: torch.device, rng: np.random.Generator, name: str, dtype: torch.dtype
) -> None:
    """Values, and gradients by all rows and by a weight that the rows share, equal those of each row alone.

    torch has no gradients of sums and means over the steps of jagged rows.
    """
    rows, weight = _rows(rng, WIDTH), rng.uniform(0.5, 1, (WIDTH, WIDTH)).astype(np.float32).astype(np.float64)
    run, formula = _ROWWISE[name]
    x, w = _jagged(rows, dtype, device), tensor(weight, dtype, device).requires_grad_()
    found = run(x, w)
    wanted = [formula(row, weight) for row in rows]
    if not found.is_nested:  # one step per row remains
        assert_within(found, np.stack(wanted), 200 * unit(dtype) * (1 + np.abs(np.stack(wanted))))
        return
    _check(found, wanted, dtype)
    scale = rng.uniform(0.5, 1, (sum(LENGTHS), WIDTH))
    by_x, by_w = torch.autograd.grad((found.values() * tensor(scale, dtype, device)).sum(), (x, w))
    ends = np.cumsum(LENGTHS)[:-1]

    def value(arrays: Any) -> complex:
        computed = [formula(row, arrays["w"]) for row in np.split(arrays["x"], ends)]
        return complex((np.concatenate(computed) * numbers(tensor(scale, dtype, device))).sum())

    assert_slopes(value, {"x": np.concatenate(rows), "w": weight}, {"x": by_x.values(), "w": by_w}, rng, 400)


#: Reductions over the steps of each row: by torch, and by NumPy for one row.
_OVER_STEPS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[Array], Array]]] = {
    "sum": (lambda x: x.sum(1), lambda row: row.sum(0)),
    "prod": (lambda x: x.prod(1), lambda row: row.prod(0)),
    "amax": (lambda x: x.amax(1), lambda row: row.max(0)),
    "amin": (lambda x: x.amin(1), lambda row: row.min(0)),
    "max": (lambda x: x.max(1).values, lambda row: row.max(0)),
    "min": (lambda x: x.min(1).values, lambda row: row.min(0)),
    "argmax": (lambda x: x.argmax(1), lambda row: row.argmax(0)),
    "argmin": (lambda x: x.argmin(1), lambda row: row.argmin(0)),
    "any": (lambda x: (x < -3).any(1), lambda row: (row < -3).any(0)),
    "all": (lambda x: (x < 4).all(1), lambda row: (row < 4).all(0)),
}


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
@pytest.mark.parametrize("name", _OVER_STEPS)
def test_reduction_over_the_steps_of_each_row(
    device: torch.device, rng: np.random.Generator, name: str, sign: int
) -> None:
    """A reduction over the steps has the value of each row alone: what pads short rows does not count.

    All numbers have one sign, so that zeros, or the ends of a type, would be the largest or smallest.
    """
    run, formula = _OVER_STEPS[name]
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.int8):
        rows = [sign * (1 + rng.permuted(np.tile(np.arange(length), (WIDTH, 1)), axis=1).T % 5) for length in LENGTHS]
        if name == "prod":
            rows = [np.where(np.abs(row) > 2, sign, row) for row in rows]
        if name.startswith("arg"):
            rows = [sign * (1 + rng.permuted(np.tile(np.arange(length), (WIDTH, 1)), axis=1).T) for length in LENGTHS]
        x = torch.nested.nested_tensor([torch.from_numpy(row).to(dtype) for row in rows], layout=torch.jagged)
        assert_equal(run(x.to(device)), np.stack([formula(row) for row in rows]))


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.requires(device="cuda"))])
@TYPE
def test_attention_stays_within_each_row(
    device: torch.device, rng: np.random.Generator, causal: bool, dtype: torch.dtype
) -> None:
    """In `scaled_dot_product_attention` of (rows, heads, steps that differ, width), no step attends to another row's.

    Causal attention in double precision may be refused, since only the kernels for smaller types support rows of such
    lengths.
    """
    heads, width = 2, 8
    q, k, v = (_rows(rng, heads, width) for _ in range(3))
    given = [_jagged(each, dtype, device).transpose(1, 2) for each in (q, k, v)]
    try:
        found = functional.scaled_dot_product_attention(given[0], given[1], given[2], is_causal=causal).transpose(1, 2)
    except RuntimeError as error:
        if causal and dtype == torch.float64 and "No viable backend" in str(error):
            return
        raise

    def row(q: Array, k: Array, v: Array) -> Array:
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(width)
        if causal:
            scores = np.where(np.triu(np.ones(scores.shape[1:], bool), 1), -1e9, scores)
        return np.asarray(np.einsum("hqk,khd->qhd", softmax(scores), v))

    _check(found, [row(*each) for each in zip(q, k, v, strict=True)], dtype)
    scale = rng.uniform(0.5, 1, (sum(LENGTHS), heads, width))
    slopes = torch.autograd.grad((found.values() * tensor(scale, dtype, device)).sum(), given)
    ends = np.cumsum(LENGTHS)[:-1]

    def value(arrays: Any) -> complex:
        parts = zip(*(np.split(arrays[each], ends) for each in "qkv"), strict=True)
        return complex((np.concatenate([row(*each) for each in parts]) * numbers(tensor(scale, dtype, device))).sum())

    arrays = dict(zip("qkv", map(np.concatenate, (q, k, v)), strict=True))
    gradients = {name: each.transpose(1, 2).values() for name, each in zip("qkv", slopes, strict=True)}
    assert_slopes(value, arrays, gradients, rng, 1000)


def test_rows_of_other_lengths_do_not_combine(device: torch.device, rng: np.random.Generator) -> None:
    """Two nested tensors combine if they have the same offsets, and raise RuntimeError otherwise."""
    rows = _rows(rng, WIDTH)
    x, y = _jagged(rows, F64, device), _jagged(rows, F64, device)
    same = torch.nested.nested_tensor_from_jagged(y.values(), x.offsets())
    assert_equal((x + same).values(), 2 * np.concatenate(rows))
    with pytest.raises(RuntimeError, match="cannot call binary pointwise function add"):
        _ = x + torch.nested.nested_tensor_from_jagged(
            y.values(), torch.tensor([0, 1, 2, 3, 4, sum(LENGTHS)], device=device)
        )
