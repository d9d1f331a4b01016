"""Values at sizes that reach each tail, and values at the ends of each type."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from . import _torch_private, case, comparison, known, nested, oracles, samples, sizes, types
from .catalogue import COSTLY, by_operator, entries
from .references import formats

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecated and experimental features warn


@by_operator("sizes", extended=COSTLY)
def test_sizes(name: str, device: torch.device) -> None:
    """Every element is correct for rows, columns and images of sizes around powers of two, and of primes."""
    info = _torch_private.operator(name)
    for sample in sizes.SIZES[name]():
        oracles.verify(name, info, sample, device)


@by_operator("sizes", extended=COSTLY)
def test_sizes_of_16_bits(name: str, device: torch.device) -> None:
    """The longest rows and the largest inputs are correct in types of 16 bits, whose sums kernels keep in wider types.

    Numbers of one sign make the sums larger than the numbers, so that one of 16 bits would lose them.
    """
    info = _torch_private.operator(name)
    every = sizes.SIZES[name]()
    longest = max(every, key=lambda each: max(_lengths(each), default=0))
    largest = max(every, key=_elements)
    kinds = [each for each in (torch.bfloat16, torch.float16) if each in types.supported(info, device)]
    kinds = [each for each in kinds if not known.deviates(name, formats.name_of(each), device)]
    if not kinds or not _lengths(longest):
        pytest.skip(f"{name} takes no rows of 16 bits on {device.type}")
    for dtype, sample in itertools.product(kinds, [longest] if largest is longest else [longest, largest]):
        narrow = nested.mapped(lambda each, dtype=dtype: each.to(dtype) if _is_float(each) else each, vars(sample))
        of_one_sign = {
            **narrow,
            "input": nested.mapped(lambda each: each.abs() + 0.5 if _is_float(each) else each, narrow["input"]),
        }
        for each in (narrow, of_one_sign):
            oracles.verify(name, info, SimpleNamespace(**each), device)


def _is_float(each: Any) -> bool:
    return isinstance(each, torch.Tensor) and each.is_floating_point()


def _lengths(sample: Any) -> list[int]:
    """Return the longest side of each tensor of floats."""
    return [max(each.shape, default=0) for each in nested.leaves(vars(sample)) if _is_float(each)]


def _elements(sample: Any) -> int:
    """Return the number of elements of the largest tensor of floats."""
    return max((each.numel() for each in nested.leaves(vars(sample)) if _is_float(each)), default=0)


#: Domains far from poles, for operators that are ill-conditioned near them.
_DOMAINS = {
    "polygamma": (0.5, 12.0),
    "special.polygamma": (0.5, 12.0),
    "special.zeta": (1.5, 9.0),
    "digamma": (0.5, 12.0),
}


def _domain(info: Any, values: torch.Tensor) -> torch.Tensor:
    """Return the values moved into the domain of an operator, if it states one."""
    low, high = _DOMAINS.get(info.name, getattr(info, "domain", (None, None)))
    if low is None and high is None:
        return values
    low, high = (-3.0 if low is None else low), (3.0 if high is None else high)
    return (values / 4 + 0.5) * (high - low) * 0.98 + low + (high - low) * 0.005


#: Operators whose integers overflow, or become floats.
_SMALL = frozenset({"lcm", "special.zeta", "ldexp"})


def _vectors(info: Any, length: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return vectors of a length for the arguments, with distinct values, also in the high bits of integers."""
    found = []
    count = 2 if type(info).__name__ == "BinaryUfuncInfo" else 1
    for place in range(count):
        if dtype.is_floating_point or dtype.is_complex:
            kind = torch.complex128 if dtype.is_complex else torch.float64
            base = sizes.waves(61, dtype=torch.float64, phase=place)
            base = _domain(info, base).to(kind)
            if dtype.is_complex:
                base = base + 1j * sizes.waves(61, dtype=torch.float64, phase=place + 2)
        elif dtype == torch.bool:
            base = sizes.whole(61, high=2, step=5 + place)
        elif getattr(info, "promotes_int_to_float", False) or info.name in _SMALL or info.name.startswith("special."):
            base = sizes.whole(61, high=6, step=5 + place) + 1
        else:
            top = torch.iinfo(dtype).max
            shift = place and info.name in (
                "bitwise_left_shift",
                "bitwise_right_shift",
                "ldexp",
                "pow",
                "__rpow__",
                "float_power",
            )
            base = torch.tensor(
                [(each * (top // 61) + each) % top + 1 for each in range(61)],
                dtype=torch.uint64 if dtype == torch.uint64 else torch.int64,
            )
            base = base.remainder(4) if shift else base
            if dtype != torch.uint64 and torch.iinfo(dtype).min < 0 and not place:
                base = torch.where(torch.arange(61) % 3 == 0, -base, base)
        found.append(base.to(dtype).repeat(-(-length // 61))[:length])
    return found


@by_operator("lengths", extended=COSTLY)
def test_lengths(name: str, device: torch.device) -> None:
    """Every element is correct for vectors of lengths around powers of two, and of primes, including its high bits."""
    info = _torch_private.operator(name)
    tried = [each for each in types.supported(info, device) if not known.deviates(name, formats.name_of(each), device)]
    order = sorted(tried, key=str)
    if not order:
        pytest.skip(f"{name} has no type on {device.type}")
    for place, length in enumerate(sizes.LENGTHS):
        dtype = order[place % len(order)]
        if known.lengths_differ(name, formats.name_of(dtype)):
            continue
        x, *others = _vectors(info, length, dtype)
        named = info.sample_kwargs(torch.device("cpu"), dtype, x)[0] if hasattr(info, "sample_kwargs") else {}
        oracles.verify(name, info, SimpleNamespace(input=x, args=tuple(others), kwargs=named), device)


#: Pairs of shapes that broadcast: rows, columns, both, a number, and a missing dimension.
_SHAPES = (
    ((3, 4), (1, 4)),
    ((3, 4), (3, 1)),
    ((5, 1), (1, 7)),
    ((), (3, 4)),
    ((3, 4), ()),
    ((2, 5, 1), (5, 7)),
    ((4,), (3, 4)),
)


@by_operator("broadcast")
def test_broadcast(name: str, device: torch.device) -> None:
    """Arguments of different shapes are repeated along the dimensions of size 1 (torch, broadcasting semantics)."""
    info = _torch_private.operator(name)
    order = sorted(types.supported(info, device), key=str)
    dtype = torch.float32 if torch.float32 in order else order[0]
    first, second = _vectors(info, 40, dtype)
    for one, two in _SHAPES:
        x, y = (each[: math.prod(shape)].reshape(shape) for each, shape in ((first, one), (second, two)))
        oracles.verify(name, info, SimpleNamespace(input=x, args=(y,), kwargs={}), device)


#: Operators of two tensors that do not take a number as the second.
_TENSORS_ONLY = frozenset(
    {
        "atan2", "complex", "fmax", "fmin", "gcd", "heaviside", "hypot", "igamma", "igammac", "isclose", "lcm", "ldexp",
        "logaddexp", "logical_and", "logical_or", "logical_xor", "max.binary", "maximum", "min.binary", "minimum",
        "nextafter", "polar",
    }
)  # fmt: skip


def _with_numbers() -> list[Any]:
    names = [entry.name for entry in entries() if "broadcast" in entry.aspects and entry.name not in _TENSORS_ONLY]
    # The simulated devices cannot call kernels whose first argument becomes a number.
    real = pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"silicon": True}])
    limited = {name for name in names if name == "__rmod__" or "polynomial" in name}
    marks = {name: [pytest.mark.operator(name), *([real] if name in limited else [])] for name in names}
    return [pytest.param(name, marks=marks[name]) for name in names]


@pytest.mark.parametrize("name", _with_numbers())
def test_numbers(name: str, device: torch.device) -> None:
    """A number may be the second argument: separate overloads compute a thousand elements of each type correctly."""
    info = _torch_private.operator(name)
    for dtype in sorted(types.supported(info, device), key=str):
        if dtype == torch.bool or known.deviates(name, formats.name_of(dtype), device):
            continue
        whole = not (dtype.is_floating_point or dtype.is_complex)
        number = 2 if "pow" in name or "shift" in name else 3 if whole else 1.75
        (x, *_) = _vectors(info, 1025, dtype)
        oracles.verify(name, info, SimpleNamespace(input=x, args=(number,), kwargs={}), device)


def _ends(dtype: torch.dtype) -> list[float]:
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return [0, 1, 2, 3, info.max, info.max - 1, info.min, info.min + 1, info.max // 2]
    top, tiny = formats.largest(dtype), formats.smallest(dtype)
    return [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        -3.0,
        math.inf,
        -math.inf,
        math.nan,
        top,
        -top,
        tiny,
        -tiny,
        tiny / 4,
        10.0,
        -10.0,
    ]


@by_operator("extremes", without=known.extremes_differ_in("float32", "float64", "bfloat16"))
def test_extremes(name: str, device: torch.device) -> None:
    """Infinities, NaN, signed zeros, and the largest and smallest numbers give the values of NumPy and IEEE 754."""
    info = _torch_private.operator(name)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        if dtype not in types.supported(info, device) or known.extremes_differ(name, formats.name_of(dtype)):
            continue
        ends = [each for each in _ends(dtype) if name not in known.AT_INFINITY or not math.isinf(each)]
        values = torch.tensor(ends, dtype=torch.float64).to(dtype)
        oracles.verify(name, info, _each_with_each(info, values), device)


def _each_with_each(info: Any, values: torch.Tensor) -> SimpleNamespace:
    """Return a sample with these values; for an operator of two arguments, with each pair of them."""
    if type(info).__name__ == "BinaryUfuncInfo":
        one, two = values.repeat_interleave(len(values)), values.repeat(len(values))
        return SimpleNamespace(input=one, args=(two,), kwargs={})
    return SimpleNamespace(
        input=values, args=(), kwargs=info.sample_kwargs(torch.device("cpu"), values.dtype, values)[0]
    )


#: Exponents of 2: small and large numbers, far from the ends of the type. torch's samples have none beyond 9.
_EXPONENTS = (-14, -7, -3, 4, 6, 7, 9, 12)


@by_operator("extremes", without=known.extremes_differ_in("float32", "float64"))
def test_magnitudes(name: str, device: torch.device) -> None:
    """Values are correct for numbers between 2^-14 and 2^12, for which kernels have separate branches and series."""
    info = _torch_private.operator(name)
    numbers = [factor * 2.0**exponent for exponent in _EXPONENTS for factor in (1.0, -1.37)]
    for dtype in (torch.float32, torch.float64):
        if dtype not in types.supported(info, device) or known.extremes_differ(name, formats.name_of(dtype)):
            continue
        values = torch.tensor(numbers, dtype=torch.float64).to(dtype)
        oracles.verify(name, info, _each_with_each(info, values), device)


@by_operator("reductions")
def test_reductions_of_extremes(name: str, device: torch.device) -> None:
    """An infinity or NaN at any place of a row or column, first, last and in between, gives NumPy's result."""
    info = _torch_private.operator(name)
    if torch.float32 not in types.supported(info, device) or known.extremes_differ(name, "float32"):
        pytest.skip(f"{name} has no float32 on {device.type}")
    for value in (math.nan, math.inf, -math.inf):
        rows = sizes.waves(35, 33)
        for place in range(33):
            rows[place, place] = value
        for sample in (sizes.sample(rows, dim=1), sizes.sample(rows.t().contiguous(), dim=0), sizes.sample(rows[5])):
            oracles.verify(name, info, sample, device)


#: Operators that compute the logarithm or the shares of a sum of exponentials over an axis.
_OF_EXPONENTIALS = (
    "softmax", "log_softmax", "logsumexp", "nn.functional.softmin", "masked.softmax", "masked.log_softmax",
    "masked.softmin", "masked.logsumexp",
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.operator(each)) for each in _OF_EXPONENTIALS])
def test_sums_of_exponentials_of_large_numbers(name: str, device: torch.device) -> None:
    """Numbers whose exponentials overflow, or are all zero, give finite results over each axis.

    Source: torch, `logsumexp`: the computation is numerically stabilized.
    """
    info = _torch_private.operator(name)
    for dtype in (torch.float32, torch.float64):
        for level in (0.0, 1000.0, -1000.0):
            x = sizes.waves(5, 7, 6, dtype=torch.float64) * 60 + level
            for dim in range(3):
                oracles.verify(name, info, sizes.sample(x.to(dtype), dim), device)


@by_operator("empty", extended=True)
def test_empty(name: str, device: torch.device, request: pytest.FixtureRequest) -> None:
    """Inputs without elements give results of the shapes and types that torch declares, or are also refused there."""
    if name in known.EMPTY:
        known.waive(request, known.EMPTY[name], device)
    for info, sample, _ in case.spread(name, _first_group(name, device), device, 3):

        def empty(each: Any) -> Any:
            return each[:0] if isinstance(each, torch.Tensor) and each.dim() and each.layout == torch.strided else each

        given = nested.mapped(empty, samples.arguments(sample))
        function = oracles.call(info)
        try:
            expected = function(
                nested.mapped(lambda each: each.to("meta") if isinstance(each, torch.Tensor) else each, given)
            )
        except (RuntimeError, IndexError, NotImplementedError, ValueError, TypeError, AssertionError):
            continue
        if device.type == "cuda" and _is_refused(function, given):
            continue
        try:
            result = comparison.tensors(function(samples.move(given, device)))
        except (RuntimeError, IndexError):
            continue
        for one, two in zip(result, comparison.tensors(expected), strict=True):
            if tuple(one.shape) != tuple(two.shape) or one.dtype != two.dtype:
                raise comparison.WrongValueError(
                    f"{name}: {one.dtype} {tuple(one.shape)}, expected {two.dtype} {tuple(two.shape)}"
                )


def _is_refused(function: Callable[[Any], Any], given: Any) -> bool:
    """Return whether the CPU refuses a call. For an index into nothing, a GPU asserts, and is unusable afterwards."""
    try:
        function(samples.move(given, torch.device("cpu")))
    except (RuntimeError, IndexError):
        return True
    return False


def _first_group(name: str, device: torch.device) -> str:
    known_types = types.supported(_torch_private.operator(name), device)
    return next(
        each for each, names in types.GROUPS.items() if any(getattr(torch, one, None) in known_types for one in names)
    )
