"""The operators on lists of tensors (`torch._foreach_*`): arguments and formulas, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .references import special
from .references.formats import Array

Formula = Callable[..., Any]
_ALL = ("float", "half", "complex", "int")
_REAL = ("float", "half", "int")
_NUMBERS = ("float", "half", "complex")


@dataclass(frozen=True, slots=True)
class Operation:
    """An overload, such as `add.List`.

    - `given`: the arguments after the list: "list", "scalar", "scalars" (a number per tensor), "tensor" (of no
      dimensions), "tensors" (a tensor with a number per list element), or "" (nothing).
    - `formula`: of the elements of the lists, then of the numbers.
    - `low`, `high`: the range of the elements.
    - `floating`: whether integers have float results, so that there is no in-place variant for them.
    - `slopes`: the derivative of the formula by each of its lists, with the arguments of the formula. Without it, the
      formula is analytic.
    """

    name: str
    overload: str
    given: tuple[str, ...]
    formula: Formula
    groups: tuple[str, ...] = _ALL
    low: float = -0.9
    high: float = 0.9
    floating: bool = False
    roundings: float = 8
    named: tuple[tuple[str, Any], ...] = ()
    slopes: tuple[Formula, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.name}.{self.overload}" if self.overload else self.name

    @property
    def has_in_place(self) -> bool:
        return self.name != "clone"

    def aten(self, in_place: bool) -> str:
        return f"_foreach_{self.name}{'_' * in_place}.{self.overload or 'default'}"


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    def run(x: Array) -> Array:
        return np.array([function(each) for each in np.asarray(x, np.float64).tolist()], np.float64)

    return run


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.asarray(x, np.result_type(x, np.float64)))))


def _sign(x: Array) -> Array:
    size = np.abs(x)
    return np.where(size == 0, 0, x / np.where(size == 0, 1, size)) if x.dtype.kind == "c" else np.sign(x)


def _floating(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a function that treats integers as floats."""
    return lambda x: function(x if x.dtype.kind in "fc" else x.astype(np.float64))


#: Functions with float results: the function, groups of types, and the range of the elements.
_FLOATS: dict[str, tuple[Formula, tuple[str, ...], float, float]] = {
    "acos": (np.arccos, _ALL, -0.9, 0.9),
    "asin": (np.arcsin, _ALL, -0.9, 0.9),
    "atan": (np.arctan, _ALL, -0.9, 0.9),
    "cos": (np.cos, _ALL, -3, 3),
    "cosh": (np.cosh, _ALL, -3, 3),
    "erf": (_each(math.erf), _REAL, -2, 2),
    "erfc": (_each(math.erfc), _REAL, -2, 2),
    "exp": (np.exp, _ALL, -3, 3),
    "expm1": (np.expm1, _ALL, -3, 3),
    "lgamma": (_each(math.lgamma), _REAL, 2.5, 9),
    "log": (np.log, _ALL, 1.2, 9),
    "log10": (np.log10, _ALL, 1.2, 9),
    "log1p": (np.log1p, _ALL, 0.2, 9),
    "log2": (np.log2, _ALL, 1.2, 9),
    "reciprocal": (lambda x: 1 / x, _ALL, 0.2, 9),
    "rsqrt": (lambda x: 1 / np.sqrt(x), _ALL, 0.2, 9),
    "sigmoid": (_sigmoid, _ALL, -3, 3),
    "sin": (np.sin, _ALL, -3, 3),
    "sinh": (np.sinh, _ALL, -3, 3),
    "sqrt": (np.sqrt, _ALL, 0.2, 9),
    "tan": (np.tan, _ALL, -1.2, 1.2),
    "tanh": (np.tanh, _ALL, -3, 3),
}
#: Functions that keep the type.
_KEPT: dict[str, tuple[Formula, tuple[str, ...]]] = {
    "abs": (np.abs, _REAL),
    "ceil": (np.ceil, _REAL),
    "floor": (np.floor, _REAL),
    "frac": (lambda x: x - np.trunc(x), ("float", "half")),
    "neg": (np.negative, _ALL),
    "round": (np.rint, _REAL),
    "sign": (_sign, _REAL),
    "trunc": (np.trunc, _REAL),
    "zero": (np.zeros_like, _ALL),
}


#: Derivatives of the functions that are not analytic, or that NumPy lacks for complex numbers.
_SLOPES: dict[str, Formula] = {
    "erf": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "erfc": lambda x: -2 / math.sqrt(math.pi) * np.exp(-x * x),
    "lgamma": special.digamma,
    "abs": np.sign,
    "frac": np.ones_like,
    **dict.fromkeys(("ceil", "floor", "round", "sign", "trunc", "zero"), np.zeros_like),
}


