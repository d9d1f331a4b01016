"""Collectives and CUDA streams: what NCCL waits for, what waits for NCCL, and whose memory it uses meanwhile.

A stream is kept busy before it writes the input, so that a collective that does not wait sends the old contents.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from suites.streams.busy import sleep_on

from . import groups
from ._torch_private import coalescing_manager, premultiplied_sum
from .checking import Checks, checks_of, expect_all_right
from .groups import connect, grouped, total, worlds

pytestmark = [groups.NCCL, pytest.mark.timeout(60)]

#: The contents of a buffer before the stream writes it.
POISON = 77.0
#: The milliseconds for which a stream is busy.
BUSY = 60.0
SIZE = 3000


def own(rank: Any) -> float:
    """Return the value that a rank sends."""
    return rank.number + 1.0


def full(value: float, size: int = SIZE) -> torch.Tensor:
    """Return the expected tensor."""
    return torch.full((size,), value)


@grouped
def behind_its_stream(rank: Any) -> Checks:
    """Keep the current stream busy before it fills the input."""
    checks = Checks(rank.number)
    connect(rank)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream(priority=-1)):
        with torch.cuda.stream(stream):
            given = torch.full((SIZE,), POISON, device=rank.device)
            stream.synchronize()
            sleep_on(stream, BUSY)
            given.fill_(own(rank))
            dist.all_reduce(given)
            checks.true(f"all_reduce waited for the device on {stream}", not stream.query())
            after = given * 2
            stream.synchronize()
        checks.same(f"all_reduce behind a busy stream {stream}", given, full(total(rank)))
        checks.same(f"what comes behind all_reduce on {stream}", after, full(2 * total(rank)))
    return checks


@worlds(2, 3)
def test_all_reduce_waits_for_the_current_stream_and_not_for_the_host(ranks: Any, world: int) -> None:
    """The call returns while the stream is busy.

    The collective runs after earlier and before later work of the stream.
    """
    expect_all_right(ranks.run(behind_its_stream, world=world))


@grouped
def waits_on_the_stream(rank: Any) -> Checks:
    """Check that `wait` orders the calling stream, and that the host continues."""
    checks = Checks(rank.number)
    connect(rank)
    side = torch.cuda.Stream()
    for number in range(3):
        given = torch.full((SIZE,), POISON, device=rank.device)
        torch.cuda.synchronize()
        sleep_on(torch.cuda.current_stream(), BUSY)
        given.fill_(own(rank) + number)
        work = dist.all_reduce(given, async_op=True)
        with torch.cuda.stream(side):
            work.wait()
            copied = given.clone()
            checks.true("wait() on a side stream waited for the device", not side.query())
        work.wait()
        torch.cuda.synchronize()
        expected = full(total(rank) + number * rank.world)
        checks.same(f"all_reduce {number} as a side stream sees it after wait()", copied, expected)
        checks.true(f"is_completed() of all_reduce {number}", work.is_completed())
    return checks


@worlds(2, 3)
def test_wait_orders_the_stream_that_calls_it(ranks: Any, world: int) -> None:
    """Work that a stream enqueues after `wait` finds the result, and the host does not wait for the device."""
    expect_all_right(ranks.run(waits_on_the_stream, world=world))


@grouped
def memory_reused(rank: Any) -> Checks:
    """Free inputs while the collectives that read them are delayed, and request their memory again."""
    checks = Checks(rank.number)
    connect(rank)
    for number in range(4):
        outputs = torch.zeros(SIZE * rank.world, device=rank.device)
        given = torch.full((SIZE,), own(rank) + number, device=rank.device)
        torch.cuda.synchronize()
        if rank.number == 0:
            time.sleep(BUSY / 1000)  # the others' collectives wait for this rank
        work = groups.all_gather_single(outputs, given, async_op=True)
        del given
        thieves = [torch.full((SIZE,), POISON, device=rank.device) for _ in range(4)]
        work.wait()
        torch.cuda.synchronize()
        expected = torch.cat([full(other + 1.0 + number) for other in range(rank.world)])
        checks.same(f"all_gather {number} whose input was freed", outputs, expected)
        checks.true("the memory of others", all(bool((each == POISON).all()) for each in thieves))
    side = torch.cuda.Stream()
    given = torch.full((SIZE,), own(rank), device=rank.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(given)
        result = given + 1
    given.record_stream(side)
    del given
    thief = torch.full((SIZE,), POISON, device=rank.device)
    torch.cuda.synchronize()
    checks.same("all_reduce on a stream that was recorded", result, full(total(rank) + 1))
    checks.same("the memory of another tensor", thief, full(POISON))
    return checks


@worlds(2, 3)
def test_all_gather_keeps_the_memory_of_a_freed_input(ranks: Any, world: int) -> None:
    """The allocator does not reuse the memory of an input before the collective is done."""
    expect_all_right(ranks.run(memory_reused, world=world))


@grouped
def two_groups(rank: Any) -> Checks:
    """Use two communicators of the same ranks in turn, each on its own stream."""
    checks = Checks(rank.number)
    others = [dist.new_group(list(range(rank.world))) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in others]
    given = [[torch.zeros(SIZE, device=rank.device) for _ in range(5)] for _ in others]
    torch.cuda.synchronize()
    for turn in range(5):
        for place, (group, stream) in enumerate(zip(others, streams, strict=True)):
            with torch.cuda.stream(stream):
                if (turn + rank.number) % 2 == place:
                    sleep_on(stream, BUSY / 10)
                given[place][turn].fill_(own(rank) * (place + 1) + turn)
                dist.all_reduce(given[place][turn], group=group)
    torch.cuda.synchronize()
    for place in range(2):
        for turn in range(5):
            expected = full(total(rank) * (place + 1) + turn * rank.world)
            checks.same(f"all_reduce {turn} of group {place}", given[place][turn], expected)
    return checks


@worlds(2, 4)
def test_new_group_and_streams_of_their_own_do_not_mix(ranks: Any, world: int) -> None:
    """Concurrent collectives of two groups each have their own result, whichever stream is late."""
    expect_all_right(ranks.run(two_groups, world=world))


@grouped
def split(rank: Any) -> Checks:
    """Split the default group with NCCL, which identifies ranks by their numbers in the default group."""
    checks = Checks(rank.number)
    halves = [list(range(0, rank.world, 2)), list(range(1, rank.world, 2))]
    made = dist.split_group(split_ranks=halves)
    mine = next(half for half in halves if rank.number in half)
    checks.equal("get_rank in the group", dist.get_rank(made), mine.index(rank.number))
    dist.all_reduce(given := torch.full((SIZE,), own(rank), device=rank.device), group=made)
    checks.same("all_reduce of a half", given, full(sum(number + 1.0 for number in mine)))
    dist.all_reduce(given := torch.full((SIZE,), own(rank), device=rank.device))
    checks.same("all_reduce of all", given, full(total(rank)))
    return checks


@worlds(2, 4)
def test_split_group_divides_the_ranks(ranks: Any, world: int) -> None:
    """Each part has its own collectives, and those of the whole group still work."""
    expect_all_right(ranks.run(split, world=world))


@grouped
def coalesced(rank: Any) -> Checks:
    """Combine several collectives in one call of NCCL, behind a busy stream."""
    checks = Checks(rank.number)
    connect(rank)
    given = [torch.full((size,), POISON, device=rank.device) for size in (1, 33, SIZE)]
    torch.cuda.synchronize()
    sleep_on(torch.cuda.current_stream(), BUSY)
    for each in given:
        each.fill_(own(rank))
    with coalescing_manager()(device=rank.device, async_ops=True) as manager:
        for each in given:
            dist.all_reduce(each)
    manager.wait()
    gathered = [torch.zeros(SIZE * rank.world, device=rank.device) for _ in range(2)]
    with coalescing_manager()(device=rank.device):
        for number, each in enumerate(gathered):
            groups.all_gather_single(each, torch.full((SIZE,), own(rank) + number, device=rank.device))
    torch.cuda.synchronize()
    for each in given:
        checks.same(f"coalesced all_reduce of {len(each)} elements", each, full(total(rank), len(each)))
    for number, each in enumerate(gathered):
        expected = torch.cat([full(other + 1.0 + number) for other in range(rank.world)])
        checks.same(f"coalesced all_gather {number}", each, expected)
    return checks


@worlds(2, 3)
def test_coalescing_manager_waits_for_the_current_stream(ranks: Any, world: int) -> None:
    """A call with several collectives runs after earlier work of the stream, and writes all its results."""
    expect_all_right(ranks.run(coalesced, world=world))


@grouped
def operations(rank: Any) -> Checks:
    """Use reductions and types that gloo lacks."""
    checks = Checks(rank.number)
    given = torch.full((SIZE,), own(rank) * 2, device=rank.device)
    dist.all_reduce(given, premultiplied_sum(0.5))
    checks.same("all_reduce with a factor", given, full(total(rank)))
    factor = torch.tensor([4.0], device=rank.device)
    made = torch.zeros(SIZE, device=rank.device)
    whole = torch.full((SIZE * rank.world,), own(rank), device=rank.device)
    groups.reduce_scatter_single(made, whole, premultiplied_sum(factor))
    checks.same("reduce_scatter with a factor of the device", made, full(4 * total(rank)))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        small = torch.full((SIZE,), own(rank), device="cpu").to(dtype).to(rank.device)
        dist.all_reduce(small)
        checks.same(f"all_reduce {dtype}", small, full(total(rank)).to(dtype))
    flags = torch.tensor([True, False, rank.number == 0], device=rank.device)
    dist.all_reduce(flags)
    checks.same("all_reduce bool SUM", flags, torch.tensor([True, False, True]))
    checks.refused(
        "BAND",
        lambda: dist.all_reduce(torch.ones(1, dtype=torch.int32, device=rank.device), dist.ReduceOp.BAND),
        "BAND",
    )
    checks.refused("a tensor of the CPU", lambda: dist.all_reduce(torch.ones(1)), "no backend type|cpu|cuda")
    checks.refused("a tensor with gaps", lambda: dist.all_reduce(torch.ones(6, device=rank.device)[::2]), "contiguous")
    return checks


@worlds(2, 3)
def test_all_reduce_has_what_nccl_alone_has(ranks: Any, world: int) -> None:
    """Scaled sums, 8-bit floats and sums of bools are exact; operations that NCCL lacks are refused."""
    expect_all_right(ranks.run(operations, world=world))


@grouped
def large(rank: Any) -> Checks:
    """Use buffers of several megabytes with different elements."""
    checks = Checks(rank.number)
    size = 1_500_001
    index = torch.arange(size, dtype=torch.int32)
    given = (index + rank.number).to(rank.device)
    dist.all_reduce(given)
    checks.same("all_reduce of 6 MB", given, index * rank.world + sum(range(rank.world)))
    outputs = torch.zeros(size * rank.world, dtype=torch.int32, device=rank.device)
    groups.all_gather_single(outputs, (index * (rank.number + 1)).to(rank.device))
    checks.same("all_gather of 6 MB", outputs, torch.cat([index * (other + 1) for other in range(rank.world)]))
    dist.broadcast(given := (index + rank.number).to(rank.device), rank.world - 1)
    checks.same("broadcast of 6 MB", given, index + rank.world - 1)
    return checks


@worlds(2, 4)
def test_all_reduce_of_large_buffers_is_whole(ranks: Any, world: int) -> None:
    """Every element of a buffer of several megabytes is correct on every rank."""
    expect_all_right(ranks.run(large, world=world))


@grouped
def paced(rank: Any) -> tuple[Checks, float]:
    """Run small collectives one after another, and wait for each on the host."""
    checks = Checks(rank.number)
    given = torch.ones(4, device=rank.device)
    dist.all_reduce(given)
    torch.cuda.synchronize()
    begun = time.monotonic()
    for _ in range(20):
        given.fill_(1.0)
        dist.all_reduce(given)
        torch.cuda.synchronize()
    seconds = time.monotonic() - begun
    checks.same("the last of 20", given, full(float(rank.world), 4))
    return checks, seconds


@worlds(2, 4)
def test_all_reduce_of_few_bytes_takes_less_than_half_a_second(ranks: Any, world: int) -> None:
    """Twenty small collectives take milliseconds on a GPU, and less than ten seconds on the busiest machine."""
    results = ranks.run(paced, world=world)
    expect_all_right(checks_of(results))
    slowest = max(seconds for _, seconds in results)
    assert slowest < 10.0, f"20 calls took {slowest:.1f} s"
