"""torch's own convolutions by name, which libraries replace where they can, and interpolation with a filter.

Whole numbers are so small that each sum is exact in the type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ._torch_private import aten
from .convolution import Form, adjoint_of_input, correlate
from .oracle import Array, allowance, assert_equal, assert_within, name, numbers, tensor, types, unit

TYPE = types(torch.float32, torch.float64)
FORMS = {
    "plain": Form(),
    "dilation": Form(dilation=2),
    "all": Form(stride=2, padding=2, dilation=2),
}
FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
DIMS = pytest.mark.parametrize("dims", [2, 3], ids=["2d", "3d"])


def _whole(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-5, 6, shape).astype(np.float64)


def _edges(first: int, dims: int) -> tuple[int, ...]:
    return tuple(first + number for number in range(dims))


def _plus(values: Array, bias: Array | None) -> Array:
    return values if bias is None else values + bias.reshape(1, -1, *[1] * (values.ndim - 2))


@pytest.mark.operator("slow_conv_dilated2d", "slow_conv_dilated3d")
@DIMS
@FORM
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no_bias"])
@TYPE
def test_slow_conv_dilated(
    device: torch.device, rng: np.random.Generator, dims: int, form: Form, biased: bool, dtype: torch.dtype
) -> None:
    """`slow_conv_dilated` is a convolution with dilation."""
    kernel = _edges(2, dims)
    x, w, b = _whole(rng, 2, 3, *_edges(7, dims)), _whole(rng, 4, 3, *kernel), _whole(rng, 4)
    found = aten(f"slow_conv_dilated{dims}d.default")(
        tensor(x, dtype, device), tensor(w, dtype, device), kernel, tensor(b, dtype, device) if biased else None,
        [form.stride] * dims, [form.padding] * dims, [form.dilation] * dims,
    )  # fmt: skip
    assert_equal(found, _plus(correlate(x, w, form), b if biased else None))


@pytest.mark.operator("slow_conv_transpose2d", "slow_conv_transpose3d")
@DIMS
@FORM
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no_bias"])
@TYPE
def test_slow_conv_transpose(
    device: torch.device, rng: np.random.Generator, dims: int, form: Form, biased: bool, dtype: torch.dtype
) -> None:
    """`slow_conv_transpose` is a transposed convolution, including the outputs that its stride omits."""
    kernel, sizes = _edges(2, dims), _edges(5, dims)
    extra = form.stride - 1
    y, w, b = _whole(rng, 2, 3, *sizes), _whole(rng, 3, 4, *kernel), _whole(rng, 4)
    shape = tuple(
        (size - 1) * form.stride - 2 * form.padding + form.dilation * (k - 1) + extra + 1
        for size, k in zip(sizes, kernel, strict=True)
    )
    found = aten(f"slow_conv_transpose{dims}d.default")(
        tensor(y, dtype, device), tensor(w, dtype, device), kernel, tensor(b, dtype, device) if biased else None,
        [form.stride] * dims, [form.padding] * dims, [extra] * dims, [form.dilation] * dims,
    )  # fmt: skip
    assert_equal(found, _plus(adjoint_of_input(y, w, (2, 4, *shape), form), b if biased else None))


#: CUDA has no `slow_conv3d_forward`.
DIMS_OF_SLOW = pytest.mark.parametrize(
    "dims", [2, pytest.param(3, marks=pytest.mark.requires(not_={"device": "cuda"}))], ids=["2d", "3d"]
)


@pytest.mark.operator("_slow_conv2d_forward", "slow_conv3d_forward")
@DIMS_OF_SLOW
@pytest.mark.parametrize("form", [FORMS["plain"], Form(stride=2, padding=1)], ids=["plain", "stride"])
@TYPE
def test_slow_conv_forward(
    device: torch.device, rng: np.random.Generator, dims: int, form: Form, dtype: torch.dtype
) -> None:
    """`slow_conv_forward` is a convolution without dilation."""
    kernel = _edges(2, dims)
    x, w, b = _whole(rng, 2, 3, *_edges(6, dims)), _whole(rng, 4, 3, *kernel), _whole(rng, 4)
    run = aten("_slow_conv2d_forward.default" if dims == 2 else "slow_conv3d_forward.default")
    given = (tensor(each, dtype, device) for each in (x, w))
    found = run(*given, kernel, tensor(b, dtype, device), [form.stride] * dims, [form.padding] * dims)
    assert_equal(found, _plus(correlate(x, w, form), b))


@pytest.mark.operator("_conv_depthwise2d", "conv_depthwise3d")
@pytest.mark.requires(device="cuda", silicon=True)
@DIMS
@FORM
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=name)
def test_conv_depthwise(
    device: torch.device, rng: np.random.Generator, dims: int, form: Form, dtype: torch.dtype
) -> None:
    """`conv_depthwise`, CUDA's own, convolves each channel by itself."""
    kernel, form = _edges(2, dims), Form(form.stride, form.padding, form.dilation, groups=5)
    x, w, b = (rng.integers(-1, 2, shape).astype(np.float64) for shape in (
        (2, 5, *_edges(7, dims)), (5, 1, *kernel), (5,)))  # fmt: skip
    run = aten("_conv_depthwise2d.default" if dims == 2 else "conv_depthwise3d.default")
    found = run(
        tensor(x, dtype, device), tensor(w, dtype, device), kernel, tensor(b, dtype, device),
        [form.stride] * dims, [form.padding] * dims, [form.dilation] * dims,
    )  # fmt: skip
    assert_equal(found, _plus(correlate(x, w, form), b))


