"""Completion and order of collectives: asynchronous calls, barriers, messages, several groups."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from . import groups
from ._torch_private import coalescing_manager
from .checking import Checks, expect_all_right
from .groups import GATE, NCCL, group, on_cpu, worlds

pytestmark = [GATE, pytest.mark.timeout(60)]

#: The seconds by which a rank is late, if others must wait for it.
LATE = 0.3
#: The seconds after which a rank stops waiting for delayed ranks.
PATIENCE = 5.0


def synchronize(rank: Any) -> None:
    """Wait for the work of the device."""
    if rank.device.type == "cuda":
        torch.cuda.synchronize(rank.device)


def one(rank: Any, size: int = 1000) -> torch.Tensor:
    """Return a tensor with the number of the rank, counted from 1."""
    return torch.full((size,), rank.number + 1.0, device=rank.device)


def late_rank(rank: Any) -> Checks:
    """Delay rank 0 until the calls of the others have returned, and a little longer."""
    checks = Checks(rank.number)
    called = [rank.folder / f"called-{number}" for number in range(1, rank.world)]
    with group(rank):
        dist.barrier()
        given = one(rank)
        if rank.number == 0:
            give_up = time.monotonic() + PATIENCE
            while not all(path.exists() for path in called) and time.monotonic() < give_up:
                time.sleep(0.01)
            checks.true("all_reduce(async_op=True) held up a rank", all(path.exists() for path in called))
            time.sleep(LATE)
        work = dist.all_reduce(given, async_op=True)
        if rank.number != 0:
            checks.true("is_completed() before the last rank has come", not work.is_completed())
            called[rank.number - 1].touch()
        work.wait()
        synchronize(rank)
        checks.same("all_reduce after wait()", given, torch.full((1000,), groups.total(rank)))
        checks.true("wait() has returned and is_completed() is false", work.is_completed())
    return checks


@worlds(2, 3)
def test_wait_returns_when_the_last_rank_has_come(ranks: Any, world: int) -> None:
    """An asynchronous call returns immediately.

    `is_completed` is False until all ranks have called, and `wait` waits.
    """
    expect_all_right(ranks.run(late_rank, world=world))


def queued(rank: Any) -> Checks:
    """Queue many calls before the first wait, and wait for them in reverse order."""
    checks = Checks(rank.number)
    with group(rank):
        given = [torch.full((5,), float(number + rank.number), device=rank.device) for number in range(8)]
        works = [dist.all_reduce(each, async_op=True) for each in given]
        works.append(dist.broadcast(last := one(rank, 3), 1, async_op=True))
        for work in reversed(works):
            work.wait()
        for number, each in enumerate(given):
            expected = float(sum(number + other for other in range(rank.world)))
            checks.same(f"all_reduce {number} of 8", each, torch.full((5,), expected))
        checks.same("broadcast behind them", last, torch.full((3,), 2.0))
        future = dist.all_reduce(value := one(rank, 4), async_op=True).get_future()
        halves = future.then(lambda done: done.value()[0] / 2).wait()
        checks.same("get_future().then()", halves, torch.full((4,), groups.total(rank) / 2))
        checks.same("the tensor of the future", value, torch.full((4,), groups.total(rank)))
    return checks


@worlds(2, 4)
def test_async_op_calls_do_not_mix(ranks: Any, world: int) -> None:
    """Each of several pending calls has its own result, in whatever order they are awaited."""
    expect_all_right(ranks.run(queued, world=world))


def barriers(rank: Any) -> Checks:
    """Delay each rank once, and check that the others find its mark after the barrier."""
    checks = Checks(rank.number)
    with group(rank):
        for late in range(rank.world):
            if rank.number == late:
                time.sleep(LATE / 3)
                (rank.folder / f"mark-{late}").touch()
            dist.barrier(device_ids=[rank.number] if rank.device.type == "cuda" else None)
            synchronize(rank)
            checks.true(f"barrier with rank {late} late", (rank.folder / f"mark-{late}").exists())
    return checks


@worlds(2, 4)
def test_barrier_waits_for_every_rank(ranks: Any, world: int) -> None:
    """After a barrier, everything that each rank did before it is done."""
    expect_all_right(ranks.run(barriers, world=world))


def messages(rank: Any) -> Checks:
    """Send messages around a ring, and several messages between two ranks."""
    checks = Checks(rank.number)
    after, before = (rank.number + 1) % rank.world, (rank.number - 1) % rank.world
    with group(rank):
        got = torch.zeros(1000, device=rank.device)
        if rank.number % 2 == 0:
            dist.send(one(rank), after)
            dist.recv(got, before)
        else:
            dist.recv(got, before)
            dist.send(one(rank), after)
        checks.same("send and recv around the ring", got, torch.full((1000,), before + 1.0))

        sizes = (1, 33, 4097, 70000)
        if rank.number == 0:
            for size in sizes:
                dist.send(torch.arange(size, device=rank.device) + size, 1)
        elif rank.number == 1:
            for size in sizes:
                got = torch.zeros(size, dtype=torch.int64, device=rank.device)
                sender = dist.recv(got, 0)
                checks.same(f"message of {size} elements", got, torch.arange(size) + size)
                checks.equal("recv returns the sender", sender, 0)

        got = [torch.zeros(7, device=rank.device) for _ in range(2)]
        sent = [torch.full((7,), 10.0 * rank.number + place, device=rank.device) for place in range(2)]
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent[0], after),
                dist.P2POp(dist.irecv, got[0], before),
                dist.P2POp(dist.isend, sent[1], before),
                dist.P2POp(dist.irecv, got[1], after),
            ]
        )
        for work in works:
            work.wait()
        checks.same("batch_isend_irecv from the rank before", got[0], torch.full((7,), 10.0 * before))
        checks.same("batch_isend_irecv from the rank after", got[1], torch.full((7,), 10.0 * after + 1))
    return checks


@worlds(2, 3, 4)
def test_send_and_recv_keep_the_order_of_messages(ranks: Any, world: int) -> None:
    """Messages between two ranks arrive complete and in order; a batch in both directions completes."""
    expect_all_right(ranks.run(messages, world=world))


def tagged(rank: Any) -> Checks:
    """Receive two messages in reverse order."""
    checks = Checks(rank.number)
    with group(on_cpu(rank)):
        if rank.number == 0:
            sent = [torch.full((3,), float(tag)) for tag in (5, 6)]
            works = [dist.isend(each, 1, tag=int(each[0])) for each in sent]
            for work in works:
                work.wait()
            checks.equal("recv from any rank", dist.recv(torch.zeros(1)), 1)
        else:
            for tag in (6, 5):
                dist.recv(got := torch.zeros(3), 0, tag=tag)
                checks.same(f"message with tag {tag}", got, torch.full((3,), float(tag)))
            dist.send(torch.ones(1), 0)
    return checks


def named_in_a_group(rank: Any) -> Checks:
    """Send messages in a group whose ranks have other numbers in the world."""
    checks = Checks(rank.number)
    with group(on_cpu(rank)):
        pair = dist.new_group([1, 2])
        if rank.number == 2:
            for options in ({"dst": 1}, {"group_dst": 0}, {"dst": 1}):
                dist.send(torch.full((3,), 7.0), group=pair, **options)
        elif rank.number == 1:
            for source, options in {"any": {}, "of the group": {"group_src": 1}, "of the world": {"src": 2}}.items():
                got = torch.zeros(3)
                checks.equal(f"recv from a rank {source}", dist.recv(got, group=pair, **options), 2)
                checks.same(f"message of a rank {source}", got, torch.full((3,), 7.0))
        checks.equal("get_rank in the group", dist.get_rank(pair), rank.number - 1)
        dist.barrier()
    return checks


@pytest.mark.requires(ranks=3)
def test_recv_in_a_group_returns_the_rank_of_the_sender_in_the_world(ranks: Any) -> None:
    """`recv` returns the sender's global rank, also if the source is any rank or is given as its group rank."""
    expect_all_right(ranks.run(named_in_a_group, world=3))


