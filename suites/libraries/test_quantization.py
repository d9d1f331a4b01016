"""Quantization: numbers as scaled integers, its simulation in floats with gradients, and products of such weights.

q = round(x / scale) + zero, clamped to the range of the type; x' = (q - zero) * scale (torch, quantization). Rounding
is to the nearest integer, and to even ones for ties. Inputs, except in the case for ties, are farther from ties than
division rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from suites.host_kernels import has_host_kernels

from ._torch_private import aten
from .oracle import Array, assert_equal, assert_within, numbers, tensor, types, unit
from .slopes import assert_slopes

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
#: torch's warnings of its quantized types are not under test.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
ENDS = {"quint8": (0, 255), "qint8": (-128, 127), "qint32": (-(2**31), 2**31 - 1)}
QUANTIZED = pytest.mark.parametrize("kind", ENDS)
#: Simulated devices have no quantized tensors.
WITH_QUANTIZED = pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"silicon": True}])
SHAPES = [(), (0,), (7,), (3, 5, 33), (1025,)]


def _quantized(x: Array, scale: Array | float, zero: Array | float, ends: tuple[int, int]) -> Array:
    found: Array = np.clip(np.rint(x / scale) + zero, *ends)
    return found


def _spread(
    rng: np.random.Generator, shape: tuple[int, ...], scale: Array | float, zero: Array | float, ends: tuple[int, int]
) -> Array:
    """Return numbers that quantize to each integer of a type, also beyond its range, and are no ties."""
    low, high = max(ends[0], -3000) - 40, min(ends[1], 3000) + 40
    found: Array = (rng.integers(low, high, shape) - zero + rng.uniform(-0.4, 0.4, shape)) * scale
    return found


@pytest.mark.operator("quantize_per_tensor", "dequantize")
@WITH_QUANTIZED
@QUANTIZED
def test_quantize_per_tensor_rounds_and_cuts(device: torch.device, rng: np.random.Generator, kind: str) -> None:
    """Quantization gives integers of a scale, clamped to the type; `dequantize` gives their values.

    A scale may be a tensor.
    """
    for shape in SHAPES:
        for scale, zero in ((0.25, 0), (0.1, 3), (1.7, 100 if kind == "quint8" else -5)):
            scale = float(np.float32(scale))
            x = _spread(rng, shape, scale, zero, ENDS[kind]).astype(np.float32)
            wanted = _quantized(x.astype(np.float64), scale, zero, ENDS[kind])
            given = torch.from_numpy(np.asarray(x)).to(device)

            found = torch.quantize_per_tensor(given, scale, zero, getattr(torch, kind))
            assert_equal(found.int_repr(), wanted)
            # (q - zero) * scale is exact except for its own rounding.
            assert_within(found.dequantize(), (wanted - zero) * scale, 2 * unit(F32) * np.abs(wanted - zero) * scale)
            assert (found.q_scale(), found.q_zero_point()) == (scale, zero)
            as_tensors = (torch.tensor(scale).to(device), torch.tensor(zero).to(device))
            again = torch.quantize_per_tensor(given, *as_tensors, dtype=getattr(torch, kind))
            assert_equal(again.int_repr(), wanted)


@pytest.mark.operator("quantize_per_tensor")
@WITH_QUANTIZED
def test_quantize_per_tensor_rounds_ties_to_even(device: torch.device) -> None:
    """Halves of a scale that is a power of two are rounded to even integers."""
    x = np.arange(-20.5, 21) * 0.25
    found = torch.quantize_per_tensor(tensor(x, F32, device), 0.25, 100, torch.quint8)
    assert_equal(found.int_repr(), np.rint(x / 0.25) + 100)


@pytest.mark.operator("quantize_per_tensor")
@WITH_QUANTIZED
@QUANTIZED
def test_quantize_per_tensor_of_a_list_has_a_scale_for_each(
    device: torch.device, rng: np.random.Generator, kind: str
) -> None:
    """The tensors of a list may have different shapes; each is quantized with the scale and the zero at its place."""
    scales, zeros = (0.25, 0.0625, 2.0), (0, 3, 7)
    parts = [
        _spread(rng, shape, scale, zero, ENDS[kind]).astype(np.float32)
        for shape, scale, zero in zip(((7,), (3, 33), (1025,)), scales, zeros, strict=True)
    ]

    given = [torch.from_numpy(each).to(device) for each in parts]
    found = torch.quantize_per_tensor(
        given, torch.tensor(scales, device=device), torch.tensor(zeros, device=device), getattr(torch, kind)
    )

    for one, part, scale, zero in zip(found, parts, scales, zeros, strict=True):
        assert (one.q_scale(), one.q_zero_point()) == (scale, zero)
        assert_equal(one.int_repr(), _quantized(part.astype(np.float64), scale, zero, ENDS[kind]))


@pytest.mark.operator("_make_per_tensor_quantized_tensor", "_make_per_channel_quantized_tensor")
@WITH_QUANTIZED
@QUANTIZED
def test_make_quantized_tensor_takes_the_integers_as_they_are(
    device: torch.device, rng: np.random.Generator, kind: str
) -> None:
    """Integers, with one scale and zero or one of each per row, make a tensor of these values."""
    stored = {"quint8": np.uint8, "qint8": np.int8, "qint32": np.int32}[kind]
    whole = rng.integers(max(ENDS[kind][0], -3000), min(ENDS[kind][1], 3000), (3, 35)).astype(stored)
    scales, zeros = np.array([0.25, 2.0, 0.0625]), np.array([0, 3, 7])
    given = torch.from_numpy(whole).to(device)

    found = aten("_make_per_tensor_quantized_tensor.default")(given, 0.25, 3)
    assert_equal(found.int_repr(), whole)
    assert_equal(found.dequantize(), (whole.astype(np.float64) - 3) * 0.25)

    by_row = torch.from_numpy(scales).to(device), torch.from_numpy(zeros).to(device)
    found = aten("_make_per_channel_quantized_tensor.default")(given, *by_row, 0)
    assert_equal(found.int_repr(), whole)
    assert_equal(found.dequantize(), (whole.astype(np.float64) - zeros[:, None]) * scales[:, None])


@pytest.mark.operator("quantize_per_channel")
@WITH_QUANTIZED
@pytest.mark.parametrize("axis", [0, 1, 2])
@QUANTIZED
def test_quantize_per_channel_has_a_scale_for_each(
    device: torch.device, rng: np.random.Generator, kind: str, axis: int
) -> None:
    """Each place along the axis has its own scale and zero."""
    shape = (4, 5, 33)
    along = [-1 if place == axis else 1 for place in range(3)]
    scales = rng.integers(1, 64, shape[axis]) / 64
    zeros = rng.integers(0, 20, shape[axis])
    scale, zero = scales.reshape(along), zeros.reshape(along)
    x = _spread(rng, shape, scale, zero, ENDS[kind]).astype(np.float32)
    wanted = _quantized(x.astype(np.float64), scale, zero, ENDS[kind])

    found = torch.quantize_per_channel(
        torch.from_numpy(x).to(device),
        torch.from_numpy(scales).to(device),
        torch.from_numpy(zeros).to(device),
        axis,
        getattr(torch, kind),
    )

    assert_equal(found.int_repr(), wanted)
    assert_within(found.dequantize(), (wanted - zero) * scale, 2 * unit(F32) * np.abs(wanted - zero) * scale)


@pytest.mark.operator("quantize_per_tensor_dynamic")
@pytest.mark.requires(not_={"accelerator": True})
def test_quantize_per_tensor_dynamic_uses_the_range(device: torch.device, rng: np.random.Generator) -> None:
    """The scale is the range, including zero, divided by the steps of the type; each value is within half a step."""
    for low, high in ((-3.0, 5.0), (0.5, 5.0), (-7.0, -1.0)):
        x = rng.uniform(low, high, 1000)
        x[:2] = low, high
        found = torch.quantize_per_tensor_dynamic(tensor(x, F32, device), torch.quint8, False)
        scale = (max(high, 0) - min(low, 0)) / 255
        assert abs(found.q_scale() - scale) <= 1e-6 * scale
        assert_within(found.dequantize(), x, scale * 1.01)  # zero itself is rounded to a step
        assert np.abs(numbers(found.dequantize()) - x).mean() <= 0.27 * scale


@pytest.mark.operator("fake_quantize_per_tensor_affine")
@types(F32, F64)
def test_fake_quantize_per_tensor_rounds_and_passes_gradients(
    device: torch.device, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    """`fake_quantize` gives the values of the integers; the gradient passes where none was clamped, else it is zero."""
    for shape in SHAPES:
        for scale, zero, low, high in ((0.25, 0, -128, 127), (0.5, 7, 0, 255), (2.0, 3, 0, 15)):
            a = _spread(rng, shape, scale, zero, (low, high))
            wanted = (_quantized(a, scale, zero, (low, high)) - zero) * scale
            inside = (np.rint(a / scale) + zero >= low) & (np.rint(a / scale) + zero <= high)
            factor = rng.integers(1, 9, shape)
            pairs: tuple[Any, ...] = (
                (scale, zero),
                (torch.tensor(scale).to(device), torch.tensor(zero, dtype=torch.int32).to(device)),
            )
            for pair in pairs:
                x = tensor(a, dtype, device).requires_grad_()
                found = torch.fake_quantize_per_tensor_affine(x, *pair, low, high)
                found.backward(tensor(factor, dtype, device))
                assert_equal(found, wanted)
                assert x.grad is not None
                assert_equal(x.grad, factor * inside)


@pytest.mark.operator("fake_quantize_per_channel_affine")
@pytest.mark.parametrize("axis", [0, 1, 2])
@types(F32, F64)
def test_fake_quantize_per_channel_has_a_scale_for_each(
    device: torch.device, rng: np.random.Generator, axis: int, dtype: torch.dtype
) -> None:
    """`fake_quantize` gives the values with each channel's scale; the gradient passes where none was clamped."""
    shape = (3, 4, 5)
    along = [-1 if place == axis else 1 for place in range(3)]
    scales, zeros = 2.0 ** rng.integers(-4, 3, shape[axis]), rng.integers(0, 9, shape[axis])
    scale, zero = scales.reshape(along), zeros.reshape(along)
    a = _spread(rng, shape, scale, zero, (0, 63))
    factor = rng.integers(1, 9, shape)
    x = tensor(a, dtype, device).requires_grad_()

    found = torch.fake_quantize_per_channel_affine(
        x, tensor(scales, F32, device), tensor(zeros, torch.int32, device), axis, 0, 63
    )
    found.backward(tensor(factor, dtype, device))

    assert_equal(found, (_quantized(a, scale, zero, (0, 63)) - zero) * scale)
    whole = np.rint(a / scale) + zero
    assert x.grad is not None
    assert_equal(x.grad, factor * ((whole >= 0) & (whole <= 63)))