@pytest.mark.operator(
    "cudnn_convolution", "cudnn_convolution_transpose", "cudnn_convolution_relu", "cudnn_convolution_add_relu"
)
@pytest.mark.requires(device="cuda", silicon=True)
@DIMS
@FORM
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=name)
def test_cudnn_convolution(
    device: torch.device, rng: np.random.Generator, dims: int, form: Form, dtype: torch.dtype
) -> None:
    """cuDNN's convolutions by name are plain, transposed, with a bias, with a sum, or without negative results.

    Transform algorithms add a factor of 32 to the bound of rounding theory, as in `test_convolutions.py`.
    """
    kernel = _edges(2, dims)
    a, b, bias = _whole(rng, 2, 8, *_edges(7, dims)), _whole(rng, 16, 8, *kernel), _whole(rng, 16)
    x, w = (tensor(each, dtype, device) for each in (a, b))
    sizes = [form.stride] * dims, [form.padding] * dims, [form.dilation] * dims
    stride, padding, dilation = sizes
    wanted, size = correlate(a, b, form), correlate(np.abs(a), np.abs(b), form)
    within = 32 * allowance(dtype, 8 * math.prod(kernel)) * (size + 5)

    found = aten("cudnn_convolution.default")(x, w, padding, stride, dilation, 1, False, False, False)
    assert_within(found, wanted, within)
    back = aten("cudnn_convolution_transpose.default")(
        found, w, padding, [0] * dims, stride, dilation, 1, False, False, False
    )
    exact = numbers(found)
    shape = (2, 8, *back.shape[2:])
    magnitude = adjoint_of_input(np.abs(exact), np.abs(b), shape, form)
    terms = 16 * math.prod(kernel)
    assert_within(back, adjoint_of_input(exact, b, shape, form), 32 * allowance(dtype, terms) * (magnitude + 5))
    added = tensor(bias, dtype, device)
    found = aten("cudnn_convolution_relu.default")(x, w, added, stride, padding, dilation, 1)
    assert_within(found, np.maximum(_plus(wanted, bias), 0), within)
    other = _whole(rng, *wanted.shape)
    found = aten("cudnn_convolution_add_relu.default")(
        x, w, tensor(other, dtype, device), 2.0, added, stride, padding, dilation, 1
    )
    assert_within(found, np.maximum(_plus(wanted, bias) + 2 * other, 0), within)


def _triangle(x: float) -> float:
    return max(0.0, 1 - abs(x))


def _cubic(x: float) -> float:
    """Return Keys' kernel with a = -1/2, as in Pillow."""
    x = abs(x)
    if x < 1:
        return (1.5 * x - 2.5) * x * x + 1
    return ((-0.5 * x + 2.5) * x - 4) * x + 2 if x < 2 else 0.0


def _sinc(x: float) -> float:
    return math.sin(math.pi * x) / (math.pi * x) if x else 1.0


def _lanczos(x: float) -> float:
    return _sinc(x) * _sinc(x / 3) if abs(x) < 3 else 0.0


#: The filters of Pillow's `resize`, with the distance from which they are zero.
FILTERS: dict[str, tuple[Callable[[float], float], int]] = {
    "bilinear": (_triangle, 1),
    "bicubic": (_cubic, 2),
    "lanczos": (_lanczos, 3),
}


def _matrix(kind: str, size: int, out: int, corners: bool) -> Array:
    """Return the weights of each input in each output.

    They are the filter, as wide as the distance of the outputs, with a sum of one.
    """
    run, support = FILTERS[kind]
    scale = (size - 1) / (out - 1) if corners and out > 1 else 0.0 if corners else size / out
    width = max(scale, 1.0)
    found = np.zeros((out, size))
    for place in range(out):
        center = scale * (place + 0.5)
        low = max(int(center - support * width + 0.5), 0)
        high = min(int(center + support * width + 0.5), size)
        found[place, low:high] = [run((each - center + 0.5) / width) for each in range(low, high)]
    return found / found.sum(1, keepdims=True)


@pytest.mark.operator("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa")
@pytest.mark.parametrize("sizes", [(5, 4), (11, 23), (31, 6)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize(
    "kind",
    [
        "bilinear",
        "bicubic",
        # torch 2.13 has this kernel for the CPU only.
        pytest.param("lanczos", marks=pytest.mark.requires(not_={"device": "cuda"})),
    ],
)
@TYPE
def test_upsample_aa_is_a_filter_and_its_adjoint(
    device: torch.device, rng: np.random.Generator, kind: str, sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    """Images of 12 by 9 are enlarged and reduced by a filter along each axis; the gradient is by its transpose.

    A weight is off by some roundings of the place, of the size of the image, and a result by those of its filter.
    """
    run: Any = aten(f"_upsample_{kind}2d_aa.default")
    back = aten(f"_upsample_{kind}2d_aa_backward.default")
    x, y = rng.uniform(-1, 1, (2, 3, 12, 9)), rng.uniform(-1, 1, (2, 3, *sizes))
    rows, columns = (_matrix(kind, size, out, False) for size, out in zip((12, 9), sizes, strict=True))
    within = 400 * unit(dtype)

    found = run(tensor(x, dtype, device), sizes, False)
    assert_within(found, np.einsum("ij,ncjk,lk->ncil", rows, x, columns), within)
    slopes = back(tensor(y, dtype, device), sizes, x.shape, False)
    assert_within(slopes, np.einsum("ij,ncil,lk->ncjk", rows, y, columns), within * 4)
    last = tensor(x, dtype, device).contiguous(memory_format=torch.channels_last)
    assert_within(run(last, sizes, False), np.einsum("ij,ncjk,lk->ncil", rows, x, columns), within)