@pytest.mark.requires(ranks=2)
def test_recv_chooses_a_message_by_its_tag(ranks: Any) -> None:
    """`recv` takes the message with its tag, and without a source the message of any rank. NCCL has no tags."""
    expect_all_right(ranks.run(tagged, world=2))


def subgroups(rank: Any) -> Checks:
    """Use groups of even and odd ranks, of all ranks, and of one rank."""
    checks = Checks(rank.number)
    with group(rank):
        even, odd = [list(range(start, rank.world, 2)) for start in (0, 1)]
        halves = [dist.new_group(even), dist.new_group(odd)]
        own, members = (halves[0], even) if rank.number in even else (halves[1], odd)
        everybody = dist.new_group(timeout=timedelta(seconds=groups.TIMEOUT))

        checks.equal("get_world_size", dist.get_world_size(own), len(members))
        checks.equal("get_rank", dist.get_rank(own), members.index(rank.number))
        checks.equal("get_process_group_ranks", dist.get_process_group_ranks(own), members)
        other = halves[1] if own is halves[0] else halves[0]
        checks.equal("the group of the others", dist.get_rank(other), -1)

        works = [
            dist.all_reduce(part := one(rank, 11), group=own, async_op=True),
            dist.all_reduce(total := one(rank, 11), group=everybody, async_op=True),
            dist.all_reduce(default := one(rank, 11) * 2, async_op=True),
        ]
        for work in works:
            work.wait()
        checks.same("all_reduce in a half", part, torch.full((11,), float(sum(number + 1 for number in members))))
        checks.same("all_reduce in a second group of all", total, torch.full((11,), groups.total(rank)))
        checks.same("all_reduce in the default group", default, torch.full((11,), 2 * groups.total(rank)))

        dist.broadcast(value := one(rank, 4), src=members[-1], group=own)
        checks.same("broadcast from a rank of the world", value, torch.full((4,), members[-1] + 1.0))
        dist.broadcast(value := one(rank, 4), group_src=0, group=own)
        checks.same("broadcast from a rank of the group", value, torch.full((4,), members[0] + 1.0))
        made = [torch.zeros(2, device=rank.device) for _ in members]
        dist.all_gather(made, one(rank, 2), group=own)
        checks.equal("all_gather in a half", [each[0].item() for each in made], [number + 1.0 for number in members])

        checks.true("a group of others is no group", other is dist.GroupMember.NON_GROUP_MEMBER)
        checks.refused("new_group with a rank that the world lacks", lambda: dist.new_group([0, rank.world]), "rank")
        dist.destroy_process_group(own)
        dist.all_reduce(after := one(rank, 3))
        checks.same("all_reduce after a group was destroyed", after, torch.full((3,), groups.total(rank)))
    return checks


