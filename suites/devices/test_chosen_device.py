"""Functions with a device argument act on that device, and do not change the current device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.requires(accelerator=True, devices=2)
MIB = 1 << 20

#: A device as an index, with its type, and as text.
WAYS: dict[str, Callable[[torch.device], Any]] = {
    "index": lambda device: device.index,
    "device": lambda device: device,
    "text": str,
}
WAY = pytest.mark.parametrize("way", WAYS)
CUDA = pytest.mark.requires(device="cuda")


def pairs(device: torch.device) -> Iterator[tuple[torch.device, torch.device]]:
    """Yield each current device with each chosen one."""
    both = [torch.device(device.type, index) for index in (0, 1)]
    for current, chosen in product(both, both):
        with torch.accelerator.device_index(current.index):
            yield current, chosen
            assert torch.accelerator.current_device_index() == current.index


MEMORY = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


@WAY
@pytest.mark.parametrize("api", ["accelerator", "device_module"])
def test_memory_functions_tell_of_the_device_they_are_given(device: torch.device, api: str, way: str) -> None:
    """Each memory function reports the chosen device, and without an argument the current one."""
    module = torch.accelerator if api == "accelerator" else torch.get_device_module(device)
    names = [name for name in MEMORY if hasattr(module, name)]
    held = [torch.empty((index + 1) * 32 * MIB, dtype=torch.uint8, device=f"{device.type}:{index}") for index in (0, 1)]
    torch.accelerator.synchronize()
    for name in names:
        read = getattr(module, name)
        by_device = [read(0), read(1)]
        assert by_device[0] != by_device[1], f"{name}: the devices do not differ"
        for current, chosen in pairs(device):
            assert read(WAYS[way](chosen)) == by_device[chosen.index], name
            assert read() == by_device[current.index], name
            stats = module.memory_stats(WAYS[way](chosen))
            assert stats["allocated_bytes.all.current"] == module.memory_allocated(chosen)
    assert names
    del held


@WAY
def test_reset_peak_memory_stats_resets_the_device_it_is_given(device: torch.device, way: str) -> None:
    """Only the peak of the chosen device is reset; without an argument, that of the current one."""
    kept = [torch.empty(1, device=f"{device.type}:{index}") for index in (0, 1)]
    for given in (True, False):
        for current, chosen in pairs(device):
            for each in kept:
                torch.empty(8 * MIB, dtype=torch.uint8, device=each.device)
            before = [torch.accelerator.max_memory_allocated(index) for index in (0, 1)]
            if given:
                torch.accelerator.reset_peak_memory_stats(WAYS[way](chosen))
            else:
                torch.accelerator.reset_peak_memory_stats()
            after = [torch.accelerator.max_memory_allocated(index) for index in (0, 1)]
            reset = chosen.index if given else current.index
            assert after[reset] < before[reset]
            assert after[1 - reset] == before[1 - reset]


@WAY
@pytest.mark.parametrize("api", ["accelerator", "device_module"])
def test_current_stream_is_that_of_the_device_it_is_given(device: torch.device, api: str, way: str) -> None:
    """`current_stream` returns the stream of the chosen device, and without an argument that of the current one."""
    module = torch.accelerator if api == "accelerator" else torch.get_device_module(device)
    if not hasattr(module, "current_stream"):
        pytest.skip(f"{module.__name__} has no current_stream")
    streams = [torch.Stream(torch.device(device.type, index)) for index in (0, 1)]
    before = [torch.accelerator.current_stream(index) for index in (0, 1)]
    index = torch.accelerator.current_device_index()
    try:
        for stream in streams:
            torch.accelerator.set_stream(stream)
        for current, chosen in pairs(device):
            found = module.current_stream(WAYS[way](chosen))
            assert (found.device, found.stream_id) == (chosen, streams[chosen.index].stream_id)
            assert module.current_stream().stream_id == streams[current.index].stream_id
    finally:
        for stream in before:
            torch.accelerator.set_stream(stream)
        torch.accelerator.set_device_index(index)


@WAY
def test_stream_is_made_on_the_device_it_is_given(device: torch.device, way: str) -> None:
    """A new stream is on the chosen device, and without an argument on the current one."""
    for current, chosen in pairs(device):
        given = WAYS[way](chosen)
        assert torch.Stream(given).device == chosen
        assert torch.Stream().device == current


@WAY
def test_tensors_are_made_and_moved_to_the_device_they_are_given(device: torch.device, way: str) -> None:
    """Factories and copies use the chosen device. A type without an index means the current device."""
    host = torch.arange(4.0)
    for current, chosen in pairs(device):
        given = WAYS[way](chosen)
        like = torch.ones(2, device=chosen)
        made = [
            torch.zeros(2, device=given),
            host.to(given),
            torch.empty_like(like),
            like.new_ones(3),
            torch.rand(2, device=given),
        ]
        assert {tensor.device for tensor in made} == {chosen}
        assert host.to(given).tolist() == [0, 1, 2, 3]
        assert torch.zeros(2, device=device.type).device == current


@WAY
def test_rng_state_is_that_of_the_device_it_is_given(device: torch.device, way: str) -> None:
    """`get_rng_state` and `set_rng_state` affect the chosen device; the numbers of the other device do not change."""
    module = torch.get_device_module(device)
    if not hasattr(module, "get_rng_state"):
        pytest.skip(f"{module.__name__} has no get_rng_state")
    for _, chosen in pairs(device):
        other = torch.device(device.type, 1 - chosen.index)
        torch.manual_seed(5)
        first = module.get_rng_state(WAYS[way](chosen))
        wanted = torch.rand(4, device=chosen).tolist()
        beside = module.get_rng_state(other)
        module.set_rng_state(first, WAYS[way](chosen))
        assert torch.equal(module.get_rng_state(other), beside)
        assert torch.rand(4, device=chosen).tolist() == wanted
        torch.rand(4, device=chosen)
        assert torch.equal(module.get_rng_state(other), beside)


# ---- CUDA ----


@CUDA
def test_device_of_selects_the_device_of_a_tensor_and_nothing_for_a_host_tensor(device: torch.device) -> None:
    """`torch.cuda.device_of` selects the device of a tensor or storage in the block; a host tensor has no effect."""
    for current, chosen in pairs(device):
        tensor = torch.ones(2, device=chosen)
        for each in (tensor, tensor.untyped_storage()):
            with torch.cuda.device_of(each):
                assert torch.cuda.current_device() == chosen.index
                with torch.cuda.device_of(torch.ones(2)):
                    assert torch.cuda.current_device() == chosen.index
            assert torch.cuda.current_device() == current.index
        with torch.cuda.device_of(torch.ones(2)):
            assert torch.cuda.current_device() == current.index
            torch.cuda.set_device(1 - current.index)
        torch.cuda.set_device(current.index)


@CUDA
@WAY
def test_cuda_default_stream_and_properties_are_of_the_device_they_are_given(device: torch.device, way: str) -> None:
    """`default_stream`, `get_device_properties`, `mem_get_info` and the like report the chosen device."""
    for current, chosen in pairs(device):
        given = WAYS[way](chosen)
        assert torch.cuda.default_stream(given).device == chosen
        assert torch.cuda.default_stream().device == current
        assert torch.cuda.Stream(given).device == chosen
        assert torch.cuda.get_device_properties(given).uuid == torch.cuda.get_device_properties(chosen.index).uuid
    assert torch.cuda.get_device_properties(0).uuid != torch.cuda.get_device_properties(1).uuid


@CUDA
@WAY
def test_cuda_external_stream_is_on_the_device_it_is_given(device: torch.device, way: str) -> None:
    """`ExternalStream` and `get_stream_from_external` wrap a handle for the chosen device, also if it is not current.

    Work on the wrapped stream runs on that device.
    """
    for _, chosen in pairs(device):
        own = torch.cuda.Stream(chosen)
        given = WAYS[way](chosen)
        wrapped: list[torch.cuda.Stream] = [torch.cuda.get_stream_from_external(own.cuda_stream, given)]
        if way != "text":
            wrapped.append(torch.cuda.ExternalStream(own.cuda_stream, device=given))
        for stream in wrapped:
            assert stream.device == chosen
            assert stream.cuda_stream == own.cuda_stream
            with torch.cuda.stream(stream):
                assert torch.cuda.current_device() == chosen.index
                made = torch.arange(5, device=device.type)
                assert made.device == chosen
            stream.synchronize()
            assert own.query()
            assert made.tolist() == [0, 1, 2, 3, 4]
        with torch.cuda.device(chosen):
            assert torch.cuda.get_stream_from_external(own.cuda_stream).device == chosen


@CUDA
@WAY
def test_cuda_memory_fraction_is_that_of_the_device_it_is_given(device: torch.device, way: str) -> None:
    """`set_per_process_memory_fraction` limits the chosen device, and does not change the other one."""
    before = [torch.cuda.get_per_process_memory_fraction(index) for index in (0, 1)]
    try:
        for number, (current, chosen) in enumerate(pairs(device)):
            torch.cuda.set_per_process_memory_fraction(0.25 + number / 100)
            assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.25 + number / 100)
            assert torch.cuda.get_per_process_memory_fraction(current) == pytest.approx(0.25 + number / 100)
            other = 1 - chosen.index
            beside = torch.cuda.get_per_process_memory_fraction(other)
            torch.cuda.set_per_process_memory_fraction(0.5 + number / 10, WAYS[way](chosen))
            assert torch.cuda.get_per_process_memory_fraction(WAYS[way](chosen)) == pytest.approx(0.5 + number / 10)
            assert torch.cuda.get_per_process_memory_fraction(other) == beside
    finally:
        for index in (0, 1):
            torch.cuda.set_per_process_memory_fraction(before[index], index)
