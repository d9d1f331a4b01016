"""Convolutions in one, two and three dimensions and their gradients, exactly, on whole numbers.

The numbers are so small that each sum of products is exact in the type, so an algorithm that only multiplies and adds
must be exact. Transform algorithms (Winograd, FFT) multiply by fractions: on a GPU, cases of 16-bit types and float32
are within the bound of rounding theory, to which such algorithms may add a factor of 32. On the CPU they are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from .convolution import Form, adjoint_of_input, adjoint_of_weights, correlate
from .oracle import Array, accumulator, allowance, assert_equal, assert_within, numbers, reals, tensor, types, unit

CONVOLVE: dict[int, Callable[..., torch.Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Callable[..., torch.Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}
DIMS = pytest.mark.parametrize("dims", [1, 2, 3], ids=["1d", "2d", "3d"])
TYPE = types(torch.float64, torch.float32, torch.float16, torch.bfloat16)


PLAIN = Form()


@dataclass(frozen=True, slots=True)
class Layer:
    """The sizes of a convolution: inputs, channels, outputs; edges of input and kernel; its arguments."""

    batch: int
    channels: int
    outputs: int
    size: int
    kernel: int
    form: Form = PLAIN

    def shapes(self, dims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        # Edges differ, so that no two dimensions can be confused.
        sizes = tuple(self.size + number for number in range(dims))
        kernels = tuple(max(1, self.kernel - number) for number in range(dims))
        per_group = self.channels // self.form.groups
        return (self.batch, self.channels, *sizes), (self.outputs, per_group, *kernels)


LAYERS = {
    "plain": Layer(2, 3, 4, 7, 3),
    "pointwise": Layer(2, 16, 8, 5, 1),
    "padding": Layer(2, 3, 5, 6, 3, Form(padding=1)),
    "wide_padding": Layer(1, 2, 3, 5, 4, Form(padding=3)),
    "stride": Layer(2, 3, 4, 9, 3, Form(stride=2)),
    "stride_padding": Layer(2, 4, 3, 8, 3, Form(stride=2, padding=1)),
    "stride_three": Layer(1, 3, 2, 11, 2, Form(stride=3)),
    "dilation": Layer(2, 3, 4, 9, 3, Form(dilation=2)),
    "groups": Layer(2, 6, 4, 6, 3, Form(padding=1, groups=2)),
    "depthwise": Layer(2, 5, 5, 7, 3, Form(padding=1, groups=5)),
    "depthwise_twice": Layer(1, 4, 8, 6, 2, Form(groups=4)),
    "all": Layer(2, 4, 6, 11, 3, Form(stride=2, padding=2, dilation=2, groups=2)),
    "large_kernel": Layer(1, 2, 2, 9, 7, Form(padding=3)),
    "channels": Layer(2, 33, 17, 4, 3, Form(padding=1)),
}
LAYER = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())


def small(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    """Return whole numbers, so few and small for narrow types that no sum of a layer has too many digits."""
    if dtype.itemsize > 2:
        return rng.integers(-7, 8, shape).astype(np.float64)
    return rng.choice([-1.0, 0.0, 0.0, 0.0, 1.0], shape)


def assert_sum(found: torch.Tensor, expected: Array, sizes: Array, terms: int) -> None:
    """Check sums of products: exactly, or within their bound for types that a GPU may transform."""
    dtype = found.dtype
    if found.device.type != "cuda" or dtype == torch.float64:
        assert_equal(found, expected)
        return
    assert_within(found, expected, 32 * terms * unit(accumulator(dtype)) * sizes + unit(dtype) * np.abs(expected))


@DIMS
@LAYER
@TYPE
def test_convolution_and_its_gradients_of_whole_numbers(
    device: torch.device, rng: np.random.Generator, dims: int, layer: Layer, dtype: torch.dtype
) -> None:
    """A convolution with a bias, and its gradients with respect to input, weights and bias, are exact sums."""
    shape, kernel = layer.shapes(dims)
    a, w, bias = small(rng, shape, dtype), small(rng, kernel, dtype), small(rng, (layer.outputs,), dtype)
    form = layer.form
    expected = correlate(a, w, form)
    y = small(rng, expected.shape, dtype)
    leaves = [tensor(each, dtype, device).requires_grad_() for each in (a, w, bias)]
    options = {"stride": form.stride, "padding": form.padding, "dilation": form.dilation, "groups": form.groups}

    found = CONVOLVE[dims](*leaves, **options)
    found.backward(tensor(y, dtype, device))

    terms = int(np.prod(kernel[1:])) + 1
    across = (layer.outputs, *([1] * dims))
    assert_sum(
        found,
        expected + bias.reshape(across),
        correlate(*map(np.abs, (a, w)), form) + np.abs(bias.reshape(across)),
        terms,
    )
    gradients = [leaf.grad for leaf in leaves]
    assert_sum(gradients[0], *_both(adjoint_of_input, y, w, shape, form), terms=terms * layer.outputs)
    assert_sum(gradients[1], *_both(adjoint_of_weights, a, y, kernel, form), terms=y[:, 0].size)
    axes = (0, *range(2, 2 + dims))
    assert_sum(gradients[2], y.sum(axes), np.abs(y).sum(axes), terms=y[:, 0].size)


def _both(function: Callable[..., Array], a: Array, b: Array, *others: Any) -> tuple[Array, Array]:
    """Return a sum of products, and the sum of their magnitudes."""
    return function(a, b, *others), function(np.abs(a), np.abs(b), *others)


@DIMS
@pytest.mark.parametrize(
    "layer", [LAYERS[each] for each in ("plain", "channels", "all")], ids=["plain", "channels", "all"]
)
@types(torch.float64, torch.float32, torch.float16, torch.bfloat16)
def test_convolution_of_reals_is_within_the_bound(
    device: torch.device, rng: np.random.Generator, dims: int, layer: Layer, dtype: torch.dtype
) -> None:
    """A convolution of normal numbers is within the bound of its type; a narrower type would exceed it."""
    shape, kernel = layer.shapes(dims)
    x, w = reals(rng, shape, dtype), reals(rng, kernel, dtype)
    a, b, form = numbers(x), numbers(w), layer.form

    found = CONVOLVE[dims](
        x.to(device), w.to(device), stride=form.stride, padding=form.padding, dilation=form.dilation, groups=form.groups
    )

    factor = 32 if device.type == "cuda" else 1
    bound = factor * allowance(dtype, int(np.prod(kernel[1:])))
    assert_within(found, correlate(a, b, form), bound * correlate(np.abs(a), np.abs(b), form))


@DIMS
@pytest.mark.parametrize("output_padding", [0, 1])
@pytest.mark.parametrize("layer", ["plain", "stride", "stride_padding", "groups", "all", "stride_three"])
@types(torch.float64, torch.float32, torch.bfloat16)
def test_transposed_convolution_is_the_adjoint(
    device: torch.device,
    rng: np.random.Generator,
    dims: int,
    layer: str,
    output_padding: int,
    dtype: torch.dtype,
) -> None:
    """`conv_transpose` is the adjoint of the convolution with the same arguments, which is its gradient."""
    given = LAYERS[layer]
    form = given.form
    if output_padding >= max(form.stride, form.dilation):
        output_padding = 0
    shape, kernel = given.shapes(dims)
    shrunk = tuple(form.outputs(size, k) for size, k in zip(shape[2:], kernel[2:], strict=True))
    full = tuple(
        (size - 1) * form.stride - 2 * form.padding + form.dilation * (k - 1) + output_padding + 1
        for size, k in zip(shrunk, kernel[2:], strict=True)
    )
    y, w = small(rng, (given.batch, given.outputs, *shrunk), dtype), small(rng, kernel, dtype)
    x = tensor(y, dtype, device).requires_grad_()

    found = TRANSPOSED[dims](
        x,
        tensor(w, dtype, device),
        stride=form.stride,
        padding=form.padding,
        output_padding=output_padding,
        groups=form.groups,
        dilation=form.dilation,
    )
    outer = (given.batch, given.channels, *full)
    sent = small(rng, outer, dtype)
    found.backward(tensor(sent, dtype, device))

    terms = int(np.prod(kernel))
    assert_sum(found, *_both(adjoint_of_input, y, w, outer, form), terms=terms)
    assert x.grad is not None
    assert_sum(x.grad, *_both(correlate, sent, w, form), terms=terms)


PAD = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@DIMS
@pytest.mark.parametrize("mode", PAD)
@pytest.mark.types("float64")
def test_convolution_with_each_padding_mode(
    device: torch.device, rng: np.random.Generator, dims: int, mode: str
) -> None:
    """`padding_mode` extends the input as documented: with zeros, mirrored, repeated, or with the opposite end."""
    kind = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[dims - 1]
    layer: Any = kind(3, 4, 3, padding=2, padding_mode=mode, bias=False, dtype=torch.float64, device=device)
    shape = (2, 3, *range(5, 5 + dims))
    a, w = (rng.integers(-7, 8, each).astype(np.float64) for each in (shape, (4, 3, *[3] * dims)))
    options: dict[str, Any] = {"mode": PAD[mode]}
    around = np.pad(a, [(0, 0), (0, 0), *[(2, 2)] * dims], **options)

    with torch.no_grad():
        layer.weight.copy_(tensor(w, torch.float64, device))
        found = layer(tensor(a, torch.float64, device))

    assert_equal(found, correlate(around, w, Form()))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@DIMS
@pytest.mark.parametrize("kernel", [1, 3, 4, 5])
@pytest.mark.types("float64")
def test_convolution_same_padding(device: torch.device, rng: np.random.Generator, dims: int, kernel: int) -> None:
    """`padding="same"` keeps the size, with the odd zero at the end; `"valid"` adds no padding."""
    a, w = rng.integers(-7, 8, (2, 3, *[9] * dims)) * 1.0, rng.integers(-7, 8, (2, 3, *[kernel] * dims)) * 1.0
    x, weights = tensor(a, torch.float64, device), tensor(w, torch.float64, device)
    total = kernel - 1
    around = np.pad(a, [(0, 0), (0, 0), *[(total // 2, total - total // 2)] * dims])

    assert_equal(CONVOLVE[dims](x, weights, padding="same"), correlate(around, w, Form()))
    assert_equal(CONVOLVE[dims](x, weights, padding="valid"), correlate(a, w, Form()))


@pytest.mark.parametrize("dims", [2, 3], ids=["2d", "3d"])
@pytest.mark.parametrize("layer", ["padding", "depthwise", "stride_padding", "channels", "groups"])
@types(torch.float64, torch.float32, torch.bfloat16)
def test_convolution_in_channels_last(
    device: torch.device, rng: np.random.Generator, dims: int, layer: str, dtype: torch.dtype
) -> None:
    """With channels last, results and gradients are the same numbers."""
    given = LAYERS[layer]
    shape, kernel = given.shapes(dims)
    form, order = given.form, {2: torch.channels_last, 3: torch.channels_last_3d}[dims]
    a, w = small(rng, shape, dtype), small(rng, kernel, dtype)
    x = tensor(a, dtype, device).to(memory_format=order).requires_grad_()
    weights = tensor(w, dtype, device).to(memory_format=order)

    found = CONVOLVE[dims](x, weights, stride=form.stride, padding=form.padding, groups=form.groups)
    y = small(rng, tuple(found.shape), dtype)
    found.backward(tensor(y, dtype, device).to(memory_format=order))

    terms = int(np.prod(kernel))
    assert_sum(found, *_both(correlate, a, w, form), terms=terms)
    assert x.grad is not None
    assert_sum(x.grad, *_both(adjoint_of_input, y, w, shape, form), terms=terms)


@pytest.mark.requires(any=[{"device": "cuda"}, {"not_": {"accelerator": True}}])
def test_conv2d_of_channels_last_is_channels_last(device: torch.device) -> None:
    """A two-dimensional float32 convolution of images in channels last returns images in channels last."""
    x = torch.ones(2, 3, 5, 5, device=device).to(memory_format=torch.channels_last)
    weights = torch.ones(4, 3, 2, 2, device=device)

    assert F.conv2d(x, weights).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", ["sliced", "transposed", "expanded"])
def test_convolution_of_strided_inputs(device: torch.device, rng: np.random.Generator, layout: str) -> None:
    """Views with gaps, in another order or with a stride of zero give the same sums."""
    a, w = rng.integers(-7, 8, (4, 3, 8, 8)) * 1.0, rng.integers(-7, 8, (5, 3, 3, 3)) * 1.0
    x = tensor(a, torch.float32, device)
    if layout == "sliced":
        x, a = x[::2, :, 1:, ::2], a[::2, :, 1:, ::2]
    elif layout == "transposed":
        x, a = x.transpose(2, 3), a.swapaxes(2, 3)
    else:
        x, a = x[:1].expand(4, 3, 8, 8), np.broadcast_to(a[:1], (4, 3, 8, 8))

    found = F.conv2d(x, tensor(w, torch.float32, device))

    assert_sum(found, *_both(correlate, a, w, Form()), terms=28)


#: Layers of known networks, with sizes that fill a chip.
FULL = {
    "resnet_stem": Layer(32, 3, 64, 224, 7, Form(stride=2, padding=3)),
    "resnet_block": Layer(64, 128, 128, 28, 3, Form(padding=1)),
    "odd_channels": Layer(17, 131, 67, 37, 3, Form(padding=1)),
    "grouped": Layer(16, 256, 256, 14, 3, Form(padding=1, groups=32)),
}


@pytest.mark.requires(silicon=True, free_memory=">=6GiB")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("layer", FULL.values(), ids=FULL.keys())
@types(torch.float32, torch.float16, torch.bfloat16)
def test_convolution_of_a_full_size(
    device: torch.device, rng: np.random.Generator, layer: Layer, dtype: torch.dtype
) -> None:
    """Layers that occupy a whole GPU, in both layouts, and their gradients are within the bound of their sums."""
    shape, kernel = layer.shapes(2)
    a, w, form = small(rng, shape, dtype), small(rng, kernel, dtype), layer.form
    expected, sizes = _both(correlate, a, w, form)
    y = small(rng, expected.shape, dtype)
    terms = int(np.prod(kernel[1:]))
    into, over = _both(adjoint_of_input, y, w, shape, form), _both(adjoint_of_weights, a, y, kernel, form)

    for order in (torch.contiguous_format, torch.channels_last):
        x = tensor(a, dtype, device).to(memory_format=order).requires_grad_()
        weights = tensor(w, dtype, device).to(memory_format=order).requires_grad_()
        found = F.conv2d(x, weights, stride=form.stride, padding=form.padding, groups=form.groups)
        found.backward(tensor(y, dtype, device))
        assert_sum(found, expected, sizes, terms)
        assert x.grad is not None
        assert weights.grad is not None
        assert_sum(x.grad, *into, terms=terms * layer.outputs)
        assert_sum(weights.grad, *over, terms=y[:, 0].size)
