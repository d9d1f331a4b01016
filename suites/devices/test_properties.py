"""Device properties: the same through every API, and consistent with the device's behavior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.requires(accelerator=True)
PROPERTIES = pytest.mark.requires(device_properties=True)


def module(device: torch.device) -> Any:
    """Return the module of the device's type, such as torch.cuda."""
    return torch.get_device_module(device)


#: Forms of a device argument for the case's device, which is the current one.
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
def test_get_device_name_for_every_argument_form(
    device: torch.device, way: Callable[[torch.device], tuple[object, ...]]
) -> None:
    """The device name is not blank, and the same for every form of the device argument."""
    name = module(device).get_device_name(*way(device))

    assert name == module(device).get_device_name(device.index)
    assert name.strip()


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_get_device_properties", "test_cuda::TestCuda::test_uuid")
@WAY
@PROPERTIES
def test_get_device_properties_for_every_argument_form(
    device: torch.device, way: Callable[[torch.device], tuple[object, ...]]
) -> None:
    """Name, UUID and memory in the properties are the same for every form of the device argument."""
    got, expected = module(device).get_device_properties(*way(device)), module(device).get_device_properties(device)

    assert (got.name, str(got.uuid), got.total_memory) == (expected.name, str(expected.uuid), expected.total_memory)


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_get_device_name")
@PROPERTIES
def test_get_device_name_is_that_of_the_properties(device: torch.device) -> None:
    """`get_device_name` equals the name in `get_device_properties`."""
    assert module(device).get_device_name(device) == module(device).get_device_properties(device).name


@PROPERTIES
def test_mem_get_info_total_is_that_of_the_properties(device: torch.device) -> None:
    """The total of `mem_get_info` and `get_memory_info` is the device's total memory within a tenth.

    The free memory is no larger.
    """
    total = module(device).get_device_properties(device).total_memory
    free, seen = module(device).mem_get_info(device)
    free_again, seen_again = torch.accelerator.get_memory_info(device)

    assert seen == seen_again
    assert 0.9 * total <= seen <= 1.1 * total
    assert 0 < free <= seen
    assert 0 < free_again <= seen


@pytest.mark.requires(caching_allocator=True)
def test_get_memory_info_free_falls_by_what_is_reserved(device: torch.device) -> None:
    """Free memory decreases by at least what the process reserves, and increases when the cache is emptied.

    Other processes may change it too, so one of several trials must show both.
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


@PROPERTIES
def test_device_count_agrees_and_the_next_index_is_an_error(device: torch.device) -> None:
    """Accelerator and device module agree on the device count, and the next index raises."""
    count = torch.accelerator.device_count()

    assert count == module(device).device_count()
    assert module(device).is_available()
    for index in range(count):
        assert module(device).get_device_properties(index).total_memory > 0
    with pytest.raises((RuntimeError, AssertionError, ValueError), match=r"(?i)device"):
        module(device).get_device_properties(count)


@PROPERTIES
def test_get_device_properties_uuid_is_unique(device: torch.device) -> None:
    """The UUIDs of a process's devices are unique and not blank."""
    uuids = [str(module(device).get_device_properties(index).uuid) for index in range(torch.accelerator.device_count())]

    assert len(set(uuids)) == len(uuids)
    assert all(uuid.strip("0-") for uuid in uuids)


@PROPERTIES
def test_get_device_properties_changes_neither_current_device_nor_stream(device: torch.device) -> None:
    """Querying properties does not change the current device or stream."""
    before = torch.accelerator.current_device_index(), torch.accelerator.current_stream(device)

    for index in range(torch.accelerator.device_count()):
        module(device).get_device_properties(index)
        module(device).mem_get_info(index)

    assert (torch.accelerator.current_device_index(), torch.accelerator.current_stream(device)) == before


#: Types of which a tensor can be created from the name alone, unlike quantized types.
PLAIN = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
}


@pytest.mark.requires(torch=">=2.12")
def test_accelerator_get_device_capability_has_the_types_of_the_device(device: torch.device) -> None:
    """If the backend reports its device's types, float32 is one of them, and each plain type makes tensors.

    A backend that does not know its types says so. Source:
    https://docs.pytorch.org/docs/stable/generated/torch.accelerator.get_device_capability.html.
    """
    try:
        found = torch.accelerator.get_device_capability(device)
    except RuntimeError:
        with pytest.raises(RuntimeError, match="doesn't support getting device capabilities"):
            torch.accelerator.get_device_capability(device)
        return
    assert torch.float32 in found["supported_dtypes"]
    for dtype in found["supported_dtypes"] & PLAIN:
        assert torch.empty(1, dtype=dtype, device=device).dtype is dtype