@worlds(2, 4)
def test_new_group_has_its_own_ranks_and_order(ranks: Any, world: int) -> None:
    """Collectives of a group reach its members only, and concurrent collectives of several groups do not mix."""
    expect_all_right(ranks.run(subgroups, world=world))


def coalesced(rank: Any) -> Checks:
    """Combine several collectives in one call."""
    checks = Checks(rank.number)
    with group(rank):
        given = [torch.full((size,), rank.number + size + 0.0, device=rank.device) for size in (1, 17, 4097)]
        with coalescing_manager()(device=rank.device, async_ops=True) as manager:
            for each in given:
                dist.all_reduce(each)
        manager.wait()
        for each in given:
            expected = float(sum(number + len(each) for number in range(rank.world)))
            checks.same(f"all_reduce of {len(each)} elements", each, torch.full((len(each),), expected))
    return checks


@NCCL
@worlds(2, 3)
def test_coalescing_manager_makes_one_call_of_several(ranks: Any, world: int) -> None:
    """Collectives inside the manager all have their results after it is awaited. gloo has no coalescing."""
    expect_all_right(ranks.run(coalesced, world=world))


def objects(rank: Any) -> Checks:
    """Send Python objects of different sizes."""
    checks = Checks(rank.number)
    own = {"rank": rank.number, "text": "x" * (rank.number * 1000), "tensor": torch.arange(rank.number)}
    with group(rank):
        made: list[Any] = [None] * rank.world
        dist.all_gather_object(made, own)
        for number, each in enumerate(made):
            checks.equal(f"all_gather_object: {number}", (each["rank"], len(each["text"])), (number, 1000 * number))
            checks.same(f"all_gather_object: tensor of {number}", each["tensor"], torch.arange(number))
        last = rank.world - 1
        sent: list[Any] = [own["text"], rank.number, None] if rank.number == last else [None] * 3
        dist.broadcast_object_list(sent, src=last)
        checks.equal("broadcast_object_list", (len(sent[0]), sent[1:]), (1000 * last, [last, None]))
        got: list[Any] = [None]
        dist.scatter_object_list(got, [f"for {number}" for number in range(rank.world)] if rank.number == 0 else None)
        checks.equal("scatter_object_list", got, [f"for {rank.number}"])
        gathered: list[Any] | None = [None] * rank.world if rank.number == last else None
        dist.gather_object(rank.number * "y", gathered, dst=last)
        expected = [number * "y" for number in range(rank.world)] if rank.number == last else None
        checks.equal("gather_object", gathered, expected)
    return checks


@worlds(2, 3)
def test_all_gather_object_and_others_send_any_object(ranks: Any, world: int) -> None:
    """Objects of different sizes arrive at their places."""
    expect_all_right(ranks.run(objects, world=world))
