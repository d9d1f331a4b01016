"""Checks of the soft device through torch's generic code: streams, events, memory, errors."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.sim.softdevice import inside

MIB = 1 << 20


def soft() -> Any:
    """Return the device's module, which is untyped in torch."""
    return torch.get_device_module("soft")


def stats(device: int = 0) -> dict[str, int]:
    return dict(torch.accelerator.memory_stats(device))


# ---- streams and events ----


@inside.check(SOFT_DEVICE_COUNT="2")
def asking_wakes_nothing() -> None:
    """Must come first, since it needs a process that has not used the device."""
    assert torch.accelerator.current_accelerator() == torch.device("soft")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == soft().device_count() == 2
    assert torch.accelerator.current_device_index() == soft().current_device() == 0
    assert soft().get_device_properties(1).uuid == soft().uuid("soft:1") == "SOFT-1"
    assert soft().get_device_properties().total_memory == 1 << 30
    assert "software" in soft().get_device_name()
    torch.manual_seed(3)
    soft().manual_seed_all(4)
    soft().set_rng_state(soft().get_rng_state())
    torch.Generator("soft:1").manual_seed(1)
    soft().synchronize(1)
    assert soft().failure(0) is None
    assert dict(soft().memory_stats()) == {}
    assert not soft().is_current_stream_capturing()
    assert not soft().is_initialized()
    assert soft().thread_count() == 0
    torch.empty(1, device="soft:0")
    assert soft().is_initialized()
    threads = soft().thread_count()
    assert threads > 1
    torch.empty(1, device="soft:1")
    assert soft().thread_count() == threads, "they serve the streams of all devices"


@inside.check(SOFT_DEVICE_COUNT="2")
def work_runs_later_than_its_launch_and_in_order() -> None:
    stream = torch.Stream("soft")
    begin = time.monotonic()
    soft().sleep(1000, stream)
    with stream:
        values = torch.zeros(4, device="soft")
        for _ in range(3):
            values += 1
    assert not stream.query()
    stream.synchronize()
    assert time.monotonic() - begin >= 1
    assert stream.query()
    assert values.tolist() == [3.0] * 4


@inside.check(SOFT_DEVICE_COUNT="2")
def waiting_releases_the_gil() -> None:
    def seen_meanwhile(wait: Callable[[], object]) -> bool:
        """Return whether another thread ran during `wait`: with this interval, threads only release the GIL."""
        begun, go, ran = threading.Event(), threading.Event(), threading.Event()

        def other() -> None:
            begun.set()
            go.wait()
            ran.set()

        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        soft().sleep(1000)
        before = sys.getswitchinterval()
        sys.setswitchinterval(1000)
        try:
            go.set()
            wait()
            return ran.is_set()
        finally:
            sys.setswitchinterval(before)
            thread.join()

    event = torch.Event("soft")

    def record_and_wait() -> None:
        event.record()
        event.synchronize()

    assert seen_meanwhile(torch.accelerator.synchronize)
    assert seen_meanwhile(soft().synchronize)
    assert seen_meanwhile(torch.accelerator.current_stream().synchronize)
    assert seen_meanwhile(record_and_wait)


@inside.check(SOFT_DEVICE_COUNT="2")
def streams_come_from_two_pools_in_turns() -> None:
    normal = {torch.Stream("soft").stream_id for _ in range(64)}
    high = {torch.Stream("soft", priority=-1).stream_id for _ in range(64)}
    assert normal == set(range(1, 33))
    assert high == set(range(33, 65))
    assert soft().default_stream().stream_id == 0
    assert soft().default_stream(1).device == torch.device("soft:1")
    own = soft().Stream(1, priority=-1)
    assert isinstance(own, soft().Stream)
    assert own.device == torch.device("soft:1")
    assert own.stream_id >= 33


@inside.check(SOFT_DEVICE_COUNT="2")
def current_streams_are_each_threads_own() -> None:
    stream = torch.Stream("soft")
    seen = []
    with stream:
        assert torch.accelerator.current_stream() == soft().current_stream() == stream
        other = threading.Thread(target=lambda: seen.append(torch.accelerator.current_stream().stream_id))
        other.start()
        other.join()
    assert seen == [0]
    assert torch.accelerator.current_stream().stream_id == 0
    with soft().stream(stream), soft().stream(None):
        assert soft().current_stream() == stream
    soft().set_stream(stream)
    assert soft().current_stream() == stream
    soft().set_stream(soft().default_stream())
    away = torch.Stream("soft:1")
    with away:
        assert torch.accelerator.current_device_index() == 1
    assert torch.accelerator.current_device_index() == 0


