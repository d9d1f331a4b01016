"""Pools and two devices: a pool belongs to no device, and serves the device that `use_mem_pool` gets."""

from __future__ import annotations

import gc

import pytest
import torch

pytestmark = pytest.mark.requires(device="cuda", devices=2, torch=">=2.13")
MIB = 1 << 20


@pytest.mark.parametrize("made", [0, 1])
@pytest.mark.parametrize("given", [None, 0, 1], ids=["current", "first", "second"])
def test_use_mem_pool_serves_the_device_it_is_given(made: int, given: int | None) -> None:
    """A pool that was created while another device was current serves the device of `use_mem_pool`, and no other.

    https://github.com/pytorch/pytorch/issues/149802
    """
    for current in (0, 1):
        with torch.cuda.device(made):
            pool = torch.cuda.MemPool()
        index = current if given is None else given
        with torch.cuda.device(current), torch.cuda.use_mem_pool(pool, device=given):
            kept = [torch.full((4 * MIB,), place + 1, dtype=torch.uint8, device=f"cuda:{place}") for place in (0, 1)]
        segments = {(each["device"], tuple(each["segment_pool_id"])) for each in torch.cuda.memory_snapshot()}
        assert (index, tuple(pool.id)) in segments
        assert (1 - index, tuple(pool.id)) not in segments
        assert [int(x.min()) for x in kept] == [1, 2]
        del kept, pool
        gc.collect()
        torch.cuda.empty_cache()
