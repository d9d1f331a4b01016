"""Special functions, element by element on the distinct values, by Python's `math` or by mpmath.

torch requires mpmath.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .formats import Array


def by_value(function: Callable[..., float]) -> Callable[..., Array]:
    """Return a function of arrays that calls `function` once per distinct tuple of values.

    If the function raises an arithmetic error, the value is NaN.
    """

    def over(*arrays: Any) -> Array:
        known: dict[tuple[Any, ...], float] = {}
        spread = np.broadcast_arrays(*(np.asarray(each, np.float64) for each in arrays))
        found = np.empty(spread[0].size, np.float64)
        for place, values in enumerate(zip(*(each.ravel().tolist() for each in spread), strict=True)):
            key = (*values, *(math.copysign(1, each) for each in values if not each))
            if key not in known:
                known[key] = _try(function, values)
            found[place] = known[key]
        return found.reshape(spread[0].shape)

    return over


def _try(function: Callable[..., float], values: tuple[float, ...]) -> float:
    if any(math.isnan(each) for each in values):
        return math.nan
    try:
        found = function(*values)
        return float(found)
    except OverflowError:
        return math.inf
    except (ArithmeticError, ValueError, TypeError):
        return math.nan


def _mp(name: str) -> Callable[..., float]:
    def call(*values: float) -> float:
        import mpmath

        found = getattr(mpmath, name)(*values)
        return float(found.real) if abs(getattr(found, "imag", 0)) < 1e-30 else math.nan

    return call


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def angle(x: Array) -> Array:
    return np.angle(x) if np.iscomplexobj(x) else np.where(np.isnan(x), x, np.where(x < 0, np.pi, 0.0))


erf = by_value(math.erf)
erfc = by_value(math.erfc)
_ROOT = math.sqrt(2)


def _erfinv(x: float) -> float:
    if abs(x) >= 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    import mpmath

    return float(mpmath.erfinv(x))


erfinv = by_value(_erfinv)


def _lgamma(x: float) -> float:
    return math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x)


lgamma = by_value(_lgamma)


def _digamma(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, -math.copysign(1, x))
    if math.isinf(x):
        return x if x > 0 else math.nan
    if x < 0 and x == math.floor(x):
        return math.nan
    return _mp("digamma")(x)


digamma = by_value(_digamma)


def _polygamma(n: float, x: float) -> float:
    if n == 0:
        return _digamma(x)
    if x <= 0 and x == math.floor(x):
        return math.inf if n % 2 else -math.inf  # n! zeta(n + 1, x), whose pole is positive
    import mpmath

    return float(mpmath.polygamma(int(n), x))


def polygamma(n: int, x: Array) -> Array:
    return by_value(_polygamma)(n, x)


def mvlgamma(x: Array, p: int) -> Array:
    return p * (p - 1) / 4 * math.log(math.pi) + sum(lgamma(x - j / 2) for j in range(p))


def logit(x: Array, eps: float | None = None) -> Array:
    x = x if eps is None else np.clip(x, eps, 1 - eps)
    return np.log(x / (1 - x))


def _bessel(name: str, order: int, scaled: bool = False) -> Callable[..., Array]:
    def value(x: float) -> float:
        import mpmath

        if scaled and math.isinf(x):
            return 0.0
        if name == "besseli" and math.isinf(x):  # mpmath raises
            return math.copysign(math.inf, x) if order else math.inf
        found = getattr(mpmath, name)(order, x)
        if scaled:
            found *= mpmath.exp(-abs(x)) if name == "besseli" else mpmath.exp(x)
        return float(found.real) if abs(found.imag if hasattr(found, "imag") else 0) < 1e-30 else math.nan

    return by_value(value)


def _from_zero(function: Callable[..., Array], at_zero: float) -> Callable[..., Array]:
    """Return `function` for positive arguments, with a value at 0, and NaN below."""

    def over(x: Array) -> Array:
        x = np.asarray(x, np.float64)
        return np.where(x > 0, function(np.where(x > 0, x, 1)), np.where(x == 0, at_zero, np.nan))

    return over


i0, i1 = _bessel("besseli", 0), _bessel("besseli", 1)
i0e, i1e = _bessel("besseli", 0, scaled=True), _bessel("besseli", 1, scaled=True)
bessel_j0, bessel_j1 = _bessel("besselj", 0), _bessel("besselj", 1)
bessel_y0 = _from_zero(_bessel("bessely", 0), -math.inf)
bessel_y1 = _from_zero(_bessel("bessely", 1), -math.inf)
bessel_k0 = _from_zero(_bessel("besselk", 0), math.inf)
bessel_k1 = _from_zero(_bessel("besselk", 1), math.inf)
scaled_bessel_k0 = _from_zero(_bessel("besselk", 0, scaled=True), math.inf)
scaled_bessel_k1 = _from_zero(_bessel("besselk", 1, scaled=True), math.inf)
airy_ai = by_value(_mp("airyai"))
spherical_j0 = by_value(lambda x: 0.0 if math.isinf(x) else math.sin(x) / x if x else 1.0)


def ndtr(x: Array) -> Array:
    return 0.5 * erfc(-np.asarray(x) / _ROOT)


def _log_ndtr(x: float) -> float:
    if math.isinf(x):
        return 0.0 if x > 0 else -math.inf
    import mpmath

    with mpmath.workdps(40):
        return float(mpmath.log(mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2))


log_ndtr = by_value(_log_ndtr)


def _ndtri(p: float) -> float:
    if p in (0.0, 1.0):
        return math.inf if p else -math.inf
    if not 0 < p < 1:
        return math.nan
    import mpmath

    with mpmath.workdps(40):
        return float(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(p) - 1))


ndtri = by_value(_ndtri)


def _erfcx(x: float) -> float:
    if math.isinf(x):
        return 0.0 if x > 0 else math.inf
    import mpmath

    with mpmath.workdps(40):
        return float(mpmath.exp(mpmath.mpf(x) ** 2) * mpmath.erfc(x))


erfcx = by_value(_erfcx)


def entr(x: Array) -> Array:
    return np.where(np.isnan(x), x, np.where(x > 0, -x * np.log(np.where(x > 0, x, 1)), np.where(x == 0, 0.0, -np.inf)))


def _igamma(a: float, x: float, lower: bool) -> float:
    if a < 0 or x < 0 or (a == 0 and x == 0) or (math.isinf(a) and math.isinf(x)):
        return math.nan
    if a == 0 or math.isinf(x):
        return float(lower)
    if x == 0 or math.isinf(a):
        return float(not lower)
    import mpmath

    found = mpmath.gammainc(a, 0, x, regularized=True) if lower else mpmath.gammainc(a, x, mpmath.inf, regularized=True)
    return float(found)


igamma = by_value(lambda a, x: _igamma(a, x, lower=True))
igammac = by_value(lambda a, x: _igamma(a, x, lower=False))


def _zeta(x: float, q: float) -> float:
    if x == 1:
        return math.inf
    if x < 1:
        return math.nan
    if q <= 0:
        if q == math.floor(q):
            return math.inf
        if x != math.floor(x):
            return math.nan
        steps = math.ceil(-q)
        import mpmath

        return float(mpmath.zeta(x, q + steps)) + sum((q + step) ** -x for step in range(steps))
    import mpmath

    return float(mpmath.zeta(x, q))


zeta = by_value(_zeta)


def _recurrence(
    start: Callable[[Array], Array], step: Callable[[int, Array, Array, Array], Array], change: Callable[[Array], Array]
) -> Callable[[Any, Any], Array]:
    """Return a family of polynomials: p0 = 1, p1 = start(x), p(k+1) = step(k, x, p(k), p(k-1)); 0 for negative n."""

    def over(x: Any, n: Any) -> Array:
        x, n = np.broadcast_arrays(np.asarray(x, np.float64), np.trunc(np.asarray(n, np.float64)))
        x = change(x)
        before, now = np.ones_like(x), start(x)
        found = np.where(n == 0, before, np.where(n == 1, now, 0.0))
        for k in range(1, int(n.max(initial=0))):
            before, now = now, step(k, x, now, before)
            found = np.where(n == k + 1, now, found)
        return found

    return over


def _plain(x: Array) -> Array:
    return x


def _shifted(x: Array) -> Array:
    return 2 * x - 1


_CHEBYSHEV: dict[str, Callable[[Array], Array]] = {
    "t": lambda x: x, "u": lambda x: 2 * x, "v": lambda x: 2 * x - 1, "w": lambda x: 2 * x + 1,
}  # fmt: skip
POLYNOMIALS = {
    **{
        f"{shift}chebyshev_polynomial_{kind}": _recurrence(start, lambda k, x, p, q: 2 * x * p - q, change)
        for shift, change in (("", _plain), ("shifted_", _shifted))
        for kind, start in _CHEBYSHEV.items()
    },
    "hermite_polynomial_h": _recurrence(lambda x: 2 * x, lambda k, x, p, q: 2 * x * p - 2 * k * q, _plain),
    "hermite_polynomial_he": _recurrence(lambda x: x, lambda k, x, p, q: x * p - k * q, _plain),
    "laguerre_polynomial_l": _recurrence(
        lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1), _plain
    ),
    "legendre_polynomial_p": _recurrence(
        lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1), _plain
    ),
}
