"""Registration of existing host memory with CUDA, and the related settings of the pinned allocator."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from .. import children

pytestmark = pytest.mark.requires(device="cuda")

PINNING = """
import sys, threading, torch
def pin():
    for size in (1 << 5, 1 << 21, 1 << 24):
        x = torch.arange(size, dtype=torch.float32)
        pinned = x.pin_memory()
        assert not x.is_pinned()
        assert pinned.is_pinned()
        assert torch.equal(pinned, x)
        assert torch.equal(pinned.to("cuda", non_blocking=True).cpu(), x)
"""

STATISTICS = """
import torch
def blocks_made(sizes):
    before = torch.cuda.host_memory_stats()["num_host_alloc"]
    for size in sizes:
        torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return torch.cuda.host_memory_stats()["num_host_alloc"] - before
MIB = 1 << 20
torch.ones(1, device="cuda")
"""


@pytest.mark.covers("test_cuda::TestCuda::test_cudart_register")
def test_cudahostregister_pins_memory_until_cudahostunregister() -> None:
    """Host memory registered with the runtime is pinned until it is unregistered, and its values are unchanged."""
    runtime: Any = torch.cuda.cudart()
    x = torch.arange(5000, dtype=torch.int32)
    assert not x.is_pinned()

    assert int(runtime.cudaHostRegister(x.data_ptr(), x.numel() * x.element_size(), 0)) == 0
    try:
        pinned = x.is_pinned()
        there = x.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
    finally:
        assert int(runtime.cudaHostUnregister(x.data_ptr())) == 0

    assert pinned
    assert not x.is_pinned()
    assert torch.equal(there.cpu(), torch.arange(5000, dtype=torch.int32))
    assert torch.equal(x, torch.arange(5000, dtype=torch.int32))


@pytest.mark.covers("test_cuda::TestCuda::test_cudart_register")
def test_cudahostregister_twice_is_refused_with_712() -> None:
    """Registering memory twice returns error 712 (already registered), and unregistering other memory returns 713.

    Neither affects the device.
    """
    runtime: Any = torch.cuda.cudart()
    x = torch.zeros(4096, dtype=torch.uint8)

    assert int(runtime.cudaHostRegister(x.data_ptr(), x.numel(), 0)) == 0
    try:
        again = int(runtime.cudaHostRegister(x.data_ptr(), x.numel(), 0))
    finally:
        assert int(runtime.cudaHostUnregister(x.data_ptr())) == 0
    missing = int(runtime.cudaHostUnregister(x.data_ptr()))

    assert (again, missing) == (712, 713)
    try:  # the runtime keeps the last error, and torch reads it once after a launch
        torch.zeros(1, device="cuda")
    except RuntimeError as error:
        assert re.search(r"registered|mapped", str(error))  # noqa: PT017
    there = torch.arange(4096, device="cuda") * 2
    assert torch.equal(there.cpu(), torch.arange(4096) * 2)
    assert torch.equal(x.pin_memory().to("cuda", non_blocking=True).cpu(), x)


@pytest.mark.timeout(270)
@pytest.mark.covers("test_cuda::TestCuda::test_pinned_memory_with_cudaregister")
@pytest.mark.own_process
def test_pinned_use_cuda_host_register_pins(device: torch.device) -> None:
    """With `pinned_use_cuda_host_register`, the allocator pins by registering plain memory, in several threads.

    Small and large blocks are pinned and keep their values. A block can be unregistered and registered again, which
    fails without the setting.
    """
    script = f"""{PINNING}
pin()
runtime, x = torch.cuda.cudart(), torch.arange(1 << 20).pin_memory()
undone = int(runtime.cudaHostUnregister(x.data_ptr()))
if undone == 0:
    assert not x.is_pinned()
    assert int(runtime.cudaHostRegister(x.data_ptr(), x.nbytes, 0)) == 0
print("registered", undone == 0, torch.equal(x, torch.arange(1 << 20)))
"""
    reported = [
        children.fork(script, device, settings=text).lines()[-1]
        for text in ("pinned_use_cuda_host_register:True,pinned_num_register_threads:8", "")
    ]

    assert reported == ["registered True True", "registered False True"]


@pytest.mark.timeout(150)
@pytest.mark.covers("test_cuda::TestCuda::test_pinned_memory_with_cudaregister_multithread")
def test_pinned_use_cuda_host_register_from_several_threads(device: torch.device) -> None:
    """With `pinned_use_cuda_host_register`, four concurrent threads get pinned blocks."""
    script = f"""{PINNING}
