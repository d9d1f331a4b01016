"""Operators of the backward pass: by formula, or as the vector-Jacobian product of the interpreted forward operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from . import windows
from .formats import Array
from .interpreter import Host, differentiable, interprets

aten: Any = torch.ops.aten


def _product(grad: Host, function: Callable[..., torch.Tensor], *inputs: Host) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients by a function's inputs, given the gradient by its result."""
    with differentiable():
        leaves = [Host(each.array, each.dtype).requires_grad_(True) for each in inputs]
        return torch.autograd.grad(function(*leaves), leaves, grad, allow_unused=True)


def _decomposed(name: str) -> Callable[..., Any]:
    """Return torch's decomposition of an operator.

    It is called directly, since the operator would record its own backward.
    """

    def call(*given: Any, **named: Any) -> Any:
        from torch._decomp import decomposition_table

        return decomposition_table[getattr(aten, name).default](*given, **named)

    return call


def _upsampling(name: str) -> None:
    forward = _decomposed(name)

    @interprets(f"{name}_backward", arguments="host")
    def backward(grad: Host, out: Any, size: Sequence[int], *more: Any, **named: Any) -> Any:
        x = Host(np.zeros(tuple(size)), grad.dtype)
        return _product(grad, lambda each: forward(each, out, *more, **named), x)[0]


for _name in ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
              "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"):  # fmt: skip
    _upsampling(_name)
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"):
    _upsampling(_name)


def _padding(name: str) -> None:
    forward = _decomposed(name)
    interprets(f"{name}_backward", arguments="host")(
        lambda grad, x, padding: _product(grad, lambda each: forward(each, padding), x)[0]
    )


for _name in (
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
    "reflection_pad1d",
    "reflection_pad2d",
    "reflection_pad3d",
):
    _padding(_name)


@interprets("grid_sampler_2d_backward", "grid_sampler_3d_backward", arguments="host")
def _grid_sampler(grad: Host, x: Host, grid: Host, mode: int, padding: int, align: bool, mask: Sequence[bool]) -> Any:
    forward = _decomposed("grid_sampler_2d") if x.dim() == 4 else windows.grid_sampler_3d
    found = _product(grad, lambda a, b: forward(a, b, mode, padding, align), x, grid)
    return tuple(
        each if each is not None else Host(np.zeros_like(like.array), like.dtype)
        for each, like in zip(found, (x, grid), strict=True)
    )


interprets("softshrink_backward")(lambda grad, x, lambd: np.where(np.abs(x) <= lambd, 0, grad))
interprets("hardshrink_backward")(lambda grad, x, lambd: np.where(np.abs(x) <= lambd, 0, grad))


@interprets("masked_scatter_backward", arguments="host")
def _masked_scatter(grad: Host, mask: Host, sizes: Sequence[int]) -> Host:
    found = np.zeros(int(np.prod(sizes)), grad.array.dtype)
    picked = grad.array[np.broadcast_to(mask.array, grad.array.shape)]
    found[: len(picked)] = picked
    return Host(found.reshape(tuple(sizes)), grad.dtype)


@interprets("multi_margin_loss_backward", arguments="host")
def _multi_margin(
    grad: Host, x: Host, target: Host, p: Any, margin: Any, weight: Any = None, reduction: int = 1
) -> Any:
    return _product(grad, lambda each: _decomposed("multi_margin_loss")(each, target, p, margin, weight, reduction), x)[
        0
    ]


@interprets("multilabel_margin_loss_backward", arguments="host")
def _multilabel(grad: Host, x: Host, target: Host, reduction: int, is_target: Host) -> Any:
    return _product(grad, lambda each: _decomposed("multilabel_margin_loss_forward")(each, target, reduction)[0], x)[0]


@interprets("_scaled_dot_product_flash_attention_for_cpu", arguments="host")
def _attention(
    q: Host,
    k: Host,
    v: Host,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: Any = None,
) -> Any:
    scores = _scores(q, k, is_causal, attn_mask, scale)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def _scores(q: torch.Tensor, k: torch.Tensor, is_causal: bool, mask: Any, scale: Any) -> torch.Tensor:
    found = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        allowed = Host(np.tril(np.ones((q.shape[-2], k.shape[-2]), bool)), torch.bool)
        found = found.masked_fill(~allowed, -np.inf)
    return found if mask is None else found + mask


@interprets("_scaled_dot_product_flash_attention_for_cpu_backward", arguments="host")
def _attention_backward(
    grad: Host, q: Host, k: Host, v: Host, out: Host, logsumexp: Host, dropout_p: float, is_causal: bool, *,
    attn_mask: Any = None, scale: Any = None,
) -> Any:  # fmt: skip
    return _product(grad, lambda a, b, c: torch.softmax(_scores(a, b, is_causal, attn_mask, scale), -1) @ c, q, k, v)


@interprets("_segment_reduce_backward", arguments="host")
def _segment_reduce(
    grad: Host, output: Host, data: Host, reduce: str, *, lengths: Any = None, offsets: Any = None, axis: int = 0,
    initial: Any = None,
) -> Host:  # fmt: skip
    x, found = data.array, np.zeros_like(data.array)
    if offsets is not None:
        bounds = offsets.array
    else:
        counts = lengths.array
        bounds = np.concatenate([np.zeros((*counts.shape[:-1], 1), np.int64), np.cumsum(counts, -1)], -1)
    for lead in np.ndindex(*x.shape[:axis]):
        for segment, (start, end) in enumerate(zip(bounds[lead], bounds[lead][1:], strict=False)):
            part, g = x[lead][start:end], grad.array[(*lead, segment)]
            if not len(part):
                continue
            if reduce in ("sum", "mean"):
                slope = np.broadcast_to(g / (len(part) if reduce == "mean" else 1), part.shape)
            elif reduce == "prod":
                slope = g * output.array[(*lead, segment)] / part
            else:
                same = part == output.array[(*lead, segment)]
                slope = g * same / np.maximum(1, same.sum(0))
            found[lead][start:end] = slope
    return Host(found, data.dtype)


