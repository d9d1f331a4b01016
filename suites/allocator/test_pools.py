"""`torch.cuda.MemPool`: allocations from a separate pool, and the lifetime of its memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ..snapshot._torch_private import recorded
from ..streams.busy import NOT_SHOWN, calibrate, ever, sleep_on
from ._torch_private import pool_snapshot
from .limits import LEFT, MIB, block, settle, short_of_memory
from .pools import inside, references_taken, segments

pytestmark = [
    pytest.mark.requires(device="cuda"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("nothing_stays"),
]

Pool = torch.cuda.MemPool
use = torch.cuda.use_mem_pool


def addresses(pool: Pool) -> set[int]:
    """Return the addresses of the pool's segments."""
    return {segment["address"] for segment in segments(pool)}


@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_id")
def test_mempool_ids_are_unique_and_grow() -> None:
    """Each pool has a unique id of two numbers, distinct from graph pool handles; ids increase."""
    pools = [Pool() for _ in range(5)]
    handles = [torch.cuda.graph_pool_handle() for _ in range(5)]
    ids = [pool.id for pool in pools]

    assert len({*ids, *handles, (0, 0)}) == 11
    assert ids == sorted(ids)
    assert handles == sorted(handles)


@pytest.mark.covers("test_cuda::TestMemPool::test_pool_id_in_snapshot")
def test_mempool_snapshot_names_the_pool(device: torch.device) -> None:
    """A pool's snapshot has the segments of its allocations, with its id.

    The snapshot of all memory also has other segments, without its id.
    """
    pool = Pool()
    with use(pool):
        x = block(device, 3 * MIB)
    y = block(device, 3 * MIB)
    everything = torch.cuda.memory_snapshot()

    assert {segment["segment_pool_id"] for segment in segments(pool)} == {pool.id}
    assert inside(pool, x)
    assert not inside(pool, y)
    assert {each["address"] for each in everything if each["segment_pool_id"] == pool.id} == addresses(pool)
    assert {each["segment_pool_id"] for each in everything} >= {pool.id, (0, 0)}


@pytest.mark.xfail(
    torch.__version__ < (2, 15),
    raises=AssertionError,
    reason="torch 2.11 to 2.14 drop references that the caller owns (THCPModule_memorySnapshot in"
    " torch/csrc/cuda/Module.cpp, https://github.com/pytorch/pytorch/pull/196366)",
)
def test_memory_snapshot_of_a_mempool_leaves_references_to_its_id_alone() -> None:
    """`torch.cuda.memory_snapshot` of a pool drops no reference to the numbers of its id.

    Otherwise Python frees them in use, and the process crashes later at an unrelated place.
    """
    assert references_taken() == 0


@pytest.mark.parametrize("size", [1000, 3 * MIB, 30 * MIB], ids=lambda size: f"{size}_bytes")
def test_mempool_memory_is_separate(device: torch.device, size: int) -> None:
    """Memory freed in a pool serves that pool's next request and none outside, and vice versa."""
    pool = Pool()
    outside = block(device, size)
    outside_address = outside.data_ptr()
    del outside
    with use(pool):
        x = block(device, size)
        address = x.data_ptr()
        assert address != outside_address
        del x
    y = block(device, size)
    assert not inside(pool, y)
    with use(pool):
        z = block(device, size)

    assert z.data_ptr() == address
    assert y.data_ptr() == outside_address


@pytest.mark.covers("test_cuda::TestMemPool::test_nested_mempool")
def test_use_mem_pool_nests(device: torch.device) -> None:
    """The innermost `use_mem_pool` applies; its exit, also after an exception, restores the enclosing one."""
    outer, inner = Pool(), Pool()

    def fail() -> None:
        with use(inner):
            raise KeyError

    with use(outer):
        first = block(device, MIB)
        with use(inner):
            second = block(device, MIB)
        third = block(device, MIB)
        with pytest.raises(KeyError):
            fail()
        fourth = block(device, MIB)
    fifth = block(device, MIB)

    assert [inside(outer, x) for x in (first, second, third, fourth, fifth)] == [True, False, True, True, False]
    assert [inside(inner, x) for x in (first, second, third, fourth, fifth)] == [False, True, False, False, False]


def test_mempool_use_count_counts_uses(device: torch.device) -> None:
    """`use_count` is 1 for the owner, plus 1 within `use_mem_pool`."""
    pool = Pool()
    assert pool.use_count() == 1
    with use(pool):
        block(device, MIB)
        assert pool.use_count() == 2
    assert pool.use_count() == 1