@pytest.mark.operator("_fake_quantize_learnable_per_tensor_affine", "_fake_quantize_learnable_per_channel_affine")
@pytest.mark.parametrize("axis", [None, 0, 1], ids=["tensor", "axis0", "axis1"])
def test_fake_quantize_learnable_has_gradients_of_scale_and_zero(
    device: torch.device, rng: np.random.Generator, axis: int | None
) -> None:
    """The gradients of scale and zero are as published (Jain et al., 2020; Esser et al., 2020), times `grad_factor`.

    By the scale: (x' - x) / scale inside, and the end minus zero if a value was clamped. By zero: minus the scale
    there.
    """
    shape, (low, high) = (4, 6), (0, 31)
    along = [-1 if place == axis else 1 for place in range(2)]
    size = 1 if axis is None else shape[axis]
    scales, zeros = 2.0 ** rng.integers(-3, 2, size), rng.integers(2, 9, size).astype(np.float64)
    scale, zero = scales.reshape(along), zeros.reshape(along)
    a = _spread(rng, shape, scale, zero, (low, high)).astype(np.float32).astype(np.float64)
    factor = rng.integers(1, 9, shape)
    x, s, z = (tensor(each, F32, device).requires_grad_() for each in (a, scales, zeros))

    if axis is None:
        found = aten("_fake_quantize_learnable_per_tensor_affine.default")(x, s, z, low, high, 0.5)
    else:
        found = aten("_fake_quantize_learnable_per_channel_affine.default")(x, s, z, axis, low, high, 0.5)
    found.backward(tensor(factor, F32, device))

    whole = np.rint(a / scale) + zero
    wanted = (np.clip(whole, low, high) - zero) * scale
    inside = (whole >= low) & (whole <= high)
    by_scale = np.where(inside, (wanted - a) / scale, np.clip(whole, low, high) - zero) * factor * 0.5
    by_zero = np.where(inside, 0, -scale) * factor * 0.5
    others = None if axis is None else 1 - axis
    assert_equal(found, wanted)
    assert x.grad is not None
    assert s.grad is not None
    assert z.grad is not None
    assert_equal(x.grad, factor * inside)
    sums = [np.asarray(each.sum(others)).reshape(size) for each in (by_scale, by_zero)]
    assert_within(s.grad, sums[0], 64 * unit(F32) * (np.abs(by_scale).sum() + 1))
    assert_within(z.grad, sums[1], 64 * unit(F32) * (np.abs(by_zero).sum() + 1))