@inside.check(SOFT_DEVICE_COUNT="2")
def devices_are_switched_and_switched_back() -> None:
    with soft().device(1), soft().device(None):
        assert soft().current_device() == 1
        assert torch.empty(1, device="soft").device == torch.device("soft:1")
    with torch.accelerator.device_index(1):
        assert torch.accelerator.current_device_index() == 1
    soft().set_device("soft:1")
    assert torch.accelerator.current_device_index() == 1
    torch.accelerator.set_device_index(0)
    assert soft().current_device() == 0
    with pytest.raises(ValueError, match="there is no device soft:2: this process sees 2 devices"):
        soft().set_device(2)
    with pytest.raises(RuntimeError, match="device 5"):
        torch.accelerator.set_device_index(5)
    with pytest.raises(ValueError, match="expected a soft device, got 'cpu'"):
        soft().device("cpu")
    with pytest.raises(RuntimeError, match="device 7"):
        torch.empty(1, device="soft:7")


@inside.check(SOFT_DEVICE_COUNT="2")
def events_order_streams_across_devices() -> None:
    first, second = torch.Stream("soft:0"), torch.Stream("soft:1")
    source = torch.zeros(8, device="soft:0")
    target = torch.zeros(8, device="soft:1")
    torch.accelerator.synchronize(0)
    torch.accelerator.synchronize(1)
    with first:
        soft().sleep(100)
        source += 5
        event = torch.Event("soft")
        event.record(first)
    event.wait(second)
    with second:
        target.copy_(source)
    second.synchronize()
    assert event.query()
    assert target.tolist() == [5.0] * 8


@inside.check(SOFT_DEVICE_COUNT="2")
def events_tell_time_and_can_be_recorded_again() -> None:
    begin, end = torch.Event("soft", enable_timing=True), soft().Event(enable_timing=True)
    assert begin.query()  # an event that was never recorded does not block
    begin.synchronize()
    torch.accelerator.synchronize()
    clock = time.monotonic()
    begin.record()
    soft().sleep(500)
    end.record()
    assert not end.query()
    end.synchronize()
    assert 500 <= begin.elapsed_time(end) <= 1000 * (time.monotonic() - clock)
    begin.record()
    begin.synchronize()
    assert begin.elapsed_time(end) < 0
    untimed = torch.Event("soft")
    untimed.record()
    untimed.synchronize()
    with pytest.raises((RuntimeError, ValueError), match="timing"):
        untimed.elapsed_time(end)
    with pytest.raises((RuntimeError, ValueError), match="record"):
        torch.Event("soft", enable_timing=True).elapsed_time(end)
    stream = torch.Stream("soft")
    assert stream.record_event().query() in (True, False)
    stream.wait_event(begin)
    stream.wait_stream(torch.accelerator.current_stream())
    torch.accelerator.synchronize()
    assert isinstance(begin, soft().Event)


@inside.check(SOFT_DEVICE_COUNT="2")
def the_device_says_which_types_it_has() -> None:
    if not hasattr(torch.accelerator, "get_device_capability"):
        return
    assert torch.accelerator.get_device_capability(0)["supported_dtypes"] >= {torch.float64, torch.bfloat16, torch.bool}
    assert soft().get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    assert soft().is_bf16_supported()
    assert not soft().is_bf16_supported(including_emulation=False)


# ---- memory ----


