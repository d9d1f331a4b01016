"""Triton's interpreter with what it lacks: arithmetic in bfloat16, and the functions of libdevice.

The interpreter keeps numbers in bfloat16 as their bits, and computes with the bits. Here an operation converts them to
float32, as the hardware does, and rounds its result.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

#: Functions that the C library does not have, or has under another name.
_OWN: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "cospi": lambda x: np.cos(np.pi * x),
    "fast_dividef": np.divide,
    "fdividef": np.divide,
    "finitef": np.isfinite,
    "finite": np.isfinite,
    "isfinited": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "llmax": np.maximum,
    "llmin": np.minimum,
    "max": np.maximum,
    "min": np.minimum,
    "powi": np.power,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "saturate": lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0, 1),
    "signbit": np.signbit,
    "sinpi": lambda x: np.sin(np.pi * x),
    "umax": np.maximum,
    "umin": np.minimum,
}
#: Those of the C library that take and return numbers of double precision.
_C = frozenset(
    (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh"),
        *("erf", "erfc", "exp", "exp10", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod"),
        *("hypot", "j0", "j1", "lgamma", "log", "log10", "log1p", "log2", "logb", "nearbyint", "nextafter", "pow"),
        *("remainder", "rint", "round", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc", "y0", "y1"),
    )
)


def call(symbol: str, arguments: Sequence[Any]) -> Any:
    """Return the values of a function of libdevice, such as ``__nv_sinf``. Raise NotImplementedError."""
    with np.errstate(all="ignore"):
        return _function(symbol, len(arguments))(*arguments)


@functools.cache
def _function(symbol: str, count: int) -> Callable[..., Any]:
    name = symbol.removeprefix("__nv_")
    for candidate in (name, name.removesuffix("f"), name.removeprefix("fast_").removesuffix("f")):
        if candidate in _OWN:
            return _OWN[candidate]
        if candidate in _C:
            function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), candidate)
            function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double] * count
            return np.vectorize(function, otypes=[np.float64])
    raise NotImplementedError(f"the simulated CUDA has no {symbol} of libdevice; run the kernel on a GPU")


_Array = np.ndarray[Any, Any]


def _is_bfloat16(handle: Any) -> bool:
    return handle.dtype.scalar is tl.bfloat16 or handle.dtype.scalar == tl.bfloat16


def _widened(handle: Any) -> Any:
    """Return the data, in float32 if it is the bits of bfloat16."""
    data = handle.data
    return (data.astype(np.uint32) << np.uint32(16)).view(np.float32) if _is_bfloat16(handle) else data


def rounded(values: _Array) -> _Array:
    """Return the bits of bfloat16 that are nearest, the even one of two."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    nan = np.isnan(values)
    return (np.where(nan, bits | np.uint32(0x400000), bits + np.where(nan, np.uint32(0), up)) >> np.uint32(16)).astype(
        np.uint16
    )


class Builder(triton_interpreter.InterpreterBuilder):  # type: ignore[misc]
    """The operations of a kernel, on arrays."""

    def get_bf16(self, value: float) -> Any:
        return triton_interpreter.TensorHandle(rounded(np.array([value], dtype=np.float32)), tl.bfloat16)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        to = dst_type.scalar
        if not _is_bfloat16(src) and to != tl.bfloat16:
            return super().cast_impl(src, dst_type)
        values = _widened(src)
        data = rounded(values.astype(np.float32)) if to == tl.bfloat16 else values.astype(_numpy_type(to))
        return triton_interpreter.TensorHandle(data, to)

    def binary_op(self, lhs: Any, rhs: Any, op: Callable[..., Any]) -> Any:
        if not _is_bfloat16(lhs):
            return super().binary_op(lhs, rhs, op)
        return _result(op(_widened(lhs), _widened(rhs)))

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Callable[..., Any]) -> Any:
        if op is np.where or not _is_bfloat16(other):
            return super().ternary_op(lhs, rhs, other, op)
        return _result(op(_widened(lhs), _widened(rhs), _widened(other)))

    def unary_op(self, arg: Any, op: Callable[..., Any]) -> Any:
        return _result(op(_widened(arg))) if _is_bfloat16(arg) else super().unary_op(arg, op)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if not _is_bfloat16(z):
            return super().create_fma(x, y, z)
        return _result(_widened(x) * _widened(y) + _widened(z))

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        if not any(map(_is_bfloat16, (a, b, d))):
            return super().create_dot(a, b, d, input_precision, max_num_imprecise_acc)
        product = np.matmul(_widened(a), _widened(b), dtype=np.float32) + _widened(d)
        return _result(product) if _is_bfloat16(d) else triton_interpreter.TensorHandle(product, d.dtype.scalar)

    def create_extern_elementwise(
        self,
        library: str,  # noqa: ARG002
        path: str,  # noqa: ARG002
        symbol: str,
        arguments: Sequence[Any],
        dtype: Any,
        is_pure: bool,  # noqa: ARG002
    ) -> Any:
        value = call(symbol, [argument.data for argument in arguments])
        return triton_interpreter.TensorHandle(np.asarray(value).astype(_numpy_type(dtype)), dtype.scalar)


def _sum(operation: Any, values: Any) -> Any:
    """Replace the interpreter's sum, which would add the bits."""
    total = np.sum(_widened(values.handle), axis=operation.axis, keepdims=operation.keep_dims)
    if _is_bfloat16(values.handle):
        total = rounded(total).reshape(np.shape(total))
    return operation.to_tensor(total, values.dtype)


def _numpy_type(dtype: Any) -> Any:
    return triton_interpreter._get_np_dtype(dtype)


def _result(values: Any) -> Any:
    data = values if values.dtype == np.bool_ else rounded(values)
    return triton_interpreter.TensorHandle(data, tl.bfloat16)


def install() -> None:
    """Make it the builder of the interpreter, and `_sum` its sum."""
    triton_interpreter.interpreter_builder = Builder()
    triton_interpreter.ReduceOps.sum = _sum
    triton_interpreter.interpreter_semantic = triton_interpreter.TritonSemantic(triton_interpreter.interpreter_builder)
