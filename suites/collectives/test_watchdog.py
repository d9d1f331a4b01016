"""NCCL's process group with a rank that is missing, dies or makes another call: watchdog, abort, call record, settings.

With NCCL, a collective that lacks a rank waits forever on the device. Only timeouts report it to the host.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from . import groups
from ._torch_private import abort_process_group, flight_record, set_timeout
from .checking import Checks, checks_of, expect_all_right
from .groups import group, grouped, use_again, worlds
from .test_failures import error_of, held

pytestmark = [groups.NCCL, pytest.mark.timeout(60)]

#: The timeout in seconds of collectives that lack a rank.
SHORT = 2.0
#: The seconds after which a rank stops waiting for another.
PATIENCE = 25.0


def began(rank: Any, **settings: object) -> None:
    """Create the default group with these settings of torch, and its communicator."""
    os.environ.update({name: str(value) for name, value in settings.items()})
    groups.begin(rank)
    groups.connect(rank)


def await_file(path: Path, holds: Callable[[str], bool] = lambda _: True) -> str:
    """Return the text of a file, once it exists and is not empty."""
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        if path.exists() and holds(text := path.read_text(errors="replace")):
            return text
        time.sleep(0.02)
    return path.read_text(errors="replace") if path.exists() else ""


def timed_out(rank: Any) -> Checks:
    """Keep rank 1 away. The watchdog ends the process of rank 0, and leaves its call record."""
    checks = Checks(rank.number)
    log, record = rank.folder / "log", rank.folder / "record-"
    began(
        rank,
        TORCH_NCCL_TRACE_BUFFER_SIZE=100,
        TORCH_FR_BUFFER_SIZE=100,
        TORCH_NCCL_DUMP_ON_TIMEOUT=1,
        TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=1000,
        TORCH_NCCL_DEBUG_INFO_TEMP_FILE=record,
        TORCH_FR_DUMP_TEMP_FILE=record,
        TORCH_NCCL_ASYNC_ERROR_HANDLING=1,
    )
    if rank.number == 0:
        set_timeout(timedelta(seconds=SHORT))
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
        dist.all_reduce(torch.ones(1000, device=rank.device))
        time.sleep(2 * PATIENCE)
        return checks
    words = ("Watchdog caught collective operation timeout", "OpType=ALLREDUCE", "NumelIn=1000", "[Rank 0]")
    text = await_file(log, lambda found: all(word in found for word in words) and "taking the entire process" in found)
    for word in words:
        checks.true(f"the log of rank 0 has {word!r}: {text[-600:]!r}", word in text)
    made = Path(f"{record}0")
    await_file(made)
    checks.true("the record of rank 0 is there", made.exists())
    if made.exists():
        entries = pickle.loads(made.read_bytes())["entries"]
        last = entries[-1]
        checks.equal(
            "the last call of the record", (last["profiling_name"], last["input_sizes"]), ("nccl:all_reduce", [[1000]])
        )
        checks.true(f"the last call is not completed: {last['state']}", last["state"] != "completed")
    return checks


@pytest.mark.requires(ranks=2)
def test_watchdog_ends_the_process_and_dumps_its_record(ranks: Any) -> None:
    """At the timeout, the watchdog names the call, writes the flight recorder's record, and aborts the process."""
    expect_all_right(ranks.run(timed_out, world=2, deaths={0: -signal.SIGABRT})[1:])


def blocking(rank: Any) -> tuple[Checks, float]:
    """Keep rank 1 away. With this setting, `wait` raises."""
    checks, seconds = Checks(rank.number), SHORT
    began(rank, TORCH_NCCL_BLOCKING_WAIT=1)
    if rank.number == 0:
        set_timeout(timedelta(seconds=SHORT))
        work = dist.all_reduce(torch.ones(1000, device=rank.device), async_op=True)
        text, seconds = error_of(work.wait)
        checks.true(f"an error about the time, found {text[:300]!r}", "timeout" in text.lower() or "timed out" in text)
        (rank.folder / "raised").touch()
    else:
        await_file(rank.folder / "raised")
    abort_process_group()
    use_again(rank, checks, [0, 1])
    return checks, seconds


@pytest.mark.requires(ranks=2)
def test_blocking_wait_raises_at_the_timeout(ranks: Any) -> None:
    """With `TORCH_NCCL_BLOCKING_WAIT`, `wait` raises after the timeout, and a new group of all ranks works."""
    results = ranks.run(blocking, world=2)
    expect_all_right(checks_of(results))
    assert SHORT * 0.9 < results[0][1] < PATIENCE, f"the error came after {results[0][1]:.2f} s, the limit is {SHORT} s"