@inside.check(SOFT_DEVICE_COUNT="2")
def statistics_have_torchs_names_and_add_up() -> None:
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    before = torch.accelerator.memory_allocated()
    reserved = torch.accelerator.memory_reserved()
    held = torch.empty(1000, device="soft")
    large = torch.empty(3 * MIB, dtype=torch.uint8, device="soft")
    now = stats()
    assert now["allocated_bytes.all.current"] - before == 4096 + 3 * MIB
    assert now["requested_bytes.all.allocated"] == 4000 + 3 * MIB
    assert now["allocation.large_pool.allocated"] == 1
    assert now["allocation.all.allocated"] == 2
    assert now["segment.all.current"] >= 1
    assert now["reserved_bytes.all.current"] == torch.accelerator.memory_reserved() >= reserved + 3 * MIB
    assert set(now) >= {"num_ooms", "num_alloc_retries", "num_device_alloc", "active.all.peak", "max_split_size"}
    del large
    assert torch.accelerator.memory_allocated() == soft().memory_allocated() == before + 4096
    assert torch.accelerator.max_memory_allocated() == before + 4096 + 3 * MIB
    soft().reset_peak_memory_stats()
    assert soft().max_memory_allocated() == before + 4096
    assert stats()["allocated_bytes.all.freed"] == 3 * MIB
    torch.accelerator.empty_cache()
    assert soft().memory_reserved() == reserved + (2 * MIB if reserved == 0 else 0) or reserved > 0
    free, total = torch.accelerator.get_memory_info(0)
    assert (free, total) == soft().mem_get_info(0)
    assert total == 1 << 30
    assert free == total - soft().memory_reserved()
    del held


@inside.check(SOFT_DEVICE_COUNT="2")
def nothing_is_asked_for_no_bytes() -> None:
    before = stats()
    empty = torch.empty(0, device="soft:1")
    assert empty.data_ptr() == 0
    assert empty.untyped_storage().nbytes() == 0
    assert stats() == before
    empty.resize_(5).fill_(2)
    assert empty.tolist() == [2.0] * 5


@inside.check(SOFT_DEVICE_COUNT="2")
def storages_resize_and_keep_what_they_hold() -> None:
    values = torch.arange(6, dtype=torch.float32, device="soft")
    storage = values.untyped_storage()
    storage.resize_(40)
    assert storage.nbytes() == 40
    assert storage.device == torch.device("soft:0")
    assert values.tolist() == [0, 1, 2, 3, 4, 5]
    storage.resize_(8)
    assert values[:2].tolist() == [0, 1]
    storage.resize_(0)
    assert storage.nbytes() == 0


@inside.check(SOFT_DEVICE_COUNT="2")
def memory_is_reused_in_its_streams_order_only() -> None:
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    stream = torch.Stream("soft")
    first = torch.empty(5 * MIB, dtype=torch.uint8, device="soft")
    address = first.data_ptr()
    del first
    with stream:
        other = torch.empty(5 * MIB, dtype=torch.uint8, device="soft")
    assert other.data_ptr() != address
    again = torch.empty(5 * MIB, dtype=torch.uint8, device="soft")
    assert again.data_ptr() == address
    soft().sleep(150, stream)
    again.record_stream(stream)
    del again
    held = torch.empty(5 * MIB, dtype=torch.uint8, device="soft")
    assert held.data_ptr() != address
    stream.synchronize()
    reused = torch.empty(5 * MIB, dtype=torch.uint8, device="soft")
    assert reused.data_ptr() == address


@inside.check(SOFT_DEVICE_COUNT="2")
def snapshots_list_segments_and_blocks() -> None:
    held = torch.empty(100, device="soft:1")
    mine = [segment for segment in soft().memory_snapshot() if segment["device"] == 1]
    blocks = [block for segment in mine for block in segment["blocks"]]
    found = [block for block in blocks if block["address"] == held.data_ptr()]
    assert [(block["state"], block["size"], block["requested_size"]) for block in found] == [
        ("active_allocated", 512, 400)
    ]
    for segment in mine:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert segment["segment_type"] in ("small", "large")
    assert sum(segment["total_size"] for segment in mine) == torch.accelerator.memory_reserved(1)


@inside.check(SOFT_DEVICE_COUNT="1", SOFT_DEVICE_MEMORY="64MiB")
def memory_ends_in_an_out_of_memory_error() -> None:
    cached = torch.empty(40 * MIB, dtype=torch.uint8, device="soft")
    del cached
    held = torch.empty(50 * MIB, dtype=torch.uint8, device="soft")  # cached memory is released for it
    before = stats()
    assert before["num_alloc_retries"] == 1
    with pytest.raises(torch.OutOfMemoryError, match=r"(?i)out of memory") as caught:
        torch.empty(30 * MIB, dtype=torch.uint8, device="soft")
    assert "30.00 MiB" in str(caught.value)
    assert stats()["num_ooms"] == before["num_ooms"] + 1
    assert torch.accelerator.memory_allocated() == 50 * MIB
    del held
    del caught
    assert torch.zeros(30 * MIB, dtype=torch.uint8, device="soft").sum().item() == 0
    assert soft().failure() is None


