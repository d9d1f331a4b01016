"""Pooling, resampling, normalization by window, and samples from a grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from .formats import Array
from .interpreter import interprets


def _all(values: Any, count: int, default: Any = None) -> list[int]:
    values = [values] if isinstance(values, int) else list(values)
    if not values:
        return list(default)
    return values * count if len(values) == 1 else values


def _out(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    spare = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-spare // stride) if ceil else spare // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + padding else count


def _lead(x: Array, count: int) -> tuple[Array, tuple[int, ...]]:
    lead = x.shape[: x.ndim - count]
    return x.reshape(math.prod(lead), *x.shape[x.ndim - count :]), lead


def _rows(part: Array) -> Array:
    return part.reshape(len(part), math.prod(part.shape[1:]))


def _largest(flat: Array, numbers: Array, window: tuple[Any, ...]) -> tuple[Array, Array]:
    """Return the largest element of a window in each row of `flat`, and its number."""
    part = _rows(flat[(slice(None), *window)])
    chosen = np.argmax(part, 1)
    return part[np.arange(len(flat)), chosen], numbers[window].reshape(-1)[chosen]


def _max_pool(
    count: int, x: Array, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    kernel = _all(kernel, count)
    stride, padding, dilation = _all(stride, count, kernel), _all(padding, count), _all(dilation, count)
    size = x.shape[-count:]
    flat, lead = _lead(x, count)
    out = [_out(*each, ceil) for each in zip(size, kernel, stride, padding, dilation, strict=True)]
    values, places = np.empty((len(flat), *out), x.dtype), np.empty((len(flat), *out), np.int64)
    numbers = np.arange(math.prod(size)).reshape(size)
    for place in itertools.product(*map(range, out)):
        window = []
        for p, s, pad, d, k, n in zip(place, stride, padding, dilation, kernel, size, strict=True):
            start = p * s - pad
            window.append([each for each in range(start, start + d * (k - 1) + 1, d) if 0 <= each < n])
        values[(slice(None), *place)], places[(slice(None), *place)] = _largest(flat, numbers, np.ix_(*window))
    return values.reshape(*lead, *out), places.reshape(*lead, *out)


interprets("max_pool2d_with_indices")(lambda *given, **named: _max_pool(2, *given, **named))
interprets("max_pool3d_with_indices")(lambda *given, **named: _max_pool(3, *given, **named))


def _to_places(grad: Array, x: Array, places: Array, count: int) -> Array:
    found = np.zeros((math.prod(x.shape[: x.ndim - count]), math.prod(x.shape[-count:])), grad.dtype)
    rows = np.arange(len(found))[:, None]
    if found.size:
        np.add.at(found, (rows, places.reshape(len(found), -1)), grad.reshape(len(found), -1))
    return found.reshape(x.shape)


interprets("max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward", "fractional_max_pool2d_backward")(
    lambda grad, x, *given: _to_places(grad, x, given[-1], 2)
)
interprets("max_pool3d_with_indices_backward", "adaptive_max_pool3d_backward", "fractional_max_pool3d_backward")(
    lambda grad, x, *given: _to_places(grad, x, given[-1], 3)
)


def _windows(
    count: int, size: Sequence[int], kernel: Any, stride: Any, padding: Any, ceil: bool, padded: bool, divisor: Any
) -> Any:
    """Yield each window of an average: its place, its part of the input, and the divisor of its sum."""
    out = [_out(n, k, s, p, 1, ceil) for n, k, s, p in zip(size, kernel, stride, padding, strict=True)]
    for place in itertools.product(*map(range, out)):
        window, area = [], 1
        for p, s, pad, k, n in zip(place, stride, padding, kernel, size, strict=True):
            start = p * s - pad
            end = min(start + k, n + pad)
            window.append(slice(max(0, start), min(end, n)))
            area *= end - start
        inner = math.prod(max(0, each.stop - each.start) for each in window)
        yield place, tuple(window), divisor or (area if padded else inner)


def _average(count: int, kernel: Any, stride: Any, padding: Any) -> tuple[list[int], list[int], list[int]]:
    kernel = _all(kernel, count)
    return kernel, _all(stride, count, kernel), _all(padding, count)


def _avg_pool(
    count: int, x: Array, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Array:  # fmt: skip
    kernel, stride, padding = _average(count, kernel_size, stride, padding)
    flat, lead = _lead(x, count)
    size = x.shape[-count:]
    out = [_out(n, k, s, p, 1, ceil_mode) for n, k, s, p in zip(size, kernel, stride, padding, strict=True)]
    found = np.empty((len(flat), *out), x.dtype)
    for place, window, divisor in _windows(
        count, size, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    ):
        found[(slice(None), *place)] = _rows(flat[(slice(None), *window)]).sum(1) / divisor
    return found.reshape(*lead, *out)


def _avg_pool_backward(
    count: int, grad: Array, x: Array, kernel: Any, stride: Any, padding: Any, ceil: bool, padded: bool, override: Any
) -> Array:
    kernel, stride, padding = _average(count, kernel, stride, padding)
    flat, _ = _lead(grad, count)
    size = x.shape[-count:]
    found = np.zeros((len(flat), *size), grad.dtype)
    for place, window, divisor in _windows(count, size, kernel, stride, padding, ceil, padded, override):
        each = flat[(slice(None), *place)] / divisor
        found[(slice(None), *window)] += each.reshape(-1, *[1] * count)
    return found.reshape(x.shape)


interprets("avg_pool1d")(lambda *given, **named: _avg_pool(1, *given, **named))
interprets("avg_pool2d")(lambda *given, **named: _avg_pool(2, *given, **named))
interprets("avg_pool3d")(lambda *given, **named: _avg_pool(3, *given, **named))
interprets("avg_pool2d_backward")(lambda *given: _avg_pool_backward(2, *given))
interprets("avg_pool3d_backward")(lambda *given: _avg_pool_backward(3, *given))


def _parts(size: int, out: int) -> list[slice]:
    return [slice(place * size // out, -(-(place + 1) * size // out)) for place in range(out)]


def _adaptive(count: int, x: Array, out: Any, *, best: bool) -> Any:
    out = _all(out, count)
    flat, lead = _lead(x, count)
    size = x.shape[-count:]
    values, places = np.empty((len(flat), *out), x.dtype), np.empty((len(flat), *out), np.int64)
    numbers = np.arange(math.prod(size)).reshape(size)
    for place in itertools.product(*map(range, out)):
        window = tuple(_parts(n, o)[p] for n, o, p in zip(size, out, place, strict=True))
        if best:
            values[(slice(None), *place)], places[(slice(None), *place)] = _largest(flat, numbers, window)
        else:
            values[(slice(None), *place)] = _rows(flat[(slice(None), *window)]).mean(1)
    values = values.reshape(*lead, *out)
    return (values, places.reshape(*lead, *out)) if best else values


def _adaptive_backward(count: int, grad: Array, x: Array) -> Array:
    flat, _ = _lead(grad, count)
    size, out = x.shape[-count:], grad.shape[-count:]
    found = np.zeros((len(flat), *size), grad.dtype)
    for place in itertools.product(*map(range, out)):
        window = tuple(_parts(n, o)[p] for n, o, p in zip(size, out, place, strict=True))
        area = math.prod(each.stop - each.start for each in window)
        found[(slice(None), *window)] += (flat[(slice(None), *place)] / area).reshape(-1, *[1] * count)
    return found.reshape(x.shape)


interprets("_adaptive_avg_pool2d", "adaptive_avg_pool2d")(lambda x, out: _adaptive(2, x, out, best=False))
interprets("_adaptive_avg_pool3d", "adaptive_avg_pool3d")(lambda x, out: _adaptive(3, x, out, best=False))
interprets("adaptive_max_pool2d")(lambda x, out: _adaptive(2, x, out, best=True))
interprets("adaptive_max_pool3d")(lambda x, out: _adaptive(3, x, out, best=True))
interprets("_adaptive_avg_pool2d_backward")(lambda grad, x: _adaptive_backward(2, grad, x))
interprets("_adaptive_avg_pool3d_backward")(lambda grad, x: _adaptive_backward(3, grad, x))


def _fractional(count: int, x: Array, kernel: Any, out: Any, samples: Array) -> Any:
    kernel, out = _all(kernel, count), _all(out, count)
    flat, lead = _lead(x, count)
    size = x.shape[-count:]
    channels = lead[-1]
    numbers = np.arange(math.prod(size)).reshape(size)
    values, places = np.empty((len(flat), *out), x.dtype), np.empty((len(flat), *out), np.int64)
    for row in range(len(flat)):
        drawn = samples.reshape(-1, channels, count)[row // channels, row % channels]
        drawn = drawn[::-1] if count == 2 else drawn  # width comes first in two dimensions, and last in three
        starts = [_intervals(drawn[d], size[d], out[d], kernel[d]) for d in range(count)]
        for place in itertools.product(*map(range, out)):
            window = tuple(slice(starts[d][p], starts[d][p] + kernel[d]) for d, p in enumerate(place))
            part = flat[(row, *window)].reshape(-1)
            values[(row, *place)] = part.max()
            places[(row, *place)] = numbers[window].reshape(-1)[int(np.argmax(part))]
    return values.reshape(*lead, *out), places.reshape(*lead, *out)


def _intervals(sample: float, size: int, out: int, kernel: int) -> list[int]:
    if out == 1:
        return [size - kernel]
    alpha = (size - kernel) / (out - 1)
    return [int((each + sample) * alpha) - int(sample * alpha) for each in range(out - 1)] + [size - kernel]


interprets("fractional_max_pool2d")(lambda x, kernel, out, samples: _fractional(2, x, kernel, out, samples))
interprets("fractional_max_pool3d")(lambda x, kernel, out, samples: _fractional(3, x, kernel, out, samples))


def _cubic(x: float) -> float:
    a, x = -0.5, abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _resample(size: int, out: int, align: bool, scale: Any, filter_: Any, support: float) -> Array:
    """Return the matrix of an antialiased interpolation along one dimension."""
    ratio = ((size - 1) / (out - 1) if out > 1 else 0.0) if align else (1 / scale if scale else size / out)
    stretch = max(1.0, ratio)
    matrix = np.zeros((out, size))
    for place in range(out):
        center = ratio * (place + 0.5)
        low = max(0, int(center - support * stretch + 0.5))
        high = min(size, int(center + support * stretch + 0.5))
        for each in range(low, high):
            matrix[place, each] = filter_((each - center + 0.5) / stretch)
        total = matrix[place].sum()
        matrix[place] /= total if total else 1
    return matrix


def _smoothed(x: Array, out: Any, align: bool, scales_h: Any, scales_w: Any, filter_: Any, support: float) -> Array:
    rows = _resample(x.shape[2], out[0], align, scales_h, filter_, support)
    columns = _resample(x.shape[3], out[1], align, scales_w, filter_, support)
    return np.einsum("hi,ncij,wj->nchw", rows, x, columns)


def _triangle(x: float) -> float:
    return max(0.0, 1 - abs(x))


interprets("_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa.default")(
    lambda x, out, align, scales_h=None, scales_w=None: _smoothed(x, out, align, scales_h, scales_w, _triangle, 1.0)
)
interprets("_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa.default")(
    lambda x, out, align, scales_h=None, scales_w=None: _smoothed(x, out, align, scales_h, scales_w, _cubic, 2.0)
)


@interprets("_upsample_bilinear2d_aa_backward")
def _smoothed_backward(
    grad: Array, out: Any, size: Any, align: bool, scales_h: Any = None, scales_w: Any = None
) -> Array:
    rows = _resample(size[2], out[0], align, scales_h, _triangle, 1.0)
    columns = _resample(size[3], out[1], align, scales_w, _triangle, 1.0)
    return np.einsum("hi,nchw,wj->ncij", rows, grad, columns)


def _place(x: torch.Tensor, size: int, padding: int, align: bool) -> torch.Tensor:
    """Return the position in the input for a coordinate in [-1, 1]."""
    x = (x + 1) / 2 * (size - 1) if align else ((x + 1) * size - 1) / 2
    if padding == 1:
        return x.clamp(0, size - 1)
    if padding == 2:
        low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
        if span <= 0:
            return torch.zeros_like(x)
        x = (x - low).abs()
        turns = torch.floor(x / span)
        rest = x - turns * span
        x = torch.where(turns % 2 == 0, rest + low, span - rest + low)
        return x.clamp(0, size - 1)
    return x


@interprets("grid_sampler_3d", arguments="host")
def grid_sampler_3d(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align: bool) -> torch.Tensor:
    """Return the sum over the eight corners, in operators that have derivatives."""
    places = [_place(grid[..., each], x.shape[-1 - each], padding, align) for each in range(3)][::-1]
    batch = torch.arange(x.shape[0]).view(-1, 1, 1, 1)
    found: Any = 0
    for corner in itertools.product(*([(0,)] * 3 if mode == 1 else [(0, 1)] * 3)):
        weight: Any = 1
        inside: Any = True
        index = []
        for place, step, size in zip(places, corner, x.shape[2:], strict=True):
            low = torch.round(place) if mode == 1 else torch.floor(place)
            weight = weight * (1 if mode == 1 else place - low if step else 1 - (place - low))
            at = low + step
            inside = inside & (at >= 0) & (at < size)
            index.append(at.clamp(0, size - 1).to(torch.int64))
        weight = torch.where(inside, weight, 0.0)
        found = found + x[batch, :, index[0], index[1], index[2]] * weight.unsqueeze(-1)
    return found.permute(0, 4, 1, 2, 3)


def between_blanks(targets: Array, lengths: Sequence[int], blank: int) -> Iterator[list[int]]:
    """Yield the labels of each sequence, with a blank before, between and after them."""
    start = 0
    for number, length in enumerate(lengths):
        labels = targets[number, :length] if targets.ndim == 2 else targets[start : start + length]
        start += length
        extended = [blank]
        for each in labels.tolist():
            extended += [each, blank]
        yield extended


@interprets("_ctc_loss", "_ctc_loss.Tensor")
def _ctc_loss(
    log_probs: Array,
    targets: Array,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    steps, batch, _ = log_probs.shape
    inputs, wanted = np.asarray(input_lengths).tolist(), np.asarray(target_lengths).tolist()
    longest = max(wanted, default=0)
    alpha = np.full((batch, steps, 2 * longest + 1), -np.inf)
    losses = np.empty(batch)
    for n, extended in enumerate(between_blanks(targets, wanted, blank)):
        for t in range(inputs[n]):
            for s, label in enumerate(extended):
                if t == 0:
                    before = 0.0 if s < 2 else -np.inf
                else:
                    before = alpha[n, t - 1, s]
                    if s > 0:
                        before = np.logaddexp(before, alpha[n, t - 1, s - 1])
                    if s > 1 and label != blank and label != extended[s - 2]:
                        before = np.logaddexp(before, alpha[n, t - 1, s - 2])
                alpha[n, t, s] = before + log_probs[t, n, label]
        last = (
            alpha[n, inputs[n] - 1, : len(extended)] if inputs[n] else np.where(len(extended) == 1, 0.0, -np.inf)[None]
        )
        losses[n] = -np.logaddexp.reduce(last[-2:])
    return losses, alpha