def failed(rank: Any) -> tuple[Checks, float]:
    """Make calls with different sizes, so that the communicator fails on the device."""
    checks = Checks(rank.number)
    began(rank, TORCH_NCCL_BLOCKING_WAIT=1)
    work = dist.all_reduce(torch.ones(1000 + rank.number, device=rank.device), async_op=True)
    text, seconds = error_of(work.wait)
    for word in ("invalid usage", "AllReduce of 1000 float32", "AllReduce of 1001 float32"):
        checks.true(f"an error with {word!r}, found {text[:600]!r}", word in text)
    abort_process_group()
    use_again(rank, checks, [0, 1])
    return checks, seconds


@pytest.mark.requires(ranks=2, silicon=False)
def test_wait_raises_what_the_communicator_has_failed_with(ranks: Any) -> None:
    """An error of the device reaches the host before the timeout. The simulated NCCL compares the calls of ranks."""
    results = ranks.run(failed, world=2)
    expect_all_right(checks_of(results))
    assert max(seconds for _, seconds in results) < PATIENCE, "the error came late"


def aborted(rank: Any, how: str) -> Checks:
    """Start a collective without rank 1, which has died or is late.

    It waits on the device until the group is aborted.
    """
    checks = Checks(rank.number)
    began(rank)
    if rank.number == 1:
        if how == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        await_file(rank.folder / "aborted")
    else:
        given = torch.full((1000,), 5.0, device=rank.device)
        work = dist.all_reduce(given, async_op=True)
        behind = torch.cuda.Stream()
        with torch.cuda.stream(behind):
            work.wait()
        time.sleep(0.5)
        checks.true("the stream waits for the rank that does not come", not behind.query())
        checks.true("is_completed() without the rank", not work.is_completed())
        begun = time.monotonic()
        abort_process_group()
        torch.cuda.synchronize()
        checks.true(f"aborting took {time.monotonic() - begun:.1f} s", time.monotonic() - begun < 15)
        (rank.folder / "aborted").touch()
        checks.same(
            "arithmetic on the device after the abort", torch.ones(3, device=rank.device) * 2, torch.full((3,), 2.0)
        )
    if rank.number == 1:
        abort_process_group()
    use_again(rank, checks, [0] if how == "SIGKILL" else [0, 1])
    return checks


@pytest.mark.requires(ranks=2)
@pytest.mark.parametrize("how", ["SIGKILL", "late"])
def test_abort_process_group_ends_a_collective_that_lacks_a_rank(ranks: Any, how: str) -> None:
    """The device works after an abort, and the remaining ranks can form a new group."""
    results = ranks.run(aborted, how, world=2, deaths={1: -signal.SIGKILL} if how == "SIGKILL" else None)
    expect_all_right([checks for checks in results if checks is not None])


def recorded(rank: Any) -> Checks:
    """Make calls of several kinds, and read them from the flight recorder."""
    checks = Checks(rank.number)
    began(rank, TORCH_NCCL_TRACE_BUFFER_SIZE=100, TORCH_FR_BUFFER_SIZE=100)
    given = torch.ones(6, 5, device=rank.device)
    dist.all_reduce(given)
    dist.broadcast(given, 0)
    groups.all_gather_single(torch.zeros(6 * rank.world, 5, device=rank.device), given)
    torch.cuda.synchronize()
    expected = ["nccl:all_reduce", "nccl:all_reduce", "nccl:broadcast", "nccl:_all_gather_base"]
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        entries = pickle.loads(flight_record())["entries"]
        if all(each["state"] == "completed" for each in entries):
            break
        time.sleep(0.1)
    checks.equal("the calls", [each["profiling_name"] for each in entries], expected)
    checks.equal("their states", {each["state"] for each in entries}, {"completed"})
    checks.equal("the sizes of the last", entries[-1]["output_sizes"], [[6 * rank.world, 5]])
    numbers = [each["collective_seq_id"] for each in entries]
    checks.equal("their numbers", numbers, list(range(numbers[0], numbers[0] + 4)))
    dist.destroy_process_group()
    return checks


@worlds(2, 3)
def test_flight_recorder_has_each_call_with_its_state(ranks: Any, world: int) -> None:
    """The call record names each call with its sizes, in order, as completed once the device has done it."""
    expect_all_right(ranks.run(recorded, world=world))


def one_device(rank: Any) -> Checks:
    """Let all ranks use the device of rank 0."""
    checks = Checks(rank.number)
    device = torch.device("cuda:0")
    groups.begin(dataclasses.replace(rank, device_name="cuda:0"), bound=False)
    checks.refused(
        "all_reduce of two ranks on a device", lambda: dist.all_reduce(torch.ones(4, device=device)), "Duplicate GPU"
    )
    return checks


