"""Operators that compute each element from the elements at the same place."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from . import formats, special
from .formats import Array
from .interpreter import Host, interprets


def _alike_numbers(function: Any) -> Any:
    """Return a comparison in which a whole number takes the type of the integers beside it, as in torch."""

    def compare(a: Any, b: Any) -> Any:
        if type(b) is int and isinstance(a, np.ndarray) and a.dtype.kind in "iu":
            b = np.asarray(b).astype(a.dtype)
        return function(a, b)

    return compare


# One argument, computed in the type of the result.
for _names, _function in {
    "neg": np.negative, "positive": np.positive, "acos": np.arccos, "asin": np.arcsin,
    "atan": np.arctan, "acosh": np.arccosh, "asinh": np.arcsinh, "atanh": np.arctanh, "cos": np.cos, "sin": np.sin,
    "tan": np.tan, "cosh": np.cosh, "sinh": np.sinh, "tanh": np.tanh, "exp": np.exp, "expm1": np.expm1,
    "log1p": np.log1p, "log": np.log, "log10": np.log10, "log2": np.log2, "sqrt": np.sqrt, "ceil": np.ceil,
    "floor": np.floor, "trunc": np.trunc, "square": np.square, "conj_physical": np.conj, "_conj_physical": np.conj,
    "bitwise_not": np.invert, "deg2rad": np.deg2rad, "rad2deg": np.rad2deg,
    "reciprocal": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x), "exp2": lambda x: np.exp2(x),
    "frac": lambda x: x - np.trunc(x), "relu": lambda x: np.where(np.isnan(x) | (x > 0), x, 0),
    "sinc": np.sinc, "clone": lambda x, memory_format=None: x.copy(), "alias": lambda x: x,
    "lift_fresh": lambda x: x, "lift": lambda x: x, "contiguous": lambda x, memory_format=None: x,
    "detach": lambda x: x,
    "_conj": np.conj, "_neg_view": np.negative, "alias_copy": lambda x: x.copy(), "resolve_conj": lambda x: x,
    "resolve_neg": lambda x: x, "lift_fresh_copy": lambda x: x.copy(),
    "silu": lambda x: x * special.sigmoid(x), "sigmoid": special.sigmoid,
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1), "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "log_sigmoid": lambda x: -np.logaddexp(0, -x), "softsign": lambda x: x / (1 + np.abs(x)),
    "erf": special.erf, "erfc": special.erfc, "erfinv": special.erfinv, "lgamma": special.lgamma,
    "digamma": special.digamma, "i0": special.i0, "special_i0e": special.i0e, "special_i1": special.i1,
    "special_i1e": special.i1e, "special_ndtri": special.ndtri, "special_log_ndtr": special.log_ndtr,
    "special_ndtr": special.ndtr, "special_erfcx": special.erfcx, "special_entr": special.entr,
    "special_airy_ai": special.airy_ai, "special_bessel_j0": special.bessel_j0, "special_bessel_j1": special.bessel_j1,
    "special_bessel_y0": special.bessel_y0, "special_bessel_y1": special.bessel_y1,
    "special_modified_bessel_i0": special.i0, "special_modified_bessel_i1": special.i1,
    "special_modified_bessel_k0": special.bessel_k0, "special_modified_bessel_k1": special.bessel_k1,
    "special_scaled_modified_bessel_k0": special.scaled_bessel_k0,
    "special_scaled_modified_bessel_k1": special.scaled_bessel_k1, "special_spherical_bessel_j0": special.spherical_j0,
}.items():  # fmt: skip
    interprets(_names, arguments="result")(_function)

# One argument of any type.
for _names, _function in {
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "isposinf": np.isposinf, "isneginf": np.isneginf,
    "logical_not": np.logical_not, "signbit": np.signbit, "real": np.real, "imag": np.imag, "angle": special.angle,
    "isreal": np.isreal, "abs": np.abs,
}.items():  # fmt: skip
    interprets(_names)(_function)

# Two arguments, computed in the type of the result.
for _names, _function in {
    "add": lambda a, b, alpha=1: a + b * alpha if alpha != 1 else a + b,
    "sub": lambda a, b, alpha=1: a - b * alpha if alpha != 1 else a - b,
    "rsub": lambda a, b, alpha=1: b - a * alpha if alpha != 1 else b - a,
    "mul": np.multiply, "atan2": np.arctan2, "copysign": np.copysign, "fmax": np.fmax, "fmin": np.fmin,
    "maximum": np.maximum, "minimum": np.minimum, "logaddexp2": np.logaddexp2, "hypot": np.hypot,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "__and__": np.bitwise_and, "__or__": np.bitwise_or, "__xor__": np.bitwise_xor,
    "gcd": np.gcd, "lcm": np.lcm, "heaviside": np.heaviside,
    "xlogy": lambda a, b: np.where(np.isnan(b), np.nan, np.where(a == 0, 0.0, a * np.log(b))),
    "special_xlog1py": lambda a, b: np.where(np.isnan(b), np.nan, np.where(a == 0, 0.0, a * np.log1p(b))),
    "igamma": special.igamma, "igammac": special.igammac, "special_zeta": special.zeta,
}.items():  # fmt: skip
    interprets(_names, arguments="result")(_function)

# Comparisons, in the type that NumPy chooses for both.
for _names, _function in {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}.items():  # fmt: skip
    interprets(_names)(_alike_numbers(_function))


@interprets("complex")
def _complex(real: Array, imag: Array) -> Array:
    real, imag = np.broadcast_arrays(real, imag)
    found = np.empty(real.shape, np.complex128)
    found.real, found.imag = real, imag
    return found


@interprets("logaddexp", arguments="result")
def _logaddexp(a: Array, b: Array) -> Array:
    if not np.iscomplexobj(a):
        return np.logaddexp(a, b)
    top, low = np.where(a.real >= b.real, a, b), np.where(a.real >= b.real, b, a)
    same = (top == low) & ~np.isfinite(top.real)
    return np.where(same, top, top + np.log1p(np.exp(low - np.where(same, 0, top))))


@interprets("sign", "sgn", arguments="result")
def _sign(x: Array) -> Array:
    if x.dtype == np.bool_:
        return x
    if np.iscomplexobj(x):
        return np.where(x == 0, 0, x / np.where(x == 0, 1, np.abs(x)))
    return np.where(np.isnan(x), 0, np.sign(x)) if x.dtype.kind == "f" else np.sign(x)


@interprets("round", arguments="result")
def _round(x: Array, decimals: int = 0) -> Array:
    if x.dtype.kind in "iu":
        return x if decimals >= 0 else (np.rint(x * 10.0**decimals) / 10.0**decimals).astype(x.dtype)
    return np.rint(x) if not decimals else np.rint(x * 10.0**decimals) / 10.0**decimals


@interprets("pow", "float_power", arguments="result")
def _pow(a: Any, b: Any) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        one = a.dtype.type(1) if a.ndim or a.dtype.kind in "iu" else 1
        a, b = np.broadcast_arrays(a, b)
        positive = np.power(a, np.where(b < 0, 0, b).astype(a.dtype))
        inverse = (
            np.where(a == 1, one, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
            if a.dtype.kind == "i"
            else (a == 1)
        )
        return np.where(b < 0, inverse.astype(a.dtype), positive)
    if a.dtype.kind == "c" or b.dtype.kind == "c":
        a, b = np.broadcast_arrays(a.astype(complex), b.astype(complex))
        return np.where(b == 0, 1, np.where((a == 0) & (b.real > 0) & (b.imag == 0), 0, np.power(a, b)))
    return np.power(a, b)


@interprets("div", "true_divide", "divide")
def _div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return _floor_divide(a, b)
    if rounding_mode == "trunc":
        return _truncated(a, b)
    return np.true_divide(a, b)


@interprets("floor_divide")
def _floor_divide(a: Any, b: Any) -> Any:
    a, b = _alike(a, b)
    if a.dtype.kind in "iub":
        return np.floor_divide(a, b)
    special_case = (b == 0) | ~np.isfinite(a)
    return np.where(special_case, a / b, np.floor_divide(a, np.where(special_case, 1, b)))


def _truncated(a: Any, b: Any) -> Any:
    a, b = _alike(a, b)
    if a.dtype.kind == "f":
        return np.trunc(a / b)
    quotient = np.floor_divide(a, b)
    return quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))).astype(quotient.dtype)


@interprets("remainder")
def _remainder(a: Any, b: Any) -> Any:
    a, b = _alike(a, b)
    if a.dtype.kind != "f":
        return np.remainder(a, b)
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@interprets("fmod")
def _fmod(a: Any, b: Any) -> Any:
    return np.fmod(*_alike(a, b))


def _alike(a: Any, b: Any) -> tuple[Array, Array]:
    kind = np.result_type(a, b)
    return np.asarray(a, kind), np.asarray(b, kind)


@interprets("bitwise_left_shift", "__lshift__")
def _left(a: Any, b: Any) -> Any:
    a, b = _alike(a, b)
    bits = a.dtype.itemsize * 8
    over = (b < 0) | (b >= bits)
    return np.where(over, 0, np.left_shift(a, np.where(over, 0, b))).astype(a.dtype)


@interprets("bitwise_right_shift", "__rshift__")
def _right(a: Any, b: Any) -> Any:
    a, b = _alike(a, b)
    bits = a.dtype.itemsize * 8
    over = (b < 0) | (b >= bits)
    return np.right_shift(a, np.where(over, bits - 1, b)) if a.dtype.kind == "i" else np.where(
        over, 0, np.right_shift(a, np.where(over, 0, b)))  # fmt: skip


@interprets("ldexp", arguments="raw")
def _ldexp(a: Any, b: Any) -> Any:
    return a * np.power(2.0, b)


@interprets("frexp")
def _frexp(x: Array) -> tuple[Array, Array]:
    return np.frexp(x)


@interprets("clamp", "clip", arguments="result")
def _clamp(x: Array, min: Any = None, max: Any = None) -> Array:
    if min is not None:
        x = np.maximum(x, np.asarray(min).astype(x.dtype))
    return x if max is None else np.minimum(x, np.asarray(max).astype(x.dtype))


interprets("clamp_min", arguments="result")(lambda x, low: _clamp(x, min=low))
interprets("clamp_max", arguments="result")(lambda x, high: _clamp(x, max=high))
interprets("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")(lambda c, a, b: np.where(c, a, b))
interprets("lerp", arguments="result")(lambda a, b, weight: a + weight * (b - a))
interprets("addcmul", arguments="result")(lambda x, a, b, value=1: x + value * a * b)
interprets("addcdiv", arguments="result")(lambda x, a, b, value=1: x + value * (a / b))
interprets("polar")(lambda size, angle: _complex(size * np.cos(angle), size * np.sin(angle)))
interprets("mvlgamma", arguments="result")(special.mvlgamma)
interprets("polygamma")(special.polygamma)
interprets("logit", arguments="result")(special.logit)


@interprets("gelu", arguments="result")
def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x * special.ndtr(x)


@interprets("elu", arguments="result")
def _elu(x: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Array:
    return np.where(x > 0, scale * x, scale * alpha * np.expm1(np.minimum(x, 0) * input_scale))


interprets("celu", arguments="result")(
    lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))
)
interprets("selu", arguments="result")(
    lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))
)
interprets("leaky_relu", arguments="result")(lambda x, slope=0.01: np.where(x > 0, x, x * slope))
interprets("_prelu_kernel", arguments="result")(lambda x, weight: np.where(x > 0, x, x * weight))
interprets("hardtanh", arguments="result")(lambda x, low=-1, high=1: np.clip(x, low, high))
interprets("hardshrink", arguments="result")(lambda x, lambd=0.5: np.where(np.abs(x) <= lambd, 0, x))
interprets("softshrink", arguments="result")(
    lambda x, lambd=0.5: np.where(x > lambd, x - lambd, np.where(x < -lambd, x + lambd, x * 0))
)
interprets("threshold", arguments="result")(lambda x, limit, value: np.where(x <= limit, value, x))
interprets("softplus", arguments="result")(
    lambda x, beta=1, threshold=20: np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta)
)

for _letter, _polynomial in special.POLYNOMIALS.items():
    interprets(f"special_{_letter}", arguments="result")(_polynomial)


@interprets("nan_to_num", arguments="host")
def _nan_to_num(x: Host, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Host:
    if x.array.dtype.kind not in "fc":
        return Host(x.array.copy(), x.dtype)
    top = formats.largest(x.dtype)
    values = {
        "nan": nan or 0.0,
        "posinf": top if posinf is None else posinf,
        "neginf": -top if neginf is None else neginf,
    }
    if x.dtype.is_complex:
        return Host(np.nan_to_num(x.array.real, **values) + 1j * np.nan_to_num(x.array.imag, **values), x.dtype)
    return Host(np.nan_to_num(x.array, **values), x.dtype)


@interprets("nextafter", arguments="host")
def _nextafter(a: Host, b: Host) -> Host:
    x, y = np.broadcast_arrays(a.array, b.array)
    if a.dtype in (torch.float32, torch.float64):
        kind = np.float32 if a.dtype == torch.float32 else np.float64
        return Host(np.nextafter(x.astype(kind), y.astype(kind)).astype(np.float64), a.dtype)
    step = np.exp2(
        np.maximum(np.frexp(x)[1] - 1, np.log2(formats.smallest(a.dtype))) + np.log2(formats.unit(a.dtype)) + 1
    )
    inward = np.abs(np.frexp(x)[0]) == 0.5
    toward = np.where(y > x, 1.0, -1.0)
    shrinks = inward & (toward * x < 0) & (np.abs(x) > formats.smallest(a.dtype))
    moved = x + toward * np.where(shrinks, step / 2, step)
    return Host(np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x == y, y, moved)), a.dtype)
