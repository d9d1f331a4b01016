"""Each optimiser in each of its forms, step by step, against its formula in Python's floats."""

from __future__ import annotations

import pytest
import torch

from .catalogue import CAPTURABLE, KINDS, Kind, expected, give, new_gradients, new_weights, with_kinds, with_settings

STEPS = 8
#: On a GPU a capturable optimiser says once that it is not being captured.
pytestmark = pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")

TYPES_OF_WEIGHTS = {"float64": torch.float64, "float32": torch.float32}


def tolerance(kind: Kind, form: str, dtype: torch.dtype) -> float:
    """How far a weight of about one may be from the formula's after eight steps, relative and absolute.

    A step is some twenty roundings. In float64 nothing of that shows at 1e-10; in float32 it is 160 times 6e-8, and
    centred or rectified forms lose a digit by subtraction. Whatever the type of the weights, torch keeps some numbers
    in float32: ASGD's rate and NAdam's product of factors, good to 1e-6, and the number of steps where a step is to be
    captured or followed by autograd: one less 0.999 to its power is then good to 6e-5.
    """
    if dtype == torch.float32 or form in (*CAPTURABLE, "differentiable"):
        return 1e-4
    return 1e-6 if kind.name in ("ASGD", "NAdam") else 1e-10


TYPES = pytest.mark.parametrize("dtype", TYPES_OF_WEIGHTS.values(), ids=TYPES_OF_WEIGHTS.keys())


@TYPES
@with_settings()
def test_step_is_that_of_the_formula(
    device: torch.device, kind: Kind, form: str, settings: str, dtype: torch.dtype
) -> None:
    """Contract: after each of several steps, weights of several shapes are those of the published formula, evaluated
    for each number on its own in float64."""
    weights = new_weights(device, dtype)
    if form == "differentiable":  # autograd follows the step: it cannot write to leaves that require a gradient
        weights = [weight.detach() for weight in weights]
    # The reference sees what the optimiser sees: gradients as they are in its type.
    gradients = [[gradient.to(dtype).double() for gradient in step] for step in new_gradients(STEPS)]
    reference = expected(kind, settings, weights, gradients)
    optimiser = kind.make(weights, form, settings)
    within = tolerance(kind, form, dtype)

    for number, (step, wanted) in enumerate(zip(gradients, reference, strict=True)):
        give(weights, step)
        optimiser.step()
        for weight, target in zip(weights, wanted, strict=True):
            torch.testing.assert_close(
                weight.detach().cpu().double(),
                target,
                rtol=within,
                atol=within,
                msg=lambda text, number=number: f"step {number + 1}: {text}",
            )


@with_kinds()
def test_step_references_follow_each_setting(kind: Kind) -> None:
    """Contract: no reference is one that stays where it is or that forgets its settings: each of an optimiser's
    settings leads elsewhere."""
    torch.manual_seed(1)
    weights = new_weights(torch.device("cpu"))
    gradients = new_gradients(STEPS)
    found = {name: expected(kind, name, weights, gradients)[-1][1] for name in kind.settings}

    for name, end in found.items():
        assert not torch.equal(end, weights[1].detach()), name
    # Averaging moves the average, not the weights.
    different = {name: end for name, end in found.items() if name != "average"}
    assert len({tuple(end.tolist()) for end in different.values()}) == len(different)


def test_asgd_keeps_its_average(device: torch.device) -> None:
    """Contract: the average that ASGD keeps beside a weight is the weight until `t0` steps are past, and then takes in
    each later weight with a share of one over how many they are, in each of its forms."""
    kind, start = KINDS["ASGD"], [weight.detach() for weight in new_weights(device)]
    gradients = new_gradients(STEPS)
    trace = [step[1] for step in expected(kind, "average", start, gradients)]

    for form in kind.forms:
        if form in CAPTURABLE and device.type == "cpu":
            continue
        weights = [weight.clone() for weight in start]
        optimiser = kind.make(weights, form, "average")
        average = torch.zeros_like(trace[0])
        within = tolerance(kind, form, torch.float64)
        for number, step in enumerate(gradients):
            give(weights, step)
            optimiser.step()
            average += (trace[number] - average) / max(1, number - 2)  # t0 is 2
            torch.testing.assert_close(optimiser.state[weights[1]]["ax"].cpu(), average, rtol=within, atol=within)
        assert not torch.equal(average, trace[-1])
