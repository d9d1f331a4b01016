"""Symmetric memory: each rank of a group addresses the memory of the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from . import groups
from ._torch_private import symmetric_memory
from .checking import Checks, expect_all_right
from .groups import grouped, worlds

pytestmark = [groups.NCCL, pytest.mark.requires(peer_access=True), pytest.mark.timeout(60)]

SIZE = 1000


def meet() -> None:
    """Wait until the earlier device work of every rank is done."""
    torch.cuda.synchronize()
    dist.barrier()


def shared(rank: Any) -> tuple[torch.Tensor, Any]:
    """Return this rank's tensor, filled with its number from 1, and a handle to the tensors of the others."""
    memory = symmetric_memory()
    own = memory.empty(SIZE, dtype=torch.float32, device=rank.device)
    own.fill_(rank.number + 1.0)
    handle = memory.rendezvous(own, dist.group.WORLD)
    meet()
    return own, handle


@grouped
def exchanged(rank: Any) -> Checks:
    """Read the memory of all ranks, and write to that of the next rank."""
    checks = Checks(rank.number)
    own, handle = shared(rank)
    checks.equal("rank and world_size", (handle.rank, handle.world_size), (rank.number, rank.world))
    checks.true(f"buffer_size is {handle.buffer_size}", handle.buffer_size >= SIZE * 4)
    for other in range(rank.world):
        found = handle.get_buffer(other, (SIZE,), torch.float32)
        checks.same(f"get_buffer({other})", found, torch.full((SIZE,), other + 1.0))
    meet()
    following, before = (rank.number + 1) % rank.world, (rank.number - 1) % rank.world
    handle.get_buffer(following, (10,), torch.float32, 100).fill_(50.0 + rank.number)
    meet()
    expected = torch.full((SIZE,), rank.number + 1.0)
    expected[100:110] = 50.0 + before
    checks.same("own memory after a write of another rank", own, expected)
    meet()
    return checks


@worlds(2, 4)
def test_get_buffer_reads_and_writes_the_memory_of_each_rank(ranks: Any, world: int) -> None:
    """`rendezvous` gives each rank the buffers of all; the owner of a buffer sees what another rank writes."""
    expect_all_right(ranks.run(exchanged, world=world))


@grouped
def computed(rank: Any) -> Checks:
    """Reduce with kernels that read the memory of all ranks."""
    checks = Checks(rank.number)
    own, handle = shared(rank)
    total = torch.full((SIZE,), rank.world * (rank.world + 1) / 2)
    name = dist.group.WORLD.group_name
    checks.same("one_shot_all_reduce", torch.ops.symm_mem.one_shot_all_reduce(own, "sum", name), total)
    handle.barrier()
    checks.same("two_shot_all_reduce_", torch.ops.symm_mem.two_shot_all_reduce_(own, "sum", name), total)
    meet()
    return checks


@pytest.mark.requires(silicon=True)
@worlds(2, 4)
def test_one_shot_all_reduce_and_two_shot_all_reduce_add_the_memory_of_all(ranks: Any, world: int) -> None:
    """Both reductions of symmetric memory give the sum on every rank."""
    expect_all_right(ranks.run(computed, world=world))


@grouped
def refused(rank: Any) -> Checks:
    """Launch kernels between devices, which the simulation lacks."""
    checks = Checks(rank.number)
    own, handle = shared(rank)
    name = dist.group.WORLD.group_name
    for what, call in (
        ("barrier", handle.barrier),
        ("one_shot_all_reduce", lambda: torch.ops.symm_mem.one_shot_all_reduce(own, "sum", name)),
    ):
        checks.refused(what, call, "operation not supported", (RuntimeError,))
    checks.same("the memory afterwards", own + 1, torch.full((SIZE,), rank.number + 2.0))
    dist.all_reduce(own)
    checks.same("all_reduce afterwards", own, torch.full((SIZE,), rank.world * (rank.world + 1) / 2))
    meet()
    return checks


@pytest.mark.requires(silicon=False)
@worlds(2)
def test_barrier_of_symmetric_memory_is_refused_by_a_simulation(ranks: Any, world: int) -> None:
    """The simulated CUDA has none of torch's kernels between devices: they raise, and the device still works."""
    expect_all_right(ranks.run(refused, world=world))
