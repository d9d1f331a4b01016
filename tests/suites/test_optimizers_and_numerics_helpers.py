"""Helpers of the suites of optimisers and numerics: formulas with known results, and queries to a fresh process."""

from __future__ import annotations

import math

import pytest
import torch

from suites.numerics.asked import answers, answers_each
from suites.numerics.lengths import ends, unit
from suites.optimizers import references
from suites.optimizers.catalogue import KINDS, SHAPES, expected, give, new_gradients, new_weights

pytestmark = pytest.mark.acceptance


@pytest.mark.parametrize(
    ("optimiser", "gradients", "weights"),
    [
        (references.Sgd(lr=0.5), [2.0, -1.0], [0.0, 0.5]),
        (references.Sgd(lr=0.5, maximize=True), [2.0], [2.0]),
        (references.Sgd(lr=0.5, momentum=0.5), [2.0, 2.0], [0.0, -1.5]),
        (references.Sgd(lr=0.5, momentum=0.5, nesterov=True), [2.0], [-0.5]),
        (references.Sgd(lr=0.5, weight_decay=1.0), [0.0], [0.5]),
        # The first step of these has the length of the rate and the direction of the sign, whatever the gradient's
        # size.
        (references.Adam(lr=0.25, eps=0.0), [100.0], [0.75]),
        (references.Adamax(lr=0.25, eps=0.0), [-3.0], [1.25]),
        (references.AdamW(lr=0.25, eps=0.0, weight_decay=0.4), [100.0], [0.65]),
        (references.Adagrad(lr=0.25, eps=0.0), [3.0, 4.0], [0.75, 0.55]),
        (references.RMSprop(lr=0.25, alpha=0.75, eps=0.0), [3.0], [0.5]),
        (references.RAdam(lr=0.25), [3.0], [0.25]),  # too early to rectify: the mean itself
        (references.Asgd(lr=0.25, lambd=0.0), [2.0], [0.5]),
        (references.Rprop(lr=0.25), [3.0, 1.0, -1.0, -1.0], [0.75, 0.45, 0.45, 0.6]),
        (references.Adadelta(lr=1.0, rho=0.75, eps=1.0), [math.sqrt(12)], [1 - math.sqrt(12) / 2]),
        (references.NAdam(lr=0.25, betas=(0.0, 0.5), eps=0.0), [-3.0], [1.25]),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "lr") else "",
)
def test_formulas_by_hand(optimiser: references.Reference, gradients: list[float], weights: list[float]) -> None:
    weight, found = 1.0, []
    for gradient in gradients:
        weight = optimiser.step(weight, gradient)
        found.append(weight)

    assert found == pytest.approx(weights, rel=1e-12)


def test_the_reference_of_many_is_that_of_each() -> None:
    weights, gradients = new_weights(torch.device("cpu")), new_gradients(2)
    found = expected(KINDS["SGD"], "plain", weights, gradients)

    assert [tuple(weight.shape) for weight in found[-1]] == list(SHAPES)
    for start, first, end in zip(weights, gradients[0], found[0], strict=True):
        assert torch.equal(end, start.detach() - 0.1 * first)


def test_gradients_are_given_as_copies() -> None:
    weight, gradient = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    give([weight], [gradient])

    assert weight.grad is not None
    weight.grad.zero_()
    assert gradient.item() == 1


def test_the_ends_and_units_of_types() -> None:
    assert ends(torch.int8) == (-128, 127)
    assert ends(torch.float16) == (-math.inf, math.inf)
    assert unit(torch.float16) == 2.0**-11
    assert unit(torch.float64) == 2.0**-53


def test_scenes_have_processes_of_their_own() -> None:
    change = "torch.set_default_dtype(torch.float64)"
    ask = "str(torch.get_default_dtype())"

    assert answers_each([change, ask], [ask], ["x = 1", "x + 1", "{}['no']", "warnings.warn('w')"]) == [
        [None, "torch.float64"],
        ["torch.float32"],
        [2, "KeyError", "warned"],
    ]


def test_the_environment_reaches_a_scene() -> None:
    assert answers("os.environ['THIS']", environ={"THIS": "that"}) == ["that"]
