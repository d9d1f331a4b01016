"""Expandable segments, in processes started with the setting."""

from __future__ import annotations

import pytest
import torch

from .answers import ask

pytestmark = [pytest.mark.requires(device="cuda", expandable_segments=True), pytest.mark.timeout(300)]

CONF = "expandable_segments:True"


@pytest.mark.own_process
def test_expandable_segments_grow_in_place(device: torch.device) -> None:
    """Growing requests, each freed before the next, are served by one segment that expands in place.

    Without the setting, each request needs its own segment.
    """
    script = """
places = set()
for size in range(20, 200, 20):
    x = new(size * MIB)
    places.add(x.data_ptr())
    del x
segments = [each for each in torch.cuda.memory_snapshot() if each["segment_type"] == "large"]
tell([len(segments), all(each["is_expandable"] for each in segments), len(places)])
"""
    assert ask(script, device, CONF) == [1, True, 1]
    number, expandable, places = ask(script, device)
    assert number > 1
    assert not expandable
    assert places > 1


@pytest.mark.own_process
def test_expandable_segments_keep_values_when_a_segment_grows(device: torch.device) -> None:
    """Tensors at the front of a segment keep address and values while it grows, and when `empty_cache` shrinks it."""
    script = """
kept = [torch.full((8 * MIB,), value, dtype=torch.uint8, device=DEVICE) for value in range(1, 6)]
addresses = [x.data_ptr() for x in kept]
start = counter("reserved_bytes")
grown, shrunk = [], []
for size in (100, 300, 500):
    x = torch.zeros(size * MIB, dtype=torch.uint8, device=DEVICE)
    segments = [each for each in torch.cuda.memory_snapshot() if each["segment_type"] == "large"]
    grown.append([each["address"] <= addresses[0] < x.data_ptr() < each["address"] + each["total_size"]
                  for each in segments])
    del x, segments
    torch.cuda.empty_cache()
    shrunk.append(counter("reserved_bytes") - start)
tell([all(bool((x == value).all()) for value, x in enumerate(kept, 1)), [x.data_ptr() for x in kept] == addresses,
      grown, shrunk])
"""
    assert ask(script, device, CONF) == [True, True, [[True]] * 3, [0] * 3]


@pytest.mark.own_process
def test_expandable_segments_empty_cache_unmaps_free_pages_of_a_segment_in_use(device: torch.device) -> None:
    """`empty_cache` unmaps free pages of 20 MiB within a segment, at least one from each of two holes of 40 MiB.

    Live tensors around the holes are intact, and the holes can be filled again.
    """
    script = """
kept = [torch.full((40 * MIB,), value, dtype=torch.uint8, device=DEVICE) for value in range(1, 6)]
reserved = [counter("reserved_bytes")]
for number in (1, 3):
    kept[number] = None
    torch.cuda.empty_cache()
    reserved.append(counter("reserved_bytes"))
again = [torch.full((40 * MIB,), value, dtype=torch.uint8, device=DEVICE) for value in (6, 7)]
tell([[before - after for before, after in zip(reserved, reserved[1:])],
      all(bool((x == value).all()) for x, value in zip(again, (6, 7))),
      all(bool((kept[number] == number + 1).all()) for number in (0, 2, 4))])
"""
    given_back, right, whole = ask(script, device, CONF)

    assert min(given_back) >= 20 << 20
    assert right
    assert whole


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_max_split_expandable")
@pytest.mark.own_process
def test_expandable_segments_with_max_split_size_hold_the_memory_fraction(device: torch.device) -> None:
    """With `max_split_size_mb` and a memory fraction, requests that fit succeed after cached memory is released.

    A request that does not fit raises, and live tensors are intact.
    """
    script = """
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(600 * MIB / total, 0)
a = new(200 * MIB)
b = torch.full((100 * MIB,), 6, dtype=torch.uint8, device=DEVICE)
del a
c = failure(lambda: new(400 * MIB))
d = failure(lambda: new(590 * MIB))
tell([c, d.partition(":")[0], bool((b.cpu() == 6).all())])
"""
    assert ask(script, device, f"{CONF},max_split_size_mb:40") == ["", "OutOfMemoryError", True]


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_garbage_collect_expandable")
@pytest.mark.own_process
def test_expandable_segments_with_garbage_collection_threshold_hold_a_fraction(device: torch.device) -> None:
    """With `garbage_collection_threshold` and a memory fraction, all requests succeed within the cap.

    Live tensors are intact, although the requests add up to many times the cap.
    """
    script = """
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(600 * MIB / total, 0)
kept = torch.full((100 * MIB,), 6, dtype=torch.uint8, device=DEVICE)
errors = []
for number in range(40):
    size = 20 + number * 37 % 300
    def once():
        x = torch.full((size * MIB,), number, dtype=torch.uint8, device=DEVICE)
        assert x[-1].item() == number
    errors.append(failure(once))
tell([[error for error in errors if error], counter("reserved_bytes", "peak") <= 600 * MIB, bool((kept == 6).all())])
"""
    script = script.replace("bool((kept == 6).all())", "bool((kept.cpu() == 6).all())")
    assert ask(script, device, f"{CONF},garbage_collection_threshold:0.5") == [[], True, True]


@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_expandable")
@pytest.mark.own_process
def test_expandable_segments_serve_a_mempool(device: torch.device) -> None:
    """A pool has expandable segments too; tensors in it are correct, belong to it, and are freed with it."""
    script = """
torch.cuda.empty_cache()
before = counter("reserved_bytes")
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = torch.arange(MIB, device=DEVICE)
segments = pool.snapshot()
right = bool((x.cpu() == torch.arange(MIB)).all())
expandable = bool(segments) and all(each["is_expandable"] for each in segments)
inside = any(each["address"] <= x.data_ptr() < each["address"] + each["total_size"] for each in segments)
del x, pool
gc.collect()
torch.cuda.empty_cache()
tell([right, expandable, inside, counter("reserved_bytes") - before])
"""
    assert ask(script, device, CONF) == [True, True, True, 0]


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.covers("test_cuda::TestMemPool::test_reserved_bytes_by_private_pools_expandable")
@pytest.mark.own_process
def test_expandable_segments_memory_stats_report_reserved_bytes_by_pool_id(device: torch.device) -> None:
    """`memory_stats` reports the reserved bytes per pool id, also with expandable segments."""
    script = """
pools = [torch.cuda.MemPool() for _ in range(2)]
kept = []
for pool, size in zip(pools, (30, 70)):
    with torch.cuda.use_mem_pool(pool):
        kept.append(new(size * MIB))
statistics = torch.cuda.memory_stats(0)
tell([[statistics["reserved_bytes_by_private_pools.%d_%d.all.current" % pool.id] for pool in pools],
      [sum(each["total_size"] for each in pool.snapshot()) for pool in pools]])
"""
    reported, segments = ask(script, device, CONF)

    assert reported == segments
    assert reported[0] >= 30 << 20
    assert reported[1] >= 70 << 20
    assert reported[0] != reported[1]
