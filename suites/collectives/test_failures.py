"""Failures of a rank, which dies, raises, is late or calls another collective: errors on the others, and a new group.

The ranks use gloo, whose messages the cases check.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ._torch_private import set_timeout
from .checking import Checks, checks_of, expect_all_right
from .groups import begin, group, on_cpu, use_again, worlds

pytestmark = pytest.mark.timeout(60)

#: The timeout in seconds of groups with a late rank.
SHORT = 1.0
PEER_IS_GONE = r"closed by peer|reset by peer|broken pipe"


def error_of(call: Callable[[], object]) -> tuple[str, float]:
    """Return the text of the error that a call raises, and the seconds until then."""
    begun = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        return str(error), time.monotonic() - begun
    return "", time.monotonic() - begun


def new_group_of_survivors(rank: Any, survivors: list[int], checks: Checks) -> None:
    """Replace the broken default group by a group of these ranks, and use it."""
    dist.destroy_process_group()
    checks.true("is_initialized() after destroy_process_group()", not dist.is_initialized())
    use_again(rank, checks, survivors)


def other_dies(rank: Any, how: str) -> Checks:
    """Kill rank 1 in the middle of many calls."""
    checks, rank = Checks(rank.number), on_cpu(rank)
    begin(rank)
    dist.all_reduce(torch.ones(4))
    if rank.number == 1:
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL if how == "SIGKILL" else signal.SIGSEGV)

    def use() -> None:
        for _ in range(3):
            dist.all_reduce(torch.ones(1000))

    text, seconds = error_of(use)
    checks.true(f"an error about the peer, found {text[:200]!r}", _has(text, PEER_IS_GONE))
    checks.true(f"the error came after {seconds:.1f} s, and not at the time limit", seconds < 15)
    new_group_of_survivors(rank, [0, 2], checks)
    return checks


def _has(text: str, pattern: str) -> bool:
    return any(part in text.lower() for part in pattern.split("|"))


@pytest.mark.requires(ranks=3)
@pytest.mark.parametrize(
    ("how", "status"), [("SIGKILL", -signal.SIGKILL), ("SIGSEGV", -signal.SIGSEGV), ("exit", 7)], ids=lambda v: str(v)
)
def test_all_reduce_raises_when_a_rank_has_died(ranks: Any, how: str, status: int) -> None:
    """The remaining ranks get an error immediately, and can form a new group without the dead rank."""
    first, _, last = ranks.run(other_dies, how, world=3, deaths={1: status})
    expect_all_right([first, last])


def other_raises(rank: Any) -> Checks:
    """Raise on rank 0 between two calls."""
    checks = Checks(rank.number)
    with group(on_cpu(rank)):
        dist.all_reduce(torch.ones(4))
        if rank.number == 0:
            checks.refused("a call of one rank", lambda: dist.broadcast(torch.ones(3), rank.world), "rank")
        dist.all_reduce(given := torch.ones(4))
        checks.same("all_reduce after one rank has caught an error", given, torch.full((4,), float(rank.world)))
    return checks


@worlds(2, 3)
def test_broadcast_that_one_rank_alone_refuses_leaves_the_group_usable(ranks: Any, world: int) -> None:
    """An error that is detected before anything is sent only affects the calling rank."""
    expect_all_right(ranks.run(other_raises, world=world))


def late(rank: Any) -> tuple[Checks, float]:
    """Keep rank 1 away from the call."""
    checks, rank = Checks(rank.number), on_cpu(rank)
    begin(rank)
    dist.barrier()
    set_timeout(timedelta(seconds=SHORT))  # not from the beginning, since ranks may be late for the rendezvous
    seconds = SHORT
    if rank.number == 1:
        while len(list(rank.folder.glob("raised-*"))) < rank.world - 1:
            time.sleep(0.01)
        checks.true("came last", True)
    else:
        text, seconds = error_of(lambda: dist.all_reduce(torch.ones(1000)))
        expected = f"timed out waiting {SHORT * 1000:.0f}ms|{PEER_IS_GONE}"
        checks.true(f"an error about the time or a peer, found {text[:200]!r}", _has(text, expected))
        (rank.folder / f"raised-{rank.number}").touch()
    new_group_of_survivors(rank, list(range(rank.world)), checks)
    return checks, seconds


@worlds(2, 3)
def test_all_reduce_raises_at_the_timeout_of_the_group(ranks: Any, world: int) -> None:
    """If a rank does not make the call, the others raise after the timeout, and a new group of all ranks works."""
    results = ranks.run(late, world=world)
    expect_all_right(checks_of(results))
    first = min(seconds for number, (_, seconds) in enumerate(results) if number != 1)
    assert first > SHORT * 0.9, f"the first error came after {first:.2f} s, the limit is {SHORT} s"


def monitored(rank: Any) -> Checks:
    """Keep some ranks away from a barrier, whose rank 0 reports them."""
    checks = Checks(rank.number)
    limit = timedelta(seconds=2 * SHORT)  # the other ranks must not be late
    with group(on_cpu(rank)):
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        missing = [2] if rank.world == 3 else [1, 3]
        if rank.number in missing:
            while not (rank.folder / "over").exists():
                time.sleep(0.01)
            checks.true("came last", True)
        else:
            text, _ = error_of(lambda: dist.monitored_barrier(timeout=limit, wait_all_ranks=rank.world > 3))
            if rank.number == 0:
                names = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
                wanted = f"{names} failed to pass monitoredbarrier in {SHORT * 2000:.0f} ms"
                checks.true(f"an error with {wanted!r}, found {text[:200]!r}", wanted in text.lower())
                (rank.folder / "over").touch()
            else:
                checks.true(f"an error that sends to rank 0, found {text[:200]!r}", "check rank 0" in text.lower())
    return checks


@worlds(3, 4)
def test_monitored_barrier_names_the_ranks_that_did_not_come(ranks: Any, world: int) -> None:
    """Rank 0 raises with the missing rank, or with `wait_all_ranks` all of them; other ranks point to rank 0."""
    expect_all_right(ranks.run(monitored, world=world))


def mismatched(rank: Any, what: str) -> Checks:
    """Make another call on the last rank."""
    checks = Checks(rank.number)
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    begin(on_cpu(rank))
    differs = rank.number == rank.world - 1
    dtype = torch.float64 if differs and what == "types" else torch.float32
    given = torch.ones(11 if differs and what == "sizes" else 10, dtype=dtype)

    def call() -> None:
        if differs and what == "functions":
            dist.broadcast(given, 0)
        else:
            dist.all_reduce(given)

    text, _ = error_of(call)
    words = {"sizes": "TensorShape=[11]", "types": "Double", "functions": "BROADCAST"}
    for word in ("Detected mismatch between collectives on ranks", f"Rank {rank.number} is running collective"):
        checks.true(f"an error with {word!r}, found {text[:300]!r}", word in text)
    if differs:
        checks.true(f"an error with {words[what]!r}, found {text[:300]!r}", words[what] in text)
    return checks


@pytest.mark.requires(ranks=3)
@pytest.mark.parametrize("what", ["sizes", "types", "functions"])
def test_set_debug_level_detail_reports_collectives_that_differ(ranks: Any, what: str) -> None:
    """With the debug level DETAIL, each rank raises with its own call and a different one, and no rank hangs."""
    expect_all_right(ranks.run(mismatched, what, world=3))


def refusals(rank: Any) -> Checks:
    """Make calls that are wrong in the same way on each rank."""
    checks = Checks(rank.number)
    world, own = rank.world, rank.number
    two = torch.ones(2)
    with group(on_cpu(rank)):
        wrong: dict[str, tuple[Callable[[], object], str]] = {
            "broadcast from a rank too many": (lambda: dist.broadcast(two, world), "rank"),
            "broadcast from rank -1": (lambda: dist.broadcast(two, -1), "rank"),
            "all_gather into too few": (lambda: dist.all_gather([two.clone()], two), "expected length|list"),
            "all_reduce of a list": (lambda: dist.all_reduce([two]), "tensor"),
            "all_gather into another type": (
                lambda: dist.all_gather([torch.ones(2, dtype=torch.int32) for _ in range(world)], two),
                "dtype|type",
            ),
            "all_to_all_single into another size": (
                lambda: dist.all_to_all_single(torch.zeros(2 * world), torch.zeros(3 * world)),
                "size",
            ),
            "all_to_all_single in parts of another sum": (
                lambda: dist.all_to_all_single(
                    torch.zeros(2 * world), torch.zeros(2 * world), [1] * world, [2] * world
                ),
                "split sizes",
            ),
            "send to itself": (lambda: dist.send(two, own), "destination rank"),
            "scatter with a list on another rank": (
                lambda: dist.scatter(torch.zeros(2), [two] * world, src=(own + 1) % world),
                "non-source",
            ),
            "gather without a list": (lambda: dist.gather(two, None, dst=own), "must be specified on destination"),
            "a second default group": (
                lambda: dist.init_process_group("gloo", rank=own, world_size=world, init_method=rank.rendezvous("x")),
                "twice",
            ),
            "a group with a rank too many": (lambda: dist.new_group([0, world]), "range|rank"),
            "P2POp of a collective": (lambda: dist.P2POp(dist.broadcast, two, 0), "isend"),
            "BAND of floats": (lambda: dist.all_reduce(two.clone(), dist.ReduceOp.BAND), "BAND"),
            "PRODUCT of complex": (
                lambda: dist.all_reduce(torch.ones(2, dtype=torch.complex64), dist.ReduceOp.PRODUCT),
                "complex",
            ),
            "all_reduce of int16": (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16)), "scalar type"),
        }
        if torch.__version__ >= "2.13":  # earlier releases wait for a second process of that rank
            wrong["a group with a rank twice"] = (lambda: dist.new_group([0, 0]), "duplicate")
        for what, (call, pattern) in wrong.items():
            checks.refused(what, call, pattern)
        checks.same("the tensor of refused calls", two, torch.ones(2))
        dist.all_reduce(given := torch.ones(3))
        checks.same("all_reduce after the refusals", given, torch.full((3,), float(world)))
    checks.refused("all_reduce without a group", lambda: dist.all_reduce(torch.ones(1)), "not been initialized")
    checks.refused("destroy_process_group without a group", dist.destroy_process_group, "")
    checks.refused("get_rank without a group", dist.get_rank, "not been initialized")
    return checks


@worlds(2, 3)
def test_broadcast_and_others_refuse_wrong_arguments(ranks: Any, world: int) -> None:
    """Each wrong call raises on every rank with what is wrong. The group then works until it is destroyed."""
    expect_all_right(ranks.run(refusals, world=world))


def held() -> tuple[int, int]:
    """Return the number of threads and of descriptors of this process."""
    assert threading.active_count() == 1, threading.enumerate()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def groups_come_and_go(rank: Any) -> Checks:
    """Repeat the same work. From the second time on, it adds nothing."""
    checks = Checks(rank.number)
    before: list[tuple[int, int]] = []
    for turn in range(5):
        with group(on_cpu(rank), f"turn-{turn}"):
            half = dist.new_group(list(range(rank.world)))
            dist.all_reduce(torch.ones(1000))
            dist.all_reduce(torch.ones(1000), group=half)
            dist.barrier()
        give_up = time.monotonic() + 5.0  # threads of a destroyed group end a moment later
        while len(before) > 1 and held() != before[1] and time.monotonic() < give_up:
            time.sleep(0.01)
        time.sleep(0.1 * (len(before) < 2))
        before.append(held())
    added = [(threads - before[1][0], files - before[1][1]) for threads, files in before[2:]]
    checks.true(f"threads and descriptors added by later groups: {added}", all(max(each) <= 0 for each in added))
    return checks


@worlds(2)
def test_destroy_process_group_leaves_no_thread_and_no_descriptor(ranks: Any, world: int) -> None:
    """A process holds as many threads and descriptors after its fifth group as after its second."""
    expect_all_right(ranks.run(groups_come_and_go, world=world))


def nobody_comes(rank: Any) -> Checks:
    """Create a group of two ranks without the second one."""
    checks = Checks(rank.number)
    text, seconds = error_of(
        lambda: dist.init_process_group(
            "gloo", init_method=rank.rendezvous(), rank=0, world_size=2, timeout=timedelta(seconds=SHORT)
        )
    )
    checks.true(f"an error about the time, found {text[:200]!r}", _has(text, "timed out|timeout"))
    checks.true(f"the error came after {seconds:.2f} s", SHORT * 0.9 < seconds < 20)
    checks.true("no group afterwards", not dist.is_initialized())
    return checks


def test_init_process_group_raises_if_a_rank_does_not_come(ranks: Any) -> None:
    """The first of two ranks raises after the timeout if the second does not start, and has no group."""
    expect_all_right(ranks.run(nobody_comes, world=1))
