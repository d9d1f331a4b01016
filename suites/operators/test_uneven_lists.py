"""Lists that differ in one tensor: `_foreach_*`, the steps of optimizers and gradient clipping treat each as it is.

An implementation that takes the properties of the whole list from one of its tensors fails, wherever that one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from . import known

WRONG = (AssertionError,)
COUNT = 5
PLACES = {"first": 0, "middle": COUNT // 2, "last": COUNT - 1}

#: By what is different about one tensor of a list of contiguous float32 tensors.
DIFFERENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "float64": lambda x: x.double(),
    "float16": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "transposed": lambda x: x.t(),
    "gap": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "offset": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x),
    "size_0": lambda x: x[:0],
    "no_dimensions": lambda x: x.sum(),
    "larger": lambda x: x.repeat(40, 40),
    "nan": lambda x: x.masked_fill(x == x.amax(), float("nan")),
    "infinite": lambda x: x.masked_fill(x == x.amax(), float("-inf")),
}


def uneven(difference: str, place: int, device: torch.device, seed: int = 1) -> list[Tensor]:
    """Return tensors with values from 0.5 to 1.5, of which the one in this place is different."""
    generator = torch.Generator().manual_seed(seed)
    made = [(torch.rand(4, 4, generator=generator) + 0.5).to(device) for _ in range(COUNT)]
    made[place] = DIFFERENCES[difference](made[place])
    return made


def assert_each_equal(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    assert len(found) == len(wanted)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(
            one, other, equal_nan=True, msg=lambda text, number=number: f"tensor {number} of {COUNT}: {text}"
        )


Lists = tuple[list[Tensor], ...]
#: Operators of lists, each with the operator of one tensor. Both get as many lists or tensors as the second number.
OPERATORS: dict[str, tuple[Callable[..., Sequence[Tensor]], Callable[..., Tensor], int]] = {
    "sqrt": (torch._foreach_sqrt, torch.sqrt, 1),
    "neg": (torch._foreach_neg, torch.neg, 1),
    "exp": (torch._foreach_exp, torch.exp, 1),
    "norm": (torch._foreach_norm, torch.linalg.vector_norm, 1),
    **{
        f"norm_{order}": (partial(torch._foreach_norm, ord=order), partial(torch.linalg.vector_norm, ord=order), 1)
        for order in (1.0, math.inf)
    },
    "add_number": (lambda x: torch._foreach_add(x, 1.5), lambda x: x + 1.5, 1),
    "mul_numbers": (lambda x: torch._foreach_mul(x, [2.0] * COUNT), lambda x: x * 2.0, 1),
    "add": (torch._foreach_add, torch.add, 2),
    "add_alpha": (lambda x, y: torch._foreach_add(x, y, alpha=2), lambda x, y: torch.add(x, y, alpha=2), 2),
    "mul": (torch._foreach_mul, torch.mul, 2),
    "div": (torch._foreach_div, torch.div, 2),
    "maximum": (torch._foreach_maximum, torch.maximum, 2),
    "pow": (torch._foreach_pow, torch.pow, 2),
    "lerp": (lambda x, y: torch._foreach_lerp(x, y, 0.25), lambda x, y: torch.lerp(x, y, 0.25), 2),
    "addcmul": (
        lambda x, y, z: torch._foreach_addcmul(x, y, z, value=0.5),
        lambda x, y, z: torch.addcmul(x, y, z, value=0.5),
        3,
    ),
    "addcdiv": (
        lambda x, y, z: torch._foreach_addcdiv(x, y, z, value=0.5),
        lambda x, y, z: torch.addcdiv(x, y, z, value=0.5),
        3,
    ),
}
#: In-place operators of lists, which write into the first.
IN_PLACE: dict[str, tuple[Callable[..., object], Callable[..., object], int]] = {
    "zero": (torch._foreach_zero_, torch.zero_, 1),
    "sqrt": (torch._foreach_sqrt_, torch.sqrt_, 1),
    "add": (torch._foreach_add_, Tensor.add_, 2),
    "mul": (torch._foreach_mul_, Tensor.mul_, 2),
    "copy": (torch._foreach_copy_, Tensor.copy_, 2),
    "lerp": (lambda x, y: torch._foreach_lerp_(x, y, 0.25), lambda x, y: x.lerp_(y, 0.25), 2),
    "addcmul": (
        lambda x, y, z: torch._foreach_addcmul_(x, y, z, value=0.5),
        lambda x, y, z: x.addcmul_(y, z, value=0.5),
        3,
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("name", OPERATORS)
def test_foreach_of_a_list_with_one_other_tensor(name: str, difference: str, place: str, device: torch.device) -> None:
    """An operator of lists gives for each tensor the result, type and strides of the operator of one tensor.

    The largest of no elements is refused.
    """
    of_lists, of_one, lists = OPERATORS[name]
    given = [uneven(difference, PLACES[place], device, seed) for seed in range(lists)]
    if (name, difference) == ("norm_inf", "size_0"):
        with pytest.raises(RuntimeError, match="infinity norm on an empty tensor"):
            of_lists(*given)
        return

    found = of_lists(*given)

    assert_each_equal(found, [of_one(*tensors) for tensors in zip(*given, strict=True)])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("name", IN_PLACE)
def test_foreach_in_place_of_a_list_with_one_other_tensor(
    name: str, difference: str, place: str, device: torch.device
) -> None:
    """An in-place operator of lists writes into each tensor of the first list, and into no other."""
    of_lists, of_one, lists = IN_PLACE[name]
    given, again = ([uneven(difference, PLACES[place], device, seed) for seed in range(lists)] for _ in range(2))
    addresses = [tensor.data_ptr() for tensor in given[0]]

    of_lists(*given)
    for tensors in zip(*again, strict=True):
        of_one(*tensors)

    assert [tensor.data_ptr() for tensor in given[0]] == addresses
    for found, wanted in zip(given, again, strict=True):
        assert_each_equal(found, wanted)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["add", "mul", "copy"])
def test_foreach_of_two_lists_with_one_pair_of_types(name: str, place: str, device: torch.device) -> None:
    """A pair of different types in one place is computed in their common type, and written in the type of the first."""
    of_lists, of_one, _ = IN_PLACE[name]

    def pair() -> list[list[Tensor]]:
        first, second = (uneven("float64", PLACES[place], device, seed) for seed in (1, 2))
        return [[each.float() for each in first], second]

    given, again = pair(), pair()

    of_lists(*given)
    for tensors in zip(*again, strict=True):
        of_one(*tensors)

    for found, wanted in zip(given, again, strict=True):
        assert_each_equal(found, wanted)


STEPS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters, **form: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **form),
    "Adam": lambda parameters, **form: torch.optim.Adam(parameters, lr=0.1, **form),
    "AdamW": lambda parameters, **form: torch.optim.AdamW(parameters, lr=0.1, amsgrad=True, **form),
    "Adagrad": lambda parameters, **form: torch.optim.Adagrad(parameters, lr=0.1, **form),
}
#: What differs about a parameter: its tensor, or that it has no gradient.
OF_PARAMETERS = ["float64", "bfloat16", "transposed", "size_0", "larger", "no_gradient"]


def parameters_of(difference: str, place: int, device: torch.device) -> list[nn.Parameter]:
    made = [
        nn.Parameter(each.detach())
        for each in uneven("gap" if difference == "no_gradient" else difference, place, device)
    ]
    for number, parameter in enumerate(made):
        if difference != "no_gradient" or number != place:
            parameter.grad = torch.full_like(parameter, 0.25) * (number + 1)
    return made


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("difference", OF_PARAMETERS)
@pytest.mark.parametrize("form", ["foreach", "fused"])
@pytest.mark.parametrize("name", STEPS)
def test_optimizer_step_of_parameters_of_which_one_differs(
    name: str, form: str, difference: str, place: str, device: torch.device, request: pytest.FixtureRequest
) -> None:
    """A step over lists, or in one kernel, changes each parameter with a gradient as a step one by one does."""
    if (name, form, difference) == ("SGD", "fused", "bfloat16"):
        known.waive(request, f"vectors of 16-bit weights are skipped ({known.ISSUE}191763)", device, raises=WRONG)
    lists, one_by_one = (parameters_of(difference, PLACES[place], device) for _ in range(2))

    for parameters, options in ((lists, {form: True}), (one_by_one, {"foreach": False})):
        optimizer = STEPS[name](parameters, **options)
        for _ in range(2):
            optimizer.step()

    assert_each_equal([each.detach() for each in lists], [each.detach() for each in one_by_one])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("difference", OF_PARAMETERS)
@pytest.mark.parametrize("how", ["norm", "value"])
def test_clip_grad_of_parameters_of_which_one_differs(
    how: str, difference: str, place: str, device: torch.device
) -> None:
    """`clip_grad_norm_` and `clip_grad_value_` over lists clip each gradient as one by one, by the norm of all."""
    lists, one_by_one = (parameters_of(difference, PLACES[place], device) for _ in range(2))
    norms = []

    for parameters, foreach in ((lists, True), (one_by_one, False)):
        if how == "norm":
            norms.append(nn.utils.clip_grad_norm_(parameters, 0.5, foreach=foreach))
        else:
            nn.utils.clip_grad_value_(parameters, 0.3, foreach=foreach)

    gradients = [[each.grad for each in parameters if each.grad is not None] for parameters in (lists, one_by_one)]
    assert_each_equal(*gradients)
    assert max(gradient.abs().max().item() for gradient in gradients[0] if gradient.numel()) < 1
    if norms:
        torch.testing.assert_close(norms[0], norms[1])
