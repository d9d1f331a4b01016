"""Fixtures that keep objects while they are set up, and restore the state that they change."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session")
def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))


@pytest.fixture(scope="session")
def variable() -> Iterator[str]:
    os.environ["STATE_HELD"] = "for the session"
    yield "STATE_HELD"
    del os.environ["STATE_HELD"]


@pytest.fixture(scope="module")
def in_double() -> Iterator[torch.dtype]:
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch.float64
    torch.set_default_dtype(old)


@pytest.fixture
def seeded() -> Iterator[torch.Generator]:
    with torch.random.fork_rng():
        yield torch.manual_seed(5)
