"""The functions of CUDA's libdevice, by those of the C library: in double precision, rounded to the result's type."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

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
