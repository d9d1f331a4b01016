"""Seeds: the same for a case on every machine, and different for each other case."""

from __future__ import annotations

import random

import numpy as np
import torch

from harness.backends import table
from harness.core.caseid import case_seed
from harness.executor.around_case import seed_everything


def test_the_seed_of_a_case_is_fixed_for_ever() -> None:
    # Deliberately a constant: if the seed changed, each recorded line that reproduces a failure would be wrong.
    assert case_seed(1, "suites/a/test_a.py::test_x") == 3004579124


def test_seeds_differ_by_run_and_by_case() -> None:
    seeds = {case_seed(run, f"case{number}") for run in range(20) for number in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_an_id_that_cannot_be_encoded_has_a_seed() -> None:
    assert case_seed(1, "a\udc80") != case_seed(1, "a")


def test_every_generator_starts_again() -> None:
    def draw() -> tuple[float, float, float]:
        seed_everything(12345, table.CPU)
        return random.random(), float(np.random.random()), float(torch.rand(1))

    first = draw()
    random.random(), np.random.random(), torch.rand(1)
    assert draw() == first