@pytest.mark.requires(ranks=2)
def test_all_reduce_refuses_two_ranks_on_one_device(ranks: Any) -> None:
    """NCCL allows one rank per device: the first collective of two ranks on one device raises on both."""
    expect_all_right(ranks.run(one_device, world=2))


def differing(rank: Any, what: str) -> Checks:
    """Make another call on the last rank."""
    checks = Checks(rank.number)
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    with group(rank):
        differs = rank.number == rank.world - 1
        given = torch.ones(11 if differs and what == "sizes" else 10, device=rank.device)
        call = dist.broadcast if differs and what == "functions" else dist.all_reduce
        text, _ = error_of(lambda: call(given, 0) if call is dist.broadcast else call(given))
        found = {"sizes": "TensorShape=[11]", "functions": "BROADCAST"}[what]
        checks.true(
            f"an error of ranks that differ, found {text[:300]!r}", "Detected mismatch between collectives" in text
        )
        if differs:
            checks.true(f"an error with {found!r}, found {text[:300]!r}", found in text)
        dist.all_reduce(given := torch.ones(4, device=rank.device))
        checks.same("all_reduce after the mismatch", given, torch.full((4,), float(rank.world)))
    return checks


@pytest.mark.requires(ranks=2)
@pytest.mark.parametrize("what", ["sizes", "functions"])
def test_set_debug_level_detail_compares_calls_before_nccl_has_them(ranks: Any, what: str) -> None:
    """With the debug level DETAIL, each rank raises, NCCL is not called, and the group works afterwards."""
    expect_all_right(ranks.run(differing, what, world=2))


@grouped
def not_blocking(rank: Any) -> Checks:
    checks = Checks(rank.number)
    dist.all_reduce(given := torch.full((100,), rank.number + 1.0, device=rank.device))
    checks.same("all_reduce", given, torch.full((100,), rank.world * (rank.world + 1) / 2))
    half = dist.new_group([0, 1])
    if rank.number < 2:
        dist.all_reduce(given := torch.ones(5, device=rank.device), group=half)
        checks.same("all_reduce of two ranks", given, torch.full((5,), 2.0))
    dist.barrier()
    return checks


def with_setting(rank: Any, name: str, value: str) -> Checks:
    os.environ[name] = value
    checks: Checks = not_blocking(rank)
    return checks


@pytest.mark.requires(ranks=3)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_NCCL_USE_COMM_NONBLOCKING", "1"),
        ("TORCH_NCCL_HIGH_PRIORITY", "1"),
        ("TORCH_NCCL_CUDA_EVENT_CACHE", "0"),
        ("TORCH_NCCL_RANKS_PER_ROOT", "1"),
        ("TORCH_NCCL_ENABLE_TIMING", "1"),
    ],
    ids=lambda each: each.removeprefix("TORCH_NCCL_").lower(),
)
def test_settings_leave_the_results(ranks: Any, name: str, value: str) -> None:
    """Results do not depend on settings such as nonblocking communicators and streams of high priority."""
    expect_all_right(ranks.run(with_setting, name, value, world=3))


def come_and_go(rank: Any) -> Checks:
    """Repeat the same work. From the second time on, it adds nothing."""
    checks = Checks(rank.number)
    before: list[tuple[int, ...]] = []
    for turn in range(4):
        with group(rank, f"turn-{turn}"):
            dist.all_reduce(torch.ones(1000, device=rank.device))
            half = dist.new_group(list(range(rank.world)))
            dist.all_reduce(torch.ones(1000, device=rank.device), group=half)
            torch.cuda.synchronize()

        def now() -> tuple[int, ...]:
            torch.cuda.empty_cache()
            return (*held(), torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0])

        give_up = time.monotonic() + 5.0
        while len(before) > 1 and now() != before[1] and time.monotonic() < give_up:
            time.sleep(0.02)
        time.sleep(0.2 * (len(before) < 2))
        before.append(now())
    added = [tuple(b - a for a, b in zip(before[1], each, strict=True)) for each in before[2:]]
    checks.true(f"threads, descriptors and bytes added by later groups: {added}", all(max(each) <= 0 for each in added))
    return checks


@worlds(2)
def test_destroy_process_group_gives_back_threads_descriptors_and_memory(ranks: Any, world: int) -> None:
    """A process that creates and destroys groups holds as much after the fourth as after the second."""
    expect_all_right(ranks.run(come_and_go, world=world))