@pytest.mark.operator("_weight_int8pack_mm")
@pytest.mark.requires(any=[{"not_": {"device": "cuda"}}, {"silicon": True, "compute_capability": ">=8.0"}])
@types(F32, F16, BF16)
def test_weight_int8pack_mm_scales_each_column(
    device: torch.device, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    """The product with int8 weights times a scale per output, of whole numbers and powers of two, is rounded once.

    A library for 16-bit types rounds the sum before the scale, which is a power of two.
    """
    for m, k, n in ((1, 32, 16), (5, 64, 32), (33, 128, 48)):
        a, b = rng.integers(-3, 4, (m, k)), rng.integers(-128, 128, (n, k))
        scales = 2.0 ** rng.integers(-3, 4, n)
        found = aten("_weight_int8pack_mm.default")(
            tensor(a, dtype, device), tensor(b, torch.int8, device), tensor(scales, dtype, device)
        )
        wanted = (a @ b.T) * scales
        assert_within(found, wanted, unit(dtype) * np.abs(wanted) * 2)


@pytest.mark.operator("_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu")
@pytest.mark.requires(
    any=[{"not_": {"accelerator": True}, "cpu_bf16": True}, {"silicon": True, "compute_capability": ">=8.0"}]
)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_weight_int4pack_mm_dequantizes_groups(device: torch.device, rng: np.random.Generator, group: int) -> None:
    """The product with 4-bit weights uses (q - 8) * scale + zero, with scale and zero per group of inputs and output.

    bfloat16 holds each weight, and float32 each sum, so a result is rounded once.
    """
    for m, k, n in ((1, 256, 64), (17, 1024, 128)):
        a, codes = rng.integers(-2, 3, (m, k)), rng.integers(0, 16, (n, k))
        scales, zeros = 2.0 ** rng.integers(-2, 2, (k // group, n)), rng.integers(-4, 5, (k // group, n)) / 4
        weights = (codes.T - 8) * np.repeat(scales, group, 0) + np.repeat(zeros, group, 0)
        both = tensor(np.stack([scales, zeros], -1), BF16, device)
        x = tensor(a, BF16, device)
        if device.type == "cpu":
            packed = aten("_convert_weight_to_int4pack_for_cpu.default")(tensor(codes, torch.int32, device), 2)
            found = aten("_weight_int4pack_mm_for_cpu.default")(x, packed, group, both)
        else:
            pairs = tensor(codes[:, ::2] << 4 | codes[:, 1::2], torch.uint8, device)
            packed = aten("_convert_weight_to_int4pack.default")(pairs, 2)
            found = aten("_weight_int4pack_mm.default")(x, packed, group, both)
        wanted = a @ weights
        assert_within(found, wanted, unit(BF16) * np.abs(wanted) + unit(F32) * 64)


@pytest.mark.operator("_weight_norm_interface")
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@types(F32, F64)
def test_weight_norm_scales_each_row_to_its_length(
    device: torch.device, rng: np.random.Generator, last: bool, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    """`weight_norm` is v g / |v|, by rows or, for the last dimension, columns; with gradients."""
    if device.type == "cuda" and dtype == F64 and not has_host_kernels(device):
        reason = "the kernel takes the root in float32 (`sqrtf` in WeightNorm.cu; seen on an H200 with torch 2.11)"
        request.applymarker(pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True))
    for shape in ((3, 5), (4, 2, 33), (7, 1025)):
        dim = len(shape) - 1 if last else 0
        axes = tuple(place for place in range(len(shape)) if place != dim)
        size = [shape[place] if place == dim else 1 for place in range(len(shape))]
        hosts = [torch.from_numpy(rng.uniform(0.5, 1.5, each)).to(dtype) for each in (shape, size)]
        v, g = (each.to(device).requires_grad_() for each in hosts)
        arrays = {"v": numbers(hosts[0]), "g": numbers(hosts[1])}

        def run(given: Mapping[str, Array], axes: tuple[int, ...] = axes) -> Array:
            found: Array = given["v"] * given["g"] / np.sqrt((given["v"] ** 2).sum(axes, keepdims=True))
            return found

        found, lengths = aten("_weight_norm_interface.default")(v, g, dim)
        terms = v.numel() / g.numel()
        bound = (terms / 8 + 16) * unit(dtype)
        assert_within(found, run(arrays), bound * np.abs(run(arrays)))
        norms = np.sqrt((arrays["v"] ** 2).sum(axes, keepdims=True))
        assert_within(lengths, norms, bound * norms)
        factor = rng.uniform(-1, 1, shape)
        torch._weight_norm(v, g, dim).backward(torch.from_numpy(factor).to(dtype).to(device))
        exact = numbers(torch.from_numpy(factor).to(dtype))
        assert_slopes(
            lambda given, run=run, exact=exact: complex((run(given) * exact).sum()),  # type: ignore[misc]
            arrays,
            {"v": v.grad, "g": g.grad},
            rng,
            terms + 64,
        )
