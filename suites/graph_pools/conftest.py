"""What every case here promises: the pools that it made are gone when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch


@pytest.fixture
def nothing_left(device: torch.device) -> Iterator[None]:
    """Fails a case after which graphs own more memory than before."""
    from . import pools  # here, since supervisors import this file and must not import torch

    pools.settle(device)
    before = len(pools.segments_of(device))
    yield
    pools.settle(device)
    left = pools.segments_of(device)
    assert len(left) <= before, f"pools of graphs have kept {[segment['segment_pool_id'] for segment in left]}"
