"""The values of torch's number formats as NumPy arrays, read bit by bit: no kernel of torch converts them.

A format that NumPy lacks is widened: each value of bfloat16, float16 and the 8-bit formats becomes a float64.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format: bits of exponent and fraction, bias, and the codes that are not numbers.

    `special`: "ieee" (the largest exponent holds infinities and NaN), "fn" (all ones is NaN, no infinity) or "fnuz"
    (the code of -0 is NaN, no infinity). `signed`: whether the first bit is a sign.
    """

    exponent: int
    fraction: int
    bias: int
    special: str = "ieee"
    signed: bool = True

    @property
    def bits(self) -> int:
        return self.exponent + self.fraction + self.signed

    @property
    def largest(self) -> float:
        """The largest finite value."""
        top = (1 << self.exponent) - 1
        if self.special == "ieee":
            return float(2 - 2.0**-self.fraction) * 2.0 ** (top - 1 - self.bias)
        if self.special == "fn" and self.fraction:
            return float(2 - 2.0 ** (1 - self.fraction)) * 2.0 ** (top - self.bias)
        if self.special == "fn":
            return 2.0 ** (top - 1 - self.bias)
        return float(2 - 2.0**-self.fraction) * 2.0 ** (top - self.bias)

    @property
    def unit(self) -> float:
        """The unit roundoff: half of the distance from 1 to the next value."""
        return 2.0 ** -(self.fraction + 1)

    def decode(self, code: Array) -> Array:
        """Return the values of codes as float64."""
        code = code.astype(np.int64)
        power = (code >> self.fraction) & ((1 << self.exponent) - 1)
        rest = code & ((1 << self.fraction) - 1)
        normal = (1 + rest / (1 << self.fraction)) * np.exp2((power - self.bias).astype(np.float64))
        small = rest / (1 << self.fraction) * 2.0 ** (1 - self.bias)
        if not self.fraction:
            small = np.full(code.shape, 2.0**-self.bias)
        value = np.where(power == 0, small, normal)
        if self.signed:
            value = np.where((code >> (self.bits - 1)) & 1, -value, value)
        top = (1 << self.exponent) - 1
        if self.special == "ieee":
            value = np.where((power == top) & (rest == 0), np.copysign(np.inf, value), value)
            value = np.where((power == top) & (rest != 0), np.nan, value)
        elif self.special == "fn":
            value = np.where((power == top) & (rest == (1 << self.fraction) - 1), np.nan, value)
        else:
            value = np.where(code == 1 << (self.bits - 1), np.nan, value)
        return value

    def round(self, value: Array) -> Array:
        """Return the nearest values of this format, ties to even, as float64; beyond the largest: infinity or NaN."""
        with np.errstate(all="ignore"):
            power = np.frexp(value)[1] - 1
            step = np.exp2((np.maximum(power, 1 - self.bias) - self.fraction).astype(np.float64))
            near = np.where(np.isfinite(value) & (value != 0), np.rint(value / step) * step, value)
            limit = self.largest + 2.0 ** (math.frexp(self.largest)[1] - 2 - self.fraction)
            over = np.abs(near) > self.largest if self.special == "ieee" else np.abs(value) > limit
            beyond = np.copysign(np.inf, value) if self.special == "ieee" else np.full_like(near, np.nan)
            return np.where(over & ~np.isnan(value), beyond, near)


#: The formats that NumPy lacks, by torch's names.
FORMATS = {
    "float16": Format(5, 10, 15),
    "bfloat16": Format(8, 7, 127),
    "float8_e4m3fn": Format(4, 3, 7, "fn"),
    "float8_e4m3fnuz": Format(4, 3, 8, "fnuz"),
    "float8_e5m2": Format(5, 2, 15),
    "float8_e5m2fnuz": Format(5, 2, 16, "fnuz"),
    "float8_e8m0fnu": Format(8, 0, 127, "fn", signed=False),
}
_NUMPY = {
    "float32": np.float32, "float64": np.float64, "complex64": np.complex64, "complex128": np.complex128,
    "bool": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
    "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
}  # fmt: skip


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a type, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