@inside.check(SOFT_DEVICE_COUNT="2")
def pinned_memory_is_known_and_counted() -> None:
    gc.collect()
    soft().reset_accumulated_host_memory_stats()
    soft().reset_peak_host_memory_stats()
    before = soft().host_memory_stats()
    pinned = torch.arange(1000, dtype=torch.float32).pin_memory()
    assert pinned.is_pinned()
    assert pinned.device.type == "cpu"
    assert not torch.zeros(3).is_pinned()
    assert torch.empty(5, pin_memory=True).is_pinned()
    assert pinned.tolist() == list(range(1000))
    now = soft().host_memory_stats()
    assert now["active_bytes.current"] - before["active_bytes.current"] >= 4096
    assert now["active_requests.allocated"] == 2
    there = pinned.to("soft", non_blocking=True)
    back = torch.empty(1000, pin_memory=True)
    back.copy_(there, non_blocking=True)
    torch.accelerator.synchronize()
    assert torch.equal(back, pinned)
    del pinned, back
    gc.collect()
    assert soft().host_memory_stats()["active_requests.current"] == before["active_requests.current"]
    if hasattr(torch.accelerator, "empty_host_cache"):
        torch.accelerator.empty_host_cache()
        assert soft().host_memory_stats()["num_host_free"] > before["num_host_free"]


# ---- errors ----


@inside.check(alone=True)
def a_failed_kernel_poisons_the_process() -> None:
    values = torch.arange(4, dtype=torch.float32, device="soft")
    torch.accelerator.synchronize()
    torch.index_select(values, 0, torch.tensor([9], device="soft"))
    with pytest.raises(torch.AcceleratorError) as caught:
        torch.accelerator.synchronize()
    assert caught.value.error_code == 710  # type: ignore[attr-defined]
    for later in (torch.accelerator.synchronize, lambda: values.add_(1), lambda: values.cpu(), values.tolist):
        with pytest.raises(torch.AcceleratorError):
            later()
    assert soft().failure() is not None
    assert soft().failure(1) is None
    assert torch.ones(2, device="soft:1").tolist() == [1.0, 1.0]  # another device still works


@inside.check(alone=True)
def a_forked_child_is_reported() -> None:
    assert not soft()._is_in_bad_fork()
    values = torch.ones(4, device="soft")
    torch.accelerator.synchronize()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        reported = []
        for use in (
            torch.accelerator.synchronize,
            lambda: values.add_(1),
            values.tolist,
            lambda: torch.ones(1, device="soft"),
        ):
            try:
                use()
                reported.append("nothing")
            except RuntimeError as error:
                reported.append("fork" if "fork" in str(error) else str(error))
        torch.manual_seed(1)  # checks first, and does not use the device
        reported.append(str(soft()._is_in_bad_fork()))
        os.write(writing, repr(reported).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read().decode() == repr(["fork"] * 4 + ["True"])
    assert os.waitpid(child, 0)[1] == 0
    assert values.tolist() == [1.0] * 4


@inside.check(alone=True)
def a_child_forked_before_use_works() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.ones(4, device="soft").sum().item() == 4 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.ones(4, device="soft").sum().item() == 4


@inside.check(alone=True)
def what_is_queued_does_not_hold_up_the_end() -> None:
    soft().sleep(600_000)
    torch.ones(4, device="soft").add_(1)


@inside.check(alone=True)
def faults_are_injected_and_counted() -> None:
    assert soft().faults_struck() == {}
    soft().inject("statistics_drift")
    before = torch.accelerator.memory_allocated()
    held = torch.ones(100, device="soft")
    del held
    assert torch.accelerator.memory_allocated() == before + 512
    assert soft().times_struck("statistics_drift") == 1
    soft().inject("")
    with pytest.raises(ValueError, match="no_such_fault"):
        soft().inject("no_such_fault")
    soft().inject("autocast_ignores_dtype")
    with torch.autocast("soft"):
        assert torch.mm(torch.ones(2, 2, device="soft"), torch.ones(2, 2, device="soft")).dtype == torch.float32
    assert soft().times_struck("autocast_ignores_dtype") == 1