@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_empty_cache")
def test_mempool_memory_is_freed_with_the_pool(device: torch.device) -> None:
    """A pool's memory is returned to the device after pool and tensors are freed, by `empty_cache` at the latest."""
    before = torch.cuda.memory_reserved(device)
    pool = Pool()
    with use(pool):
        x = block(device, 30 * MIB)
    assert torch.cuda.memory_reserved(device) >= before + 30 * MIB
    del x, pool
    settle(device)

    assert torch.cuda.memory_reserved(device) == before


def test_tensor_outlives_its_mempool(device: torch.device) -> None:
    """A tensor keeps its values after its pool is gone, despite later allocations, and its memory is freed with it."""
    before = torch.cuda.memory_reserved(device)
    pool = Pool()
    with use(pool):
        x = torch.arange(MIB, device=device)
    del pool
    settle(device)
    others = [torch.zeros(MIB, device=device) for _ in range(5)]

    assert torch.equal(x.cpu(), torch.arange(MIB))
    del x, others
    settle(device)
    assert torch.cuda.memory_reserved(device) == before


@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_no_split")
@pytest.mark.parametrize("no_split", [False, True])
def test_mempool_no_split_gives_each_tensor_a_segment(device: torch.device, no_split: bool) -> None:
    """With `no_split`, each tensor has its own segment with one block; otherwise small tensors share a segment."""
    pool = Pool(no_split=True) if no_split else Pool()
    with use(pool):
        tensors = [block(device, 1024) for _ in range(3)]
    found = segments(pool)

    assert len({x.data_ptr() for x in tensors}) == 3
    assert len(found) == (3 if no_split else 1)
    if no_split:
        assert [len(segment["blocks"]) for segment in found] == [1, 1, 1]


