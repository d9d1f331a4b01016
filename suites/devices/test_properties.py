"""What a device says of itself: the same by every way of asking, and of a piece with what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.requires(accelerator=True)


def module(device: torch.device) -> Any:
    """The module of the device's type, such as torch.cuda."""
    return torch.get_device_module(device)


#: Ways to name the device that a case was given, which is the current one.
WAYS: dict[str, Callable[[torch.device], tuple[object, ...]]] = {
    "nothing": lambda _: (),
    "none": lambda _: (None,),
    "index": lambda device: (device.index,),
    "text": lambda device: (str(device),),
    "type": lambda device: (device.type,),
    "device": lambda device: (device,),
}
WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_get_device_name")
@WAY
def test_get_device_name_is_the_same_by_every_way(
    device: torch.device, way: Callable[[torch.device], tuple[object, ...]]
) -> None:
    """Contract: the device's name is a text that is not blank, and the same however the current device is named."""
    name = module(device).get_device_name(*way(device))

    assert name == module(device).get_device_name(device.index)
    assert name.strip()


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_get_device_properties", "test_cuda::TestCuda::test_uuid")
@WAY
def test_get_device_properties_are_the_same_by_every_way(
    device: torch.device, way: Callable[[torch.device], tuple[object, ...]]
) -> None:
    """Contract: properties describe the same device however it is named: name, UUID and memory agree."""
    got, expected = module(device).get_device_properties(*way(device)), module(device).get_device_properties(device)

    assert (got.name, str(got.uuid), got.total_memory) == (expected.name, str(expected.uuid), expected.total_memory)


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_get_device_name")
def test_get_device_name_is_that_of_the_properties(device: torch.device) -> None:
    """Contract: `get_device_name` and `get_device_properties` give one name."""
    assert module(device).get_device_name(device) == module(device).get_device_properties(device).name


def test_mem_get_info_total_is_that_of_the_properties(device: torch.device) -> None:
    """Contract: the total of `mem_get_info`, and of `torch.accelerator.get_memory_info`, is the device's total memory,
    within what the driver keeps for itself (a tenth at most), and what is free is no more than it."""
    total = module(device).get_device_properties(device).total_memory
    free, seen = module(device).mem_get_info(device)
    free_again, seen_again = torch.accelerator.get_memory_info(device)

    assert seen == seen_again
    assert 0.9 * total <= seen <= 1.1 * total
    assert 0 < free <= seen
    assert 0 < free_again <= seen


def test_get_memory_info_free_falls_by_what_is_reserved(device: torch.device) -> None:
    """Contract: free memory falls by at least what a process newly reserves, and comes back when the cache is emptied.

    Neighbours on the device may move it too: it is asked that one of some trials shows both.
    """
    size = 64 << 20
    torch.accelerator.synchronize(device)

    def shown() -> bool:
        torch.accelerator.empty_cache()
        before = torch.accelerator.get_memory_info(device)[0]
        block = torch.empty(size, dtype=torch.uint8, device=device)
        during = torch.accelerator.get_memory_info(device)[0]
        del block
        torch.accelerator.empty_cache()
        after = torch.accelerator.get_memory_info(device)[0]
        return before - during >= size and after - during >= size

    assert any(shown() for _ in range(5))


def test_device_count_agrees_and_the_next_index_is_an_error(device: torch.device) -> None:
    """Contract: the accelerator and the device's module count the same devices, all of which have properties, and the
    next number has none: an error, of whatever class, that speaks of the device and is not a crash."""
    count = torch.accelerator.device_count()

    assert count == module(device).device_count()
    assert module(device).is_available()
    for index in range(count):
        assert module(device).get_device_properties(index).total_memory > 0
    with pytest.raises((RuntimeError, AssertionError, ValueError), match=r"(?i)device"):
        module(device).get_device_properties(count)


def test_get_device_properties_uuid_is_unique(device: torch.device) -> None:
    """Contract: no two devices of a process have the same UUID, and none has a blank one."""
    uuids = [str(module(device).get_device_properties(index).uuid) for index in range(torch.accelerator.device_count())]

    assert len(set(uuids)) == len(uuids)
    assert all(uuid.strip("0-") for uuid in uuids)


def test_get_device_properties_changes_neither_current_device_nor_stream(device: torch.device) -> None:
    """Contract: properties are asked for without side effects: current device and stream stay."""
    before = torch.accelerator.current_device_index(), torch.accelerator.current_stream(device)

    for index in range(torch.accelerator.device_count()):
        module(device).get_device_properties(index)
        module(device).mem_get_info(index)

    assert (torch.accelerator.current_device_index(), torch.accelerator.current_stream(device)) == before
