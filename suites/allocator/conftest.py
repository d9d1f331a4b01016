"""The device's memory before and after a case."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch


@pytest.fixture
def nothing_stays(device: torch.device) -> Iterator[None]:
    """Empty the cache before the case, and free its pools afterwards."""
    from .limits import settle  # imported here, because supervisors import this file and must not import torch

    settle(device)
    yield
    gc.collect()
    settle(device)
