"""Steps of optimizers and of a scaler in one kernel per list of tensors, called by name, compared with their formulas.

`suites/optimizers` has the optimizers, on few small weights. Here the lists reach the limits of the kernels, and the
kernels get a rate in a tensor, a scale of the gradients, and the number that determines whether to skip the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from . import known, lists
from ._torch_private import overload
from .comparison import Bound, WrongValueError
from .lists import Listed
from .references import formats
from .references.formats import Array

KINDS = ("few", "misaligned", "many", "chunks")
RATE, DECAY, EPS, BETAS, SCALE = 0.125, 0.25, 0.0625, (0.75, 0.875), 4.0


def _lists(rng: np.random.Generator, kind: str, count: int, dtype: torch.dtype, device: torch.device) -> list[Listed]:
    """Return lists of positive numbers."""
    return [lists.listed(kind, lambda shape: rng.uniform(0.25, 2, shape), dtype, device) for _ in range(count)]


def _adam(given: list[Array], step: int, amsgrad: bool, maximize: bool, decoupled: bool) -> list[Array]:
    """Return one step of Adam (Kingma and Ba, 2015; Loshchilov and Hutter, 2019; Reddi and others, 2018)."""
    x, g, first, second, most = given
    g = -g / SCALE if maximize else g / SCALE
    if decoupled:
        x = x * (1 - RATE * DECAY)
    else:
        g = g + DECAY * x
    first = BETAS[0] * first + (1 - BETAS[0]) * g
    second = BETAS[1] * second + (1 - BETAS[1]) * g * g
    most = np.maximum(most, second) if amsgrad else most
    root = np.sqrt((most if amsgrad else second) / (1 - BETAS[1] ** step))
    return [x - RATE / (1 - BETAS[0] ** step) * first / (root + EPS), first, second, most]


def _check(found: list[Listed], wanted: list[Array], dtype: torch.dtype, what: str) -> None:
    for each, array in zip(found, wanted, strict=True):
        shapes = [tuple(one.shape) for one in each.tensors]
        # Some twenty roundings of numbers below 4, and a difference.
        roundings = 4 if dtype.itemsize == 2 else 32
        bound = Bound(roundings, 0, 4 * roundings * formats.unit(dtype))
        lists.check(each.tensors, shapes, array, dtype, bound, what)


def _steps(count: int, step: int, device: torch.device) -> list[torch.Tensor]:
    return [torch.tensor(float(step), device=device) for _ in range(count)]


TYPES = pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(each, marks=pytest.mark.extended) for each in (torch.float64, torch.bfloat16))],
    ids=lambda each: formats.name_of(each),
)
FORM = pytest.mark.parametrize("form", ["default", "tensor_lr"])


def _kinds(form: str, dtype: torch.dtype, options: str = "plain") -> tuple[str, ...]:
    """Return the kinds of lists. The long lists are only tested in float32 with default options."""
    return KINDS if (form, dtype, options) == ("default", torch.float32, "plain") else KINDS[:2]


def _rate(form: str, device: torch.device) -> Any:
    return torch.tensor(RATE, device=device) if form == "tensor_lr" else RATE


@pytest.mark.operator("_fused_adam_", "_fused_adamw_")
@pytest.mark.parametrize("options", ["plain", "amsgrad", "maximize", "amsgrad_maximize"])
@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
@FORM
@TYPES
def test_fused_adam_steps_each_list(
    name: str, form: str, options: str, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    """Fused Adam updates weights, both moments and their maxima from gradients that it divides by a scale and keeps."""
    amsgrad, maximize = "amsgrad" in options, "maximize" in options
    for kind in _kinds(form, dtype, options):
        given = _lists(rng, kind, 5, dtype, device)
        wanted = _adam([each.values for each in given], 3, amsgrad, maximize, name == "_fused_adamw_")
        x, g, first, second, most = (each.tensors for each in given)
        overload(f"{name}.{form}")(
            x, g, first, second, most if amsgrad else [], _steps(len(x), 3, device), lr=_rate(form, device),
            beta1=BETAS[0], beta2=BETAS[1], weight_decay=DECAY, eps=EPS, amsgrad=amsgrad, maximize=maximize,
            grad_scale=torch.tensor(SCALE, device=device), found_inf=torch.tensor(0.0, device=device),
        )  # fmt: skip
        _check([given[0], *given[2:]], wanted, dtype, f"{name} of {kind}")
        _check([given[1]], [given[1].values / SCALE], dtype, "the gradient")


#: On the CPU, their momenta also get other numbers.
_SKIPPED = "vectors of 16-bit weights are skipped (https://github.com/pytorch/pytorch/issues/191763)"


@pytest.mark.operator("_fused_sgd_")
@pytest.mark.parametrize("options", ["plain", "momentum", "first_momentum", "nesterov"])
@FORM
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        pytest.param(torch.float64, marks=pytest.mark.extended),
        # The simulated CUDA computes like the CPU.
        pytest.param(torch.bfloat16, marks=pytest.mark.requires(any=[{"not_": {"device": "cuda"}}, {"silicon": True}])),
    ],
    ids=lambda each: formats.name_of(each),
)
def test_fused_sgd_steps_each_list(
    form: str,
    options: str,
    dtype: torch.dtype,
    device: torch.device,
    rng: np.random.Generator,
    request: pytest.FixtureRequest,
) -> None:
    """Fused SGD updates weights and momenta; the first momentum is the gradient."""
    if dtype == torch.bfloat16:
        known.waive(request, _SKIPPED, device)
    momentum = 0.75 if options != "plain" else 0.0
    first, nesterov = options == "first_momentum", options == "nesterov"
    for kind in _kinds(form, dtype, options):
        given = _lists(rng, kind, 3, dtype, device)
        x, g, old = (each.values for each in given)
        g = g / SCALE + DECAY * x
        new = g if first else momentum * old + (1 - 0.5 * (not nesterov)) * g if momentum else old
        step = g + momentum * new if nesterov else new if momentum else g
        overload(f"_fused_sgd_.{form}")(
            given[0].tensors, given[1].tensors, given[2].tensors if momentum else [], weight_decay=DECAY,
            momentum=momentum, lr=_rate(form, device), dampening=0.5 if momentum and not nesterov else 0.0,
            nesterov=nesterov, maximize=False, is_first_step=first,
            grad_scale=torch.tensor(SCALE, device=device), found_inf=torch.tensor(0.0, device=device),
        )  # fmt: skip
        _check([given[0], given[2]], [x - RATE * step, new], dtype, f"sgd of {kind}")


@pytest.mark.operator("_fused_adagrad_")
@pytest.mark.requires(any=[{"torch": ">=2.12"}, {"not_": {"accelerator": True}}])
@FORM
@TYPES
def test_fused_adagrad_steps_each_list(
    form: str, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    """Fused Adagrad updates weights and sums of squares, with a decreasing rate."""
    for kind in _kinds(form, dtype):
        given = _lists(rng, kind, 3, dtype, device)
        x, g, old = (each.values for each in given)
        g = g / SCALE + DECAY * x
        new = old + g * g
        overload(f"_fused_adagrad_.{form}")(
            *(each.tensors for each in given), _steps(len(given[0].tensors), 3, device), lr=_rate(form, device),
            lr_decay=0.5, weight_decay=DECAY, eps=EPS, maximize=False,
            grad_scale=torch.tensor(SCALE, device=device), found_inf=torch.tensor(0.0, device=device),
        )  # fmt: skip
        wanted = [x - RATE / (1 + 2 * 0.5) * g / (np.sqrt(new) + EPS), new]
        _check([given[0], given[2]], wanted, dtype, f"adagrad of {kind}")


@pytest.mark.operator("_fused_adam_", "_fused_adamw_", "_fused_sgd_")
@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_", "_fused_sgd_"])
def test_fused_step_is_skipped_for_found_inf(name: str, device: torch.device, rng: np.random.Generator) -> None:
    """With a `found_inf` of one, weights and moments do not change."""
    given = _lists(rng, "few", 4, torch.float32, device)
    x, g, first, second = (each.tensors for each in given)
    named: dict[str, Any] = {"found_inf": torch.tensor(1.0, device=device), "lr": RATE, "weight_decay": DECAY}
    if name == "_fused_sgd_":
        overload(f"{name}.default")(
            x, g, first, momentum=0.75, dampening=0.0, nesterov=False, maximize=False, is_first_step=False, **named
        )
    else:
        overload(f"{name}.default")(
            x, g, first, second, [], _steps(len(x), 3, device), beta1=0.5, beta2=0.5, eps=EPS, amsgrad=False,
            maximize=False, **named,
        )  # fmt: skip
    for each in (given[0], given[2], given[3]):
        if np.any(lists.flat(each.tensors) != each.values):
            raise WrongValueError(f"{name}: a step was made")


@pytest.mark.operator("_amp_foreach_non_finite_check_and_unscale_")
@pytest.mark.parametrize("kind", ["one", *KINDS])
@pytest.mark.types("float64")
def test_amp_unscale_multiplies_and_finds_what_is_not_finite(
    kind: str, device: torch.device, rng: np.random.Generator
) -> None:
    """Each gradient is multiplied in place; only an infinity or NaN, at any place, sets `found_inf` to one."""
    run: Callable[..., Any] = overload("_amp_foreach_non_finite_check_and_unscale_.default")
    for dtype in (torch.float32, torch.float64, torch.float16):
        scale, found = torch.tensor(0.125, device=device), torch.zeros(1, device=device)
        given = _lists(rng, kind, 1, dtype, device)[0]
        run(given.tensors, found, scale)
        shapes = [tuple(each.shape) for each in given.tensors]
        lists.check(given.tensors, shapes, given.values / 8, dtype, Bound(1.01), f"gradients of {kind}")
        if lists.flat([found])[0] != 0:
            raise WrongValueError("found_inf is set for finite gradients")
        filled = [each for each in given.tensors if each.numel()]
        for target in (filled[0], filled[-1]):
            for place in (0, target.numel() - 1):
                for value in (float("inf"), float("-inf"), float("nan")):
                    # At this place and no other.
                    spot = tuple(int(each) for each in np.unravel_index(place, tuple(target.shape)))
                    before = target[spot].clone()
                    target[spot] = value
                    run(given.tensors, found.zero_(), torch.tensor(1.0, device=device))
                    if lists.flat([found])[0] != 1:
                        raise WrongValueError(f"{value} at {spot} of {tuple(target.shape)} is not found")
                    target[spot] = before


@pytest.mark.operator("_amp_update_scale_")
def test_amp_update_scale_grows_and_backs_off(device: torch.device) -> None:
    """The scale grows after an interval of finite steps, backs off after an infinity, and never becomes infinite."""
    for scale, tracker, found, wanted, then in (
        (8.0, 0, 0.0, 8.0, 1),
        (8.0, 2, 0.0, 24.0, 0),
        (8.0, 2, 1.0, 2.0, 0),
        (8.0, 0, 1.0, 2.0, 0),
        (3e38, 2, 0.0, 3e38, 0),
    ):
        x, steps = torch.tensor([scale], device=device), torch.tensor([tracker], dtype=torch.int32, device=device)
        overload("_amp_update_scale_.default")(x, steps, torch.tensor([found], device=device), 3.0, 0.25, 3)
        lists.check([x], [(1,)], np.array([wanted]), torch.float32, Bound(1), "the scale")
        lists.check([steps], [(1,)], np.array([then], np.int32), torch.int32, Bound(0), "the steps")
