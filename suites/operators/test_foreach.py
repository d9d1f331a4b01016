"""Operators on lists of tensors: NumPy's result for each tensor of the list, and no other memory is written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from . import _torch_private, comparison, foreach, lists
from .comparison import Bound, WrongValueError
from .foreach import Operation
from .foreach_calls import Call, Drawn
from .lists import Listed, Shape
from .references import formats
from .references.formats import Array
from .types import GROUPS, lacking

OPERATIONS = foreach.operations()
#: Lists of the first type of a group, and of its other types.
_FIRST, _OTHERS = ("one", "few", "misaligned", "strided"), ("few", "misaligned")
#: Operations of each kind of kernel that CUDA has for lists; the default run has their long lists.
_KINDS = (
    "sqrt", "zero", "copy", "clone", "add.List_alpha", "mul.List", "mul.Scalar", "mul.ScalarList", "mul.Tensor",
    "maximum.Scalar", "addcmul.Scalar", "addcdiv.ScalarList", "addcmul.Tensor", "lerp.List", "lerp.Scalar",
    "lerp.ScalarList", "pow.List",
)  # fmt: skip


def _cases() -> Iterator[Any]:
    for name, operation in OPERATIONS.items():
        for group in operation.groups:
            marks = [pytest.mark.operator(f"_foreach_{operation.name}")]
            if group != operation.groups[0]:
                marks.append(pytest.mark.extended)
            yield pytest.param(operation, group, id=f"{name}-{group}", marks=marks)


def _long() -> Iterator[Any]:
    for name, operation in OPERATIONS.items():
        marks = [pytest.mark.operator(f"_foreach_{operation.name}")]
        if name not in _KINDS:
            marks.append(pytest.mark.extended)
        yield pytest.param(operation, id=name, marks=marks)


EACH = pytest.mark.parametrize(("operation", "group"), list(_cases()))


def _types(group: str) -> list[torch.dtype]:
    found = [getattr(torch, name) for name in GROUPS[group] if name not in ("bool", "complex32")]
    return [each for each in found if each not in lacking()]


def _result(operation: Operation, dtype: torch.dtype) -> torch.dtype:
    """Return the type of the results: integers become float32 if a function of them is not an integer."""
    return torch.float32 if operation.floating and not (dtype.is_floating_point or dtype.is_complex) else dtype


def _arranged(found: Listed) -> list[Shape]:
    return [tuple(each.shape) for each in found.tensors]


def _bound(operation: Operation, dtype: torch.dtype) -> Bound:
    roundings = operation.roundings if operation.roundings < 2 or dtype.itemsize > 2 else 2.5
    allowed = lists.bound(dtype, roundings)
    # Sums and products round each step: an error of the terms, which are below 16 in all lists. Functions of 16-bit
    # types are those of float32, whose error near zero is that of a polynomial.
    terms = 16 * allowed.roundings * formats.unit(dtype) if operation.given else 0.0
    return Bound(allowed.roundings, 0.0, terms or (1e-6 if dtype.itemsize == 2 else 0.0))


@EACH
def test_foreach_works_on_each_tensor_of_a_list(
    operation: Operation, group: str, device: torch.device, rng: np.random.Generator
) -> None:
    """Each result is that of its tensor, in the order of the list, for all kinds of tensors.

    They include tensors without elements, of no dimensions, with addresses that vectors cannot have, with gaps, and in
    column-major order. The in-place variant writes the same values into the tensors, and nothing else.
    """
    for place, dtype in enumerate(_types(group)):
        for kind in _OTHERS if place else _FIRST:
            _check(operation, kind, Drawn(rng, operation, dtype), device)


@pytest.mark.parametrize("operation", list(_long()))
def test_foreach_works_on_many_tensors_and_on_long_ones(
    operation: Operation, device: torch.device, rng: np.random.Generator
) -> None:
    """Each of 231 tensors has its own result, and each element of tensors of more than 65536."""
    for kind in ("many", "chunks"):
        _check(operation, kind, Drawn(rng, operation, torch.float32), device)


def _check(operation: Operation, kind: str, draw: Drawn, device: torch.device) -> None:
    """Raise WrongValueError unless the operation computes its formula for a list, also in place."""
    pure = _torch_private.overload(operation.aten(False))
    call, dtype, where = Call(operation, draw, kind, device), draw.dtype, f"{operation.id} of {kind}"
    with np.errstate(all="ignore"):
        wanted = operation.formula(*call.arrays)
    result = _result(operation, dtype)
    shapes, allowed = _arranged(call.first), _bound(operation, result)
    found = pure(call.first.tensors, *call.others, **dict(operation.named))
    lists.check(found, shapes, wanted, result, allowed, where)
    if np.any(lists.flat(call.first.tensors) != call.first.values):
        raise WrongValueError(f"{where} changes its arguments")
    if not operation.has_in_place or result != dtype:
        return
    before = lists.outside(call.first)
    _torch_private.overload(operation.aten(True))(call.first.tensors, *call.others, **dict(operation.named))
    lists.check(call.first.tensors, shapes, wanted, dtype, allowed, f"{where} in place")
    if lists.outside(call.first) != before:
        raise WrongValueError(f"{where} in place writes beside its tensors")


@pytest.mark.operator("_foreach_add", "_foreach_addcmul")
@pytest.mark.parametrize("lists_given", [1, *(pytest.param(each, marks=pytest.mark.extended) for each in (2, 3))])
def test_foreach_of_more_than_320_chunks(lists_given: int, device: torch.device, rng: np.random.Generator) -> None:
    """111 tensors of three chunks each, in one, two or three lists, get the right sum in each byte."""
    size = 2 * 65536 + 5
    arrays = [rng.integers(-40, 41, (111, size), np.int8) for _ in range(lists_given)]
    given = [[torch.from_numpy(row).to(device, copy=True) for row in array] for array in arrays]
    name = ("add_.Scalar", "add_.List", "addcmul_.Scalar")[lists_given - 1]

    _torch_private.overload(f"_foreach_{name}")(*given, *([3] if lists_given == 1 else []))

    with np.errstate(over="ignore"):
        wanted = arrays[0] + (np.int8(3), arrays[-1], arrays[-1] * arrays[min(1, lists_given - 1)])[lists_given - 1]
    for place, (each, row) in enumerate(zip(given[0], wanted, strict=True)):
        if not np.array_equal(formats.read(comparison.on_host(each)), row):
            raise WrongValueError(f"{name}: wrong bytes in tensor {place}")


#: Orders of norms. For 1, 2 and infinity, CUDA has separate kernels.
ORDERS = {"0": 0, "1": 1, "2": 2, "3": 3.0, "half": 0.5, "inf": float("inf"), "minus_inf": float("-inf")}


def _norm(x: Array, order: float) -> float:
    size = np.abs(x).ravel()
    if order == 0:
        return float((size != 0).sum())
    if np.isinf(order):
        return float(size.max() if order > 0 else size.min())
    return float((size**order).sum() ** (1 / order))


def _separate(found: Listed) -> list[Array]:
    return np.split(found.values, np.cumsum(found.sizes)[:-1])


def _bounded(count: int, dtype: torch.dtype) -> Bound:
    """Return the bound of a sum of `count` terms in float32 or wider, added in blocks, and one rounding to the type."""
    inside = torch.float32 if dtype.itemsize == 2 else dtype
    return Bound(2 + (count + 64) * formats.unit(inside) / formats.unit(dtype))


@pytest.mark.operator("_foreach_norm")
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("group", ["float", pytest.param("half", marks=pytest.mark.extended), "complex"])
@pytest.mark.types("float64")
def test_foreach_norm(order: float, group: str, device: torch.device, rng: np.random.Generator) -> None:
    """Each norm is that of its tensor, of any order, in its type or in a wider one; that of no elements is 0."""
    run = _torch_private.overload("_foreach_norm.Scalar")
    for place, dtype in enumerate(_types(group)):
        if dtype == torch.float16 and order == 0.5:
            continue  # the square of a sum of roots is beyond the type
        draw = Drawn(rng, OPERATIONS["neg"], dtype)
        for kind in ("few", "strided", "misaligned") if place else ("few", "strided", "many", "chunks"):
            if kind == "chunks" and dtype.itemsize == 2:
                continue
            given = lists.listed(kind, draw, dtype, device)
            parts = _separate(given)
            if np.isinf(order):  # a tensor without elements has no largest one
                filled = [each for each in zip(given.tensors, parts, strict=True) if each[1].size]
                given.tensors, parts = [one for one, _ in filled], [two for _, two in filled]
            wanted = np.array([_norm(each, order) for each in parts])
            wider = {torch.float32: torch.float64, torch.bfloat16: torch.float32, torch.complex64: torch.complex128}
            for out in (None, wider.get(dtype)):
                if out is None and place and kind == "misaligned":
                    continue
                found = run(given.tensors, order, **({} if out is None else {"dtype": out}))
                real = (out or dtype).to_real()
                largest = max(map(len, parts))
                lists.check(found, [()] * len(parts), wanted, real, _bounded(largest, real), f"norm of {kind}")


@pytest.mark.operator("_foreach_max")
@pytest.mark.types("float64")
def test_foreach_max(device: torch.device, rng: np.random.Generator) -> None:
    """Each maximum is that of its tensor, also if it is the last element of a chunk, or NaN."""
    run = _torch_private.overload("_foreach_max.default")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8):
        for kind in ("one", "misaligned", "many", "chunks") if dtype != torch.bfloat16 else ("one", "misaligned"):
            given = lists.listed(kind, Drawn(rng, OPERATIONS["neg"], dtype), dtype, device)
            wanted = np.array([each.max() for each in _separate(given)])
            lists.check(run(given.tensors), [()] * len(wanted), wanted, dtype, Bound(0), f"max of {kind}")
    for size in (65536, 65537, 131072, 5):
        x = np.full(size, -3.0)
        for place in (0, size - 1, size // 2):
            for most in (2.0, np.nan):
                row = x.copy()
                row[place] = most
                given_ = [lists.number(each, torch.float32).to(device) for each in (x, row)]
                lists.check(run(given_), [(), ()], np.array([-3, most]), torch.float32, Bound(0), "max")


@pytest.mark.operator("_foreach_powsum")
@pytest.mark.parametrize("order", [1, 2], ids=str)
@pytest.mark.types("float64")
def test_foreach_powsum(order: int, device: torch.device, rng: np.random.Generator) -> None:
    """Each sum of powers is that of its tensor: a norm without the root."""
    run = _torch_private.overload("_foreach_powsum.Scalar")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for kind in ("few", "many", "strided"):
            given = lists.listed(kind, Drawn(rng, OPERATIONS["neg"], dtype), dtype, device)
            wanted = np.array([(np.abs(each) ** order).sum() for each in _separate(given)])
            lists.check(run(given.tensors, order), [()] * len(wanted), wanted, dtype, _bounded(33, dtype), "powsum")


@pytest.mark.operator("_foreach_mm")
@pytest.mark.types("float64")
def test_foreach_mm(device: torch.device, rng: np.random.Generator) -> None:
    """Each product is that of its pair of matrices: whole numbers, exact in each type."""
    run = _torch_private.overload("_foreach_mm.default")
    for dtype in (torch.float32, torch.float64):
        shapes = [(3, 4, 5), (1, 7, 2), (16, 8, 8), (2, 0, 3), (65, 33, 17)]
        pairs = [(rng.integers(-9, 10, (m, k)), rng.integers(-9, 10, (k, n))) for m, k, n in shapes]
        given = [[lists.number(each, dtype).to(device) for each in side] for side in zip(*pairs, strict=True)]
        wanted = np.concatenate([(a @ b).ravel() for a, b in pairs])
        lists.check(run(*given), [(m, n) for m, _, n in shapes], wanted, dtype, Bound(0), "mm")


@pytest.mark.operator("_foreach_pow")
@pytest.mark.types("float64")
def test_foreach_pow_of_a_number_and_exponents(device: torch.device, rng: np.random.Generator) -> None:
    """The result is a number to the power of each element of each tensor."""
    run = _torch_private.overload("_foreach_pow.ScalarAndTensor")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        given = lists.listed("few", Drawn(rng, OPERATIONS["tanh"], dtype), dtype, device)
        wanted = 1.5**given.values
        lists.check(run(1.5, given.tensors), _arranged(given), wanted, dtype, lists.bound(dtype, 16), "pow")


#: The bits of the largest whole numbers below which a type has all of them, without the sign.
_DIGITS = {"float32": 24, "float64": 53, "bfloat16": 8, "int32": 31}


@pytest.mark.operator("_foreach_copy")
@pytest.mark.parametrize("source", ["float32", "float64", "bfloat16", "int32"])
def test_foreach_copy_converts_to_the_type_of_each_target(
    source: str, device: torch.device, rng: np.random.Generator
) -> None:
    """Numbers are rounded once to the type of their target, and may come from a tensor of one element.

    Whole numbers have as many digits as their source has, so that no narrower type on the way holds them.
    """
    run = _torch_private.overload("_foreach_copy_.default")
    for target in ("float32", "float16", "bfloat16", "int64"):
        draw: Any = Drawn(rng, OPERATIONS["neg"], getattr(torch, source))
        if target == "int64":
            most = 2 ** _DIGITS[source]
            draw = partial(rng.integers, -most + 1, most)
        for kind in ("few", "strided", "chunks") if (source, target) == ("float32", "bfloat16") else ("few", "strided"):
            given = lists.listed(kind, draw, getattr(torch, source), device)
            dtype = getattr(torch, target)
            into = lists.listed(kind, lambda shape: np.full(shape, 5), dtype, device)
            run(into.tensors, given.tensors)
            wanted = formats.rounded(given.values, dtype) if dtype.is_floating_point else np.trunc(given.values)
            lists.check(into.tensors, _arranged(given), wanted.astype(formats.wide(dtype)), dtype, Bound(0), source)
    wide = [lists.number(np.zeros((3, 4)), torch.float32).to(device) for _ in range(3)]
    run(wide, [lists.number(np.full((1, 4), 2.0 + place), torch.float32).to(device) for place in range(3)])
    lists.check(wide, [(3, 4)] * 3, np.repeat([2.0, 3.0, 4.0], 12), torch.float32, Bound(0), "copy of a row")


@pytest.mark.operator("_foreach_add", "_foreach_mul")
@pytest.mark.types("float64")
def test_foreach_of_unlike_types_promotes(device: torch.device, rng: np.random.Generator) -> None:
    """Each pair of tensors is promoted to a common type, and different sizes are broadcast."""
    left = [rng.integers(-9, 10, (2, 3)), rng.integers(-9, 10, (4,)), rng.integers(-9, 10, (3, 1))]
    right: list[Any] = [rng.integers(-9, 10, (2, 3)), rng.integers(-9, 10, ()), rng.integers(0, 10, (1, 5))]
    types = [(torch.float32, torch.float64), (torch.int32, torch.float32), (torch.int64, torch.uint8)]
    results = [torch.float64, torch.float32, torch.int64]
    given: list[list[torch.Tensor]] = []
    for side, part in enumerate((left, right)):
        made = [lists.number(np.asarray(each), kind[side]) for each, kind in zip(part, types, strict=True)]
        given.append([each.to(device) for each in made])
    for name, formula in (("add", np.add), ("mul", np.multiply)):
        found = _torch_private.overload(f"_foreach_{name}.List")(*given)
        for each, one, two, dtype in zip(found, left, right, results, strict=True):
            wanted = formula(one, two)
            lists.check([each], [wanted.shape], wanted.ravel(), dtype, Bound(0), name)


@pytest.mark.operator("_foreach_maximum", "_foreach_minimum", "_foreach_clamp_max", "_foreach_clamp_min")
@pytest.mark.parametrize("name", ["maximum", "minimum", "clamp_max", "clamp_min"])
@pytest.mark.types("float64")
def test_foreach_maximum_and_minimum_keep_nan(name: str, device: torch.device) -> None:
    """NaN on either side gives NaN, and infinities are the ends of the order."""
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -1.0, 2.0])
    one, two = (each.ravel() for each in np.meshgrid(values, values))
    wanted = (np.maximum if name in ("maximum", "clamp_min") else np.minimum)(one, two)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        a, b = ([lists.number(each, dtype).to(device)] * 2 for each in (one, two))
        for suffix in ("", "_"):
            left = [each.clone() for each in a]
            found = _torch_private.overload(f"_foreach_{name}{suffix}.List")(left, b)
            lists.check(found or left, [(36,)] * 2, np.tile(wanted, 2), dtype, Bound(0), name)


@pytest.mark.operator("_foreach_add")
def test_foreach_of_empty_and_unlike_lists_raises(device: torch.device) -> None:
    """A list without tensors, and lists of different lengths or of sizes that do not broadcast, raise RuntimeError."""
    x = torch.ones(2, device=device)
    run = {each: _torch_private.overload(f"_foreach_add.{each}") for each in ("List", "Scalar", "ScalarList")}
    for name, arguments in (
        ("Scalar", ([], 1)),
        ("List", ([], [])),
        ("List", ([x], [x, x])),
        ("ScalarList", ([x], [1.0, 2.0])),
        ("List", ([x], [torch.ones(3, device=device)])),
    ):
        with pytest.raises(RuntimeError):
            run[name](*arguments)
