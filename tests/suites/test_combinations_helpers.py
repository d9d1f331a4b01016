"""The random programs of the suite `combinations`: how they are drawn, and made shorter."""

from __future__ import annotations

import pytest
import torch

from suites.combinations import programs
from suites.combinations.programs import OPERATORS, Program, Step

SEEDS = range(20)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_returns_the_shape_of_its_inputs(name: str) -> None:
    x, y = programs.inputs(1, torch.device("cpu"))
    found = OPERATORS[name](x, y)
    assert found.shape == programs.SHAPE
    assert found.dtype == torch.float64
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_draws_one_program_of_finite_values(seed: int) -> None:
    program = programs.drawn(seed)
    assert program == programs.drawn(seed)
    assert 5 <= len(program.steps) <= 15
    assert bool(program(*programs.inputs(seed, torch.device("cpu"))).isfinite().all())


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_step_a_program_runs(seed: int) -> None:
    program = programs.drawn(seed)
    inputs = programs.inputs(seed, torch.device("cpu"))
    for place in range(len(program.steps)):
        smaller = programs.without(program, place)
        assert len(smaller.steps) == len(program.steps) - 1
        assert smaller(*inputs).shape == programs.SHAPE


def test_a_failing_program_shrinks_to_the_steps_that_fail() -> None:
    steps = (Step("sin", 0, 1), Step("gather", 2, 0), Step("add", 3, 2), Step("cat", 4, 3), Step("gelu", 5, 1))

    def fails(program: Program) -> bool:
        names = [step.operator for step in program.steps]
        return "gather" in names and "cat" in names[names.index("gather") :]

    smallest = programs.shrunk(Program(steps), fails)
    assert str(smallest) == "v2 = gather(v0, v0); v3 = cat(v2, v2)"