def _unary() -> Iterator[Operation]:
    for name, (formula, groups, low, high) in _FLOATS.items():
        slopes = (_SLOPES[name],) if name in _SLOPES else ()
        yield Operation(name, "", (), _floating(formula), groups, low, high, floating=True, roundings=16, slopes=slopes)
    for name, (formula, groups) in _KEPT.items():
        slopes = (_SLOPES[name],) if name in _SLOPES else ()
        yield Operation(name, "", (), formula, groups, -9, 9, roundings=1.01, slopes=slopes)


#: The share of each list in the slope of a minimum and of a maximum. Drawn numbers are never equal.
_OF_LESS: tuple[Formula, ...] = (lambda a, b: 1.0 * (a < b), lambda a, b: 1.0 * (b < a))
_OF_GREATER = _OF_LESS[::-1]


def _power(a: Any, b: Any) -> Any:
    return np.power(a, b)


_BINARY: dict[str, tuple[Formula, tuple[str, ...], tuple[str, ...], dict[str, Any]]] = {
    "add": (np.add, ("List", "Scalar", "ScalarList", "Tensor"), _ALL, {}),
    "sub": (np.subtract, ("List", "Scalar", "ScalarList"), _ALL, {}),
    "mul": (np.multiply, ("List", "Scalar", "ScalarList", "Tensor"), _ALL, {}),
    "div": (np.true_divide, ("List", "Scalar", "ScalarList", "Tensor"), _ALL, {"floating": True, "low": 0.3}),
    "clamp_max": (np.minimum, ("List", "Scalar", "ScalarList"), _REAL, {"low": -9, "high": 9, "slopes": _OF_LESS}),
    "clamp_min": (np.maximum, ("List", "Scalar", "ScalarList"), _REAL, {"low": -9, "high": 9, "slopes": _OF_GREATER}),
    "maximum": (np.maximum, ("List", "Scalar", "ScalarList"), _REAL, {"low": -9, "high": 9, "slopes": _OF_GREATER}),
    "minimum": (np.minimum, ("List", "Scalar", "ScalarList"), _REAL, {"low": -9, "high": 9, "slopes": _OF_LESS}),
    "pow": (_power, ("List", "Scalar", "ScalarList"), _ALL, {"low": 0.3, "high": 3, "roundings": 16}),
}
_GIVEN = {"List": "list", "Scalar": "scalar", "ScalarList": "scalars", "Tensor": "tensor"}


def _binary() -> Iterator[Operation]:
    for name, (formula, overloads, groups, more) in _BINARY.items():
        for overload in overloads:
            yield Operation(name, overload, (_GIVEN[overload],), formula, groups, **more)
    for name, formula in (("add", lambda a, b: a + 3 * b), ("sub", lambda a, b: a - 3 * b)):
        yield Operation(name, "List", ("list",), formula, named=(("alpha", 3),))
    yield Operation("add", "Tensor", ("tensor",), lambda a, b: a + 3 * b, named=(("alpha", 3),))


def _quotient(a: Any, b: Any, c: Any, s: Any) -> Any:
    return a + s * (b / c)


def _others() -> Iterator[Operation]:
    for overload, given in (("Scalar", "scalar"), ("ScalarList", "scalars"), ("Tensor", "tensors")):
        product = lambda a, b, c, s: a + s * b * c  # noqa: E731
        yield Operation("addcmul", overload, ("list", "list", given), product, _ALL)
        yield Operation("addcdiv", overload, ("list", "list", given), _quotient, _NUMBERS, low=0.3)
    for overload in ("List", "Scalar", "ScalarList"):
        between = lambda a, b, w: a + w * (b - a)  # noqa: E731
        yield Operation("lerp", overload, ("list", _GIVEN[overload]), between, _NUMBERS, roundings=24)
    yield Operation("copy", "", ("list",), lambda _, b: b, _ALL, roundings=1.01)
    yield Operation("clone", "", (), lambda a: a, _ALL, roundings=1.01)


def operations() -> dict[str, Operation]:
    """Return all operations by id; those with another `alpha` have it in their id."""
    found: dict[str, Operation] = {}
    for each in (*_unary(), *_binary(), *_others()):
        found["_".join([each.id, *(key for key, _ in each.named)])] = each
    return found
