"""The check that the pools that a case created are freed at its end, for all cases of this suite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch


@pytest.fixture
def nothing_left(device: torch.device) -> Iterator[None]:
    """Fail a case after which graphs own more memory than before."""
    from . import pools  # imported here, because supervisors import this file and must not import torch

    pools.settle(device)
    before = len(pools.segments_of(device))
    yield
    pools.settle(device)
    left = pools.segments_of(device)
    assert len(left) <= before, (
        f"graph pools still have the segments {[segment['segment_pool_id'] for segment in left]}"
    )