@interprets("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def _ctc_loss(
    grad: Array, log_probs: Array, targets: Array, input_lengths: Any, target_lengths: Any, loss: Array, alpha: Array,
    blank: int, zero_infinity: bool = False,
) -> Array:  # fmt: skip
    classes = log_probs.shape[-1]
    inputs, wanted = np.asarray(input_lengths).tolist(), np.asarray(target_lengths).tolist()
    found = np.zeros_like(log_probs)
    for n, extended in enumerate(windows.between_blanks(targets, wanted, blank)):
        if (zero_infinity and np.isinf(loss[n])) or not inputs[n]:
            continue
        count, last = len(extended), inputs[n] - 1
        beta = np.full((inputs[n], count), -np.inf)
        for t in range(last, -1, -1):
            for s, label in enumerate(extended):
                if t == last:
                    after = 0.0 if s >= count - 2 else -np.inf
                else:
                    after = beta[t + 1, s]
                    if s + 1 < count:
                        after = np.logaddexp(after, beta[t + 1, s + 1])
                    if s + 2 < count and label != blank and extended[s + 2] != label:
                        after = np.logaddexp(after, beta[t + 1, s + 2])
                beta[t, s] = after + log_probs[t, n, label]
        for t in range(inputs[n]):
            sums = np.full(classes, -np.inf)
            for s, label in enumerate(extended):
                sums[label] = np.logaddexp(sums[label], alpha[n, t, s] + beta[t, s])
            found[t, n] = (np.exp(log_probs[t, n]) - np.exp(sums + loss[n] - log_probs[t, n])) * grad[n]
    return found


def _bags(indices: Host, offsets: Host, count: int) -> Array:
    places = np.arange(indices.array.size)
    return np.searchsorted(offsets.array[:count], places, "right") - 1


@interprets("_embedding_bag_per_sample_weights_backward", arguments="host")
def _bag_weights(
    grad: Host, weight: Host, indices: Host, offsets: Host, bag: Host, mode: int, padding_idx: int = -1
) -> Host:
    rows = indices.array.reshape(-1)
    found = (grad.array[_bags(indices, offsets, len(grad.array))] * weight.array[rows]).sum(-1)
    return Host(np.where(rows == padding_idx, 0, found), grad.dtype)


@interprets("_embedding_bag_backward", "_embedding_bag_dense_backward", arguments="host")
def _bag_backward(
    grad: Host, indices: Host, offsets: Host, bag: Host, sizes: Host, largest: Host, rows: int, by_frequency: bool,
    mode: int,
    *more: Any, **named: Any,
) -> Host:  # fmt: skip
    weights = next((each for each in (*more, *named.values()) if isinstance(each, Host)), None)
    padding_idx = named.get(
        "padding_idx", more[-1] if more and isinstance(more[-1], int) and not isinstance(more[-1], bool) else -1
    )
    flat = indices.array.reshape(-1)
    bags = _bags(indices, offsets, len(grad.array))
    found = np.zeros((rows, grad.array.shape[1]), grad.array.dtype)
    kept = flat != padding_idx
    counts = np.bincount(bags[kept], minlength=len(grad.array))
    often = np.bincount(flat, minlength=rows)
    if mode == 2:
        columns = np.arange(found.shape[1])
        for bag in np.flatnonzero(counts):
            np.add.at(found, (largest.array[bag], columns), grad.array[bag])
        return Host(found, grad.dtype)
    for place in np.flatnonzero(kept):
        g = grad.array[bags[place]]
        g = g / counts[bags[place]] if mode == 1 else g
        g = g if weights is None else g * weights.array[place]
        found[flat[place]] += g / often[flat[place]] if by_frequency else g
    return Host(found, grad.dtype)


@interprets("linalg_lstsq", arguments="host")
def _lstsq(a: Host, b: Host, rcond: Any = None, *, driver: Any = None) -> Any:
    y = b.array[..., None] if b.dim() == a.dim() - 1 else b.array
    found = np.linalg.pinv(a.array) @ y
    squares = (np.abs(a.array @ found - y) ** 2).sum(-2)
    found = found[..., 0] if b.dim() == a.dim() - 1 else found
    none = Host(np.zeros(0), a.dtype)
    rest = none
    if driver not in (None, "gelsy") and a.shape[-2] > a.shape[-1]:
        real = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(a.dtype, a.dtype)
        rest = Host(squares, real)
    return Host(found, b.dtype), rest, Host(np.zeros(0, np.int64), torch.int64), none


@interprets("glu_jvp", arguments="host")
def _glu_tangent(glu: Host, x: Host, dx: Host, dim: int) -> Host:
    gate = np.split(x.array, 2, dim)[1]
    open_by = 1 / (1 + np.exp(-gate))
    da, dgate = np.split(dx.array, 2, dim)
    return Host(da * open_by + glu.array * (1 - open_by) * dgate, x.dtype)


@interprets("_efficientzerotensor", arguments="host")
def _zeros(size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return torch.zeros(tuple(size), dtype=dtype)


@interprets("_unique", arguments="host")
def _unique(x: Host, sorted: bool = True, return_inverse: bool = False) -> Any:
    values, inverse = np.unique(x.array, return_inverse=True)
    return Host(values, x.dtype), Host(inverse.reshape(x.array.shape).astype(np.int64), torch.int64)