# torch 2.11 releases no cached memory while a thread allocates in a pool, as required during a capture.
@pytest.mark.requires(torch=">=2.13")
@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_release_cached_blocks_during_diversion")
def test_mempool_request_releases_cached_memory_outside(device: torch.device) -> None:
    """A request in a pool that fits only without the cached memory outside the pool succeeds."""
    pool = Pool()
    with short_of_memory(device):
        outside = block(device, LEFT * 3 // 4)
        del outside
        with use(pool):
            x = torch.full((LEFT * 3 // 4,), 9, dtype=torch.uint8, device=device)

        assert inside(pool, x)
        assert bool((x.cpu() == 9).all())
        del x, pool


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_oom_recovery_releases_cached_blocks")
@pytest.mark.xfail(
    raises=torch.OutOfMemoryError,
    reason="torch 2.13 to 2.15 release the cached memory outside and that of deleted pools, not that of a pool"
    " in use (release_cached_blocks in c10/cuda/CUDACachingAllocator.cpp, https://github.com/pytorch/pytorch)",
)
def test_mempool_request_releases_cached_memory_of_the_pool(device: torch.device) -> None:
    """Memory cached in a pool is released to the device before a larger request in that pool raises."""
    pool = Pool()
    with short_of_memory(device):
        with use(pool):
            x = block(device, LEFT // 2)
            del x
            y = block(device, LEFT * 3 // 4)
            assert y.nbytes == LEFT * 3 // 4
            del y
        del pool


@pytest.mark.parametrize("last_resort", [False, True], ids=["own_use_only", "last_resort"])
def test_mempool_use_on_oom_serves_requests_outside(device: torch.device, last_resort: bool) -> None:
    """With `use_on_oom`, a request outside the pool can use the pool's cached memory.

    Without it, the request raises.
    """
    pool = Pool(use_on_oom=True) if last_resort else Pool()
    with short_of_memory(device):
        with use(pool):
            x = block(device, LEFT * 3 // 4)
        address = x.data_ptr()
        del x
        if last_resort:
            y = torch.full((LEFT * 3 // 4,), 5, dtype=torch.uint8, device=device)
            assert y.data_ptr() == address
            assert bool((y.cpu() == 5).all())
            del y
        else:
            with pytest.raises(torch.OutOfMemoryError):
                block(device, LEFT * 3 // 4)
        del pool


@pytest.mark.covers("test_cuda::TestMemPool::test_deleted_mempool_not_used_on_oom")
def test_mempool_use_on_oom_ends_with_the_pool(device: torch.device) -> None:
    """A deleted pool does not serve other requests, even while one of its tensors lives.

    A request that does not fit raises.
    """
    pool = Pool(use_on_oom=True)
    with short_of_memory(device):
        with use(pool):
            x = torch.full((LEFT // 2,), 4, dtype=torch.uint8, device=device)
        del pool
        with pytest.raises(torch.OutOfMemoryError):
            block(device, LEFT * 3 // 4)
        assert bool((x.cpu() == 4).all())
        del x
        y = block(device, LEFT * 3 // 4)
        del y


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_block_free_not_deferred")
def test_mempool_record_stream_block_is_reused_after_that_stream(device: torch.device) -> None:
    """Without a capture, a pool's block is reused once another stream that used it completes, in the same `with`.

    It is not reused before; the case must observe this at least once.
    """
    side = torch.cuda.Stream(device)
    calibrate(device)

    def seen_at_work() -> bool:
        pool = Pool()
        with use(pool):
            x = block(device, 4 * MIB)
            sleep_on(side)
            x.record_stream(side)
            address = x.data_ptr()
            del x
            early = block(device, 4 * MIB)
            at_work = not side.query()
            torch.cuda.synchronize(device)
            y = block(device, 4 * MIB)
        if at_work:
            assert early.data_ptr() != address
            assert y.data_ptr() == address
        return at_work

    assert ever(seen_at_work), NOT_SHOWN


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.covers("test_cuda::TestMemPool::test_reserved_bytes_by_private_pools")
def test_memory_stats_report_reserved_bytes_by_mempool(device: torch.device) -> None:
    """`memory_stats` reports the reserved bytes per pool, which are the sum of the pool's segments."""
    pools = [Pool(), Pool()]
    kept = []
    for pool, size in zip(pools, (3 * MIB, 30 * MIB), strict=True):
        with use(pool):
            kept.append(block(device, size))
    kept.append(block(device, 50 * MIB))
    statistics = torch.cuda.memory_stats(device)

    for pool in pools:
        name = f"reserved_bytes_by_private_pools.{pool.id[0]}_{pool.id[1]}.all.current"
        assert statistics[name] == sum(segment["total_size"] for segment in segments(pool)) > 0


@pytest.mark.covers("test_cuda::TestMemPool::test_snapshot_include_traces")
@pytest.mark.covers("test_cuda::TestMemPool::test_snapshot_include_traces_correctness")
def test_memory_snapshot_include_traces_changes_no_segment(device: torch.device) -> None:
    """`include_traces` adds or omits the traces in a pool's snapshot; segments and blocks are the same.

    The traces have the pool's allocations and frees, in order.
    """
    pool = Pool()
    with recorded():
        with use(pool):
            tensors = [block(device, size) for size in (1000, 3 * MIB)]
            gone = block(device, 5 * MIB)
        places = [(x.data_ptr(), x.nbytes) for x in (*tensors, gone)]
        del gone
        plain, whole = (pool_snapshot(pool, include_traces=wanted) for wanted in (False, True))
        public = [segments(pool, include_traces=wanted) for wanted in (False, True)]

    def shape(segments: list[dict[str, Any]]) -> list[tuple[object, ...]]:
        return sorted(
            (each["address"], each["total_size"], [(block["size"], block["state"]) for block in each["blocks"]])
            for each in segments
        )

    assert len(tensors) == 2
    assert shape(plain["segments"]) == shape(whole["segments"]) == shape(public[0]) == shape(public[1])
    assert len(plain["segments"]) >= 2
    assert not any(plain["device_traces"])
    trace = [(entry["action"], entry["addr"], entry["size"]) for entry in whole["device_traces"][device.index]]
    found = [entry for entry in trace if entry[0] in ("alloc", "free_completed") and entry[1] in dict(places)]
    assert [entry[:2] for entry in found] == [
        *(("alloc", address) for address, _ in places),
        ("free_completed", places[-1][0]),
    ]
    assert all(size >= dict(places)[address] for _, address, size in found)


def test_use_mem_pool_changes_no_result_of_a_training_step(device: torch.device) -> None:
    """A training step in a pool gives the same results as outside, and its gradients outlive the `with`."""

    def step() -> torch.Tensor:
        torch.manual_seed(5)
        weight = torch.randn(64, 64, device=device, requires_grad=True)
        x = torch.randn(32, 64, device=device)
        (x @ weight).relu().sum().backward()
        assert weight.grad is not None
        return weight.grad

    expected = step()
    pool = Pool()
    with use(pool):
        got = step()

    assert torch.equal(got, expected)