failures = []
def guarded():
    try:
        pin()
    except BaseException as error:
        failures.append(repr(error))
threads = [threading.Thread(target=guarded) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("failures", failures)
"""
    ended = children.fork(script, device, settings="pinned_use_cuda_host_register:True,pinned_num_register_threads:8")

    assert ended.lines()[-1] == "failures []"


@pytest.mark.timeout(150)
@pytest.mark.covers("test_cuda::TestCuda::test_pinned_memory_use_background_threads")
@pytest.mark.own_process
def test_pinned_use_background_threads_frees_blocks(device: torch.device) -> None:
    """With `pinned_use_background_threads`, a block is reused after its copy completes.

    The block was freed behind a delayed copy, whose values are correct.
    """
    script = """
import time, torch
x = torch.full((1 << 20,), 7, dtype=torch.uint8).pin_memory()
address = x.data_ptr()
there = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
torch.cuda._sleep(50_000_000)
there.copy_(x, non_blocking=True)
del x
torch.cuda.synchronize()
found = False
deadline = time.monotonic() + 30
kept = []
while not found and time.monotonic() < deadline:
    kept.append(torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True))
    found = kept[-1].data_ptr() == address
    time.sleep(0.05)
print(found, bool((there == 7).all()))
"""

    ended = children.fork(script, device, settings="pinned_use_background_threads:True")

    assert ended.lines() == ["True True"]


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.timeout(150)
@pytest.mark.covers("test_cuda::TestCachingHostAllocatorConfig::test_max_cached_size")
@pytest.mark.own_process
def test_pinned_max_cached_size_mb_blocks_above_are_not_cached(device: torch.device) -> None:
    """A block above `pinned_max_cached_size_mb` is freed and allocated again for the next request.

    A smaller one is cached.
    """
    script = f"{STATISTICS}print(blocks_made([64 * MIB] * 3), blocks_made([MIB] * 3))"

    assert children.fork(script, device, settings="pinned_max_cached_size_mb:32").lines() == ["3 1"]


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.timeout(150)
@pytest.mark.covers("test_cuda::TestCachingHostAllocatorConfig::test_max_round_threshold")
def test_pinned_max_round_threshold_mb_blocks_above_are_not_rounded_up(device: torch.device) -> None:
    """A request above `pinned_max_round_threshold_mb` is not rounded up to a power of two."""
    script = f"""{STATISTICS}
def owned(size):
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    x = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return torch.cuda.host_memory_stats()["allocated_bytes.current"] - before
print(owned(65 * MIB) < 128 * MIB, owned(17 * MIB) == 32 * MIB)
"""

    assert children.fork(script, device, settings="pinned_max_round_threshold_mb:32").lines() == ["True True"]


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.timeout(150)
@pytest.mark.covers(
    "test_cuda::TestCachingHostAllocatorConfig::test_both_thresholds",
    "test_cuda::TestCachingHostAllocatorConfig::test_round_threshold_larger_than_cached_size",
)
@pytest.mark.parametrize(("rounded", "cached"), [(8, 32), (64, 16)], ids=["rounds_less", "rounds_more"])
@pytest.mark.own_process
def test_pinned_max_cached_size_mb_and_round_threshold_mb_hold_together(
    device: torch.device, rounded: int, cached: int
) -> None:
    """Both limits apply independently, or raise an error together that names both."""
    script = f"{STATISTICS}print(blocks_made([80 * MIB] * 3), blocks_made([2 * MIB] * 3))"

    ended = children.fork(
        script,
        device,
        settings=f"pinned_max_round_threshold_mb:{rounded},pinned_max_cached_size_mb:{cached}",
    )

    if rounded > cached and ended.status != 0:
        assert "pinned_max_round_threshold_mb" in ended.err
        assert "pinned_max_cached_size_mb" in ended.err
    else:
        assert ended.lines() == ["3 1"]
