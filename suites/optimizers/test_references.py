"""Each implementation of each optimizer, step by step, compared with its formula in Python floats."""

from __future__ import annotations

import pytest
import torch

from .catalogue import CAPTURABLE, KINDS, Kind, expected, give, new_gradients, new_weights, with_kinds, with_settings

STEPS = 8
#: On a GPU, a capturable optimizer warns once that it is not being captured.
pytestmark = pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")

TYPES_OF_WEIGHTS = {"float64": torch.float64, "float32": torch.float32}


def tolerance(kind: Kind, form: str, dtype: torch.dtype) -> float:
    """Return the tolerance, relative and absolute, for a weight of about one after eight steps.

    A step has about twenty roundings. In float64 they are invisible at 1e-10. In float32 they are 160 times 6e-8, and
    centered or rectified variants lose a digit by subtraction. For any dtype of the weights, torch stores some numbers
    in float32: ASGD's rate and NAdam's product of factors, accurate to 1e-6, and the step count if a step is captured
    or differentiable. One minus a power of 0.999 is then accurate to 6e-5.
    """
    if dtype == torch.float32 or form in (*CAPTURABLE, "differentiable"):
        return 1e-4
    return 1e-6 if kind.name in ("ASGD", "NAdam") else 1e-10


TYPES = pytest.mark.parametrize("dtype", TYPES_OF_WEIGHTS.values(), ids=TYPES_OF_WEIGHTS.keys())


@TYPES
@with_settings()
def test_step_equals_the_formula(
    device: torch.device, kind: Kind, form: str, settings: str, dtype: torch.dtype
) -> None:
    """After each step, weights of several shapes equal the published formula, evaluated per element in float64."""
    weights = new_weights(device, dtype)
    if form == "differentiable":  # autograd records the step, so it cannot write to leaves that require grad
        weights = [weight.detach() for weight in weights]
    # The reference gets the optimizer's gradients, rounded to its dtype.
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


@with_settings()
@pytest.mark.types("float64")
def test_maximize_takes_the_gradients_for_their_negatives(
    device: torch.device, kind: Kind, form: str, settings: str
) -> None:
    """With each settings, steps with `maximize` equal those without it for the negative gradients."""
    starts = [weight.detach() for weight in new_weights(device)]
    gradients = new_gradients(STEPS)
    ends = []
    for maximize, sign in ((True, 1), (False, -1)):
        weights = [start.clone() for start in starts]
        optimiser = kind.make(weights, form, settings, maximize=maximize)
        for step in gradients:
            give(weights, [sign * gradient for gradient in step])
            optimiser.step()
        ends.append(weights)

    # One small weight alone may be unchanged: steps of the same size, such as those of Rprop, can cancel.
    assert not all(torch.equal(up, start) for up, start in zip(ends[0], starts, strict=True))
    for up, down in zip(*ends, strict=True):
        torch.testing.assert_close(up, down, rtol=1e-12, atol=1e-12)


@with_kinds()
def test_step_references_follow_each_setting(kind: Kind) -> None:
    """Control: no reference leaves the weights unchanged or ignores its settings; each settings gives other weights."""
    torch.manual_seed(1)
    weights = new_weights(torch.device("cpu"))
    gradients = new_gradients(STEPS)
    found = {name: expected(kind, name, weights, gradients)[-1][1] for name in kind.settings}

    for name, end in found.items():
        assert not torch.equal(end, weights[1].detach()), name
    # Averaging changes the average, and not the weights.
    different = {name: end for name, end in found.items() if name != "average"}
    assert len({tuple(end.tolist()) for end in different.values()}) == len(different)


@pytest.mark.types("float64")
def test_asgd_keeps_its_average(device: torch.device) -> None:
    """ASGD's average equals the weight until step `t0`, and is then the running mean of later weights."""
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