@cache
def wide(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the type of the arrays for tensors of this type: floats are float64 or complex128."""
    if dtype.is_complex:
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if dtype.is_floating_point else np.dtype(_NUMPY[name_of(dtype)])


@cache
def unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff of a type, 0 for integers and bool."""
    name = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}.get(name_of(dtype), name_of(dtype))
    if name in FORMATS:
        return FORMATS[name].unit
    return {"float32": 2.0**-24, "float64": 2.0**-53}.get(name, 0.0)


@cache
def smallest(dtype: torch.dtype) -> float:
    """Return the smallest normal value of a float type, 0 for integers and bool."""
    name = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}.get(name_of(dtype), name_of(dtype))
    if name in FORMATS:
        return float(2.0 ** (1 - FORMATS[name].bias))
    return {"float32": 2.0**-126, "float64": 2.0**-1022}.get(name, 0.0)


def memory(tensor: torch.Tensor) -> Array:
    """Return the elements of a tensor in the host's memory as codes or NumPy's own numbers, without a copy."""
    size = tensor.element_size()
    dtype = _NUMPY.get(name_of(tensor.dtype))
    kind = np.dtype(dtype) if dtype is not None else np.dtype({1: "u1", 2: "u2", 4: "u4"}[size])
    if tensor.numel() == 0:
        return np.zeros(tuple(tensor.shape), kind)
    storage = tensor.untyped_storage()
    raw: Any = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    raw.owner = storage  # keeps the storage alive while the array is
    flat = np.frombuffer(raw, np.uint8)[tensor.storage_offset() * size :]
    flat = flat[: len(flat) // size * size].view(kind)
    strides = tuple(stride * size for stride in tensor.stride())
    return np.lib.stride_tricks.as_strided(flat, tuple(tensor.shape), strides)


def read(tensor: torch.Tensor) -> Array:
    """Return a new array with the exact values of a tensor in the host's memory, of the type `wide`."""
    tensor = tensor.detach()
    if tensor._is_zerotensor():  # autograd creates such tensors, and they have no memory
        return np.zeros(tuple(tensor.shape), wide(tensor.dtype))
    codes = memory(tensor)
    name = name_of(tensor.dtype)
    if name == "complex32":
        pairs = np.ascontiguousarray(codes).view(np.uint16).reshape(*codes.shape, 2)
        halves = FORMATS["float16"].decode(pairs)
        value = halves[..., 0] + 1j * halves[..., 1]
    elif name in FORMATS:
        value = FORMATS[name].decode(codes)
    else:
        value = codes.astype(wide(tensor.dtype), order="K", copy=True)
    if tensor.is_conj():
        value = np.conj(value)
    return -value if tensor.is_neg() else value


def rounded(value: Array, dtype: torch.dtype) -> Array:
    """Return the values that a tensor of this type would hold, still of the type `wide`."""
    name = name_of(dtype)
    if name == "complex32":
        return FORMATS["float16"].round(value.real) + 1j * FORMATS["float16"].round(value.imag)
    with np.errstate(all="ignore"):
        if name in FORMATS:
            return FORMATS[name].round(value)
        if name in {"float32", "complex64"}:
            return value.astype(_NUMPY[name]).astype(wide(dtype))
    return value


def wide_of(array: Array) -> np.dtype[Any]:
    """Return the wide type for an array that is already wide."""
    return array.dtype if array.dtype.kind in "fc" else np.dtype(np.float64)


@cache
def largest(dtype: torch.dtype) -> float:
    """Return the largest finite value of a float type."""
    name = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}.get(name_of(dtype), name_of(dtype))
    if name in FORMATS:
        return FORMATS[name].largest
    return float(np.finfo(np.dtype(name)).max)
