"""Derivatives of the operators on lists of tensors (`torch._foreach_*`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from . import _torch_private, foreach, lists
from .comparison import Bound, WrongValueError
from .foreach import Operation
from .foreach_calls import Call, Drawn
from .references.formats import Array

#: The step is imaginary (Squire and Trapp, 1998): nothing cancels, and a sample beside a kink stays on its side.
_STEP = 1e-30
_ALLOWED = Bound(64, 0, least=1e-13)
_PURE, _IN_PLACE = "pure", "in_place"
#: Operations for which torch has no derivative (torch 2.13), by id.
_WITHOUT = {
    f"{name}-{way}"
    for names, ways in (
        (("zero",), (_PURE,)),
        (("maximum.Scalar", "maximum.ScalarList", "minimum.Scalar", "minimum.ScalarList"), (_IN_PLACE,)),
        (("addcmul.Tensor", "addcdiv.Tensor", "copy"), (_PURE, _IN_PLACE)),
    )
    for name in names
    for way in ways
}
_BY_PLACE = pytest.mark.xfail(
    raises=IndexError, reason="its derivative takes an element of a tensor by the tensor's place in the list"
)
_MARKS = {"addcdiv.Scalar-pure": _BY_PLACE, "addcdiv.ScalarList-pure": _BY_PLACE}


def _ways() -> Iterator[Any]:
    for name, operation in foreach.operations().items():
        for way in (_PURE, _IN_PLACE):
            if "float" in operation.groups and (operation.has_in_place or way == _PURE):
                marks = [pytest.mark.operator(f"_foreach_{operation.name}")]
                key = f"{name}-{way}"
                marks += [_MARKS[key]] if key in _MARKS else []
                yield pytest.param(operation, way == _IN_PLACE, key in _WITHOUT, id=key, marks=marks)


def slopes_of(operation: Operation, arrays: list[Array], place: int) -> Array:
    """Return the derivative of each result by the same element of one list."""
    if operation.slopes:
        found = operation.slopes[place](*arrays)
    else:
        moved = [each + 1j * _STEP * (number == place) for number, each in enumerate(arrays)]
        found = operation.formula(*moved).imag / _STEP
    return np.broadcast_to(np.asarray(found, np.float64), arrays[0].shape)


@pytest.mark.parametrize(("operation", "in_place", "without"), list(_ways()))
@pytest.mark.types("float64")
def test_foreach_gradients(
    operation: Operation, in_place: bool, without: bool, device: torch.device, case_seed: int
) -> None:
    """The gradient of each tensor of each list is the derivative of the operation's formula there (NumPy, float64).

    The lists have tensors without elements, of no dimensions, and with gaps. The in-place variant has the same
    gradients. An operation without a derivative says so in the backward pass, and gives no gradient.
    """
    rng = np.random.default_rng(case_seed)
    for kind in ("few", "strided"):
        call = Call(operation, Drawn(rng, operation, torch.float64), kind, device)
        given = [call.first.tensors, *(each for each in call.others if isinstance(each, list) and _holds_tensors(each))]
        for each in (tensor for tensors in given for tensor in tensors):
            each.requires_grad_()
        weights = rng.uniform(0.5, 2, call.first.values.shape)

        first = [each.clone() for each in given[0]] if in_place else given[0]
        found = _torch_private.overload(operation.aten(in_place))(first, *call.others, **dict(operation.named))
        results = first if in_place else found
        if without:
            with pytest.raises(RuntimeError, match=r"derivative for .* is not implemented"):
                _backward(results, weights)
            continue
        _backward(results, weights)

        for place, tensors in enumerate(given):
            wanted = weights * slopes_of(operation, call.arrays, place)
            where = f"the gradient of {operation.id} of {kind} by list {place}"
            gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in tensors]
            shapes = [tuple(each.shape) for each in tensors]
            lists.check(gradients, shapes, wanted, torch.float64, _ALLOWED, where)


def _holds_tensors(given: list[Any]) -> bool:
    return isinstance(given[0], torch.Tensor)


def _backward(results: list[torch.Tensor], weights: Array) -> None:
    """Compute the gradients of the sum of all elements, each times its weight."""
    parts = np.split(weights, np.cumsum([each.numel() for each in results])[:-1])
    pairs = [
        (each, torch.from_numpy(part.copy()).view(each.shape).to(each.device))
        for each, part in zip(results, parts, strict=True)
        if each.requires_grad
    ]
    if not pairs:
        raise WrongValueError("no result has a gradient")
    torch.autograd.backward(*map(list, zip(*pairs, strict=True)))


@pytest.mark.operator("_foreach_add", "_foreach_mul", "_foreach_div")
@pytest.mark.parametrize("name", ["add", "mul", "div"])
@pytest.mark.types("float64")
def test_foreach_gradient_of_a_shared_number(
    name: str, device: torch.device, case_seed: int, request: pytest.FixtureRequest
) -> None:
    """A tensor of no dimensions that is combined with all tensors of the list gets the sum of their gradients."""
    issue = "https://github.com/pytorch/pytorch/issues/144580"
    request.applymarker(pytest.mark.xfail(raises=RuntimeError, reason=f"the gradients are not added ({issue})"))
    rng = np.random.default_rng(case_seed)
    values = [rng.uniform(0.5, 2, count) for count in (3, 1, 4)]
    number = torch.tensor(1.25, dtype=torch.float64, device=device, requires_grad=True)
    first = [torch.from_numpy(each).to(device) for each in values]

    found = _torch_private.overload(f"_foreach_{name}.Tensor")(first, number)
    torch.autograd.backward(found, [torch.ones_like(each) for each in found])

    every = np.concatenate(values)
    slopes = {"add": np.ones_like(every), "mul": every, "div": -every / 1.25**2}[name]
    assert number.grad is not None
    assert abs(float(number.grad) - slopes.sum()) < 1e-9
