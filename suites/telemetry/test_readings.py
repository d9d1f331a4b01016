"""Readings of the driver through torch: there, plausible, and of the device that was asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ._torch_private import amdsmi_handle, nvml_handle, raw_amdsmi

nvml = pytest.mark.requires(device="cuda", nvml=True)

#: Bounds that no machine in working order leaves, and that a wrong unit or register does.
PLAUSIBLE: dict[str, tuple[Callable[[torch.device], int], int, int]] = {
    "temperature": (torch.cuda.temperature, 1, 120),  # degrees Celsius
    "power_draw": (torch.cuda.power_draw, 1_000, 3_000_000),  # milliwatts
    "clock_rate": (torch.cuda.clock_rate, 50, 5_000),  # megahertz
    "utilization": (torch.cuda.utilization, 0, 100),  # per cent
    "memory_usage": (torch.cuda.memory_usage, 0, 100),  # per cent of the time
}


@nvml
@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_nvml_get_handler")
def test_nvml_handle_names_the_device(device: torch.device) -> None:
    """Contract: NVML knows the device that torch uses, and names it as torch does."""
    import pynvml

    name = pynvml.nvmlDeviceGetName(nvml_handle(device))

    assert torch.cuda.get_device_name(device) == (name.decode() if isinstance(name, bytes) else name)


@nvml
@pytest.mark.requires(mig=False)
@pytest.mark.covers(
    "test_cuda::TestCudaMallocAsync::test_temperature",
    "test_cuda::TestCudaMallocAsync::test_power_draw",
    "test_cuda::TestCudaMallocAsync::test_clock_speed",
)
@pytest.mark.parametrize(("read", "least", "most"), PLAUSIBLE.values(), ids=PLAUSIBLE.keys())
def test_nvml_readings_are_plausible(
    device: torch.device, read: Callable[[torch.device], int], least: int, most: int
) -> None:
    """Contract: a reading is a whole number within what hardware can be, each of twenty times, however the device is
    named, and asking leaves the current device as it was."""
    before = torch.cuda.current_device()

    for _ in range(10):
        for value in (read(device), read(device.index)):
            assert isinstance(value, int)
            assert least <= value <= most

    assert torch.cuda.current_device() == before


@nvml
@pytest.mark.requires(mig=False)
@pytest.mark.covers("test_cuda::TestCudaAllocator::test_device_memory_used")
def test_device_memory_used_grows_with_what_is_taken(device: torch.device) -> None:
    """Contract: `device_memory_used` counts bytes of the whole device: it grows by about as much as a large tensor
    newly takes, and falls when it is given back. Neighbours may move it: one of some trials is to show both."""
    size = 512 << 20
    torch.zeros(1, device=device)

    def shown() -> bool:
        torch.cuda.empty_cache()
        torch.cuda.synchronize(device)
        before = torch.cuda.device_memory_used(device)
        block = torch.empty(size, dtype=torch.uint8, device=device)
        during = torch.cuda.device_memory_used(device)
        del block
        torch.cuda.empty_cache()
        after = torch.cuda.device_memory_used(device)
        return 0.95 * size <= during - before <= 1.1 * size and 0.95 * size <= during - after <= 1.1 * size

    assert any(shown() for _ in range(5))


@pytest.mark.requires(device="cuda", rocm=True)
@pytest.mark.covers(
    "test_cuda::TestCudaAllocator::test_raw_amdsmi_device_count",
    "test_cuda::TestCudaAllocator::test_raw_amdsmi_device_uuids",
)
def test_amdsmi_counts_and_names_the_devices(device: torch.device) -> None:
    """Contract: AMD's library counts at least the devices that torch sees, names each by an id of its own, and has a
    handle for the one in use."""
    count, uuids = raw_amdsmi("device_count"), raw_amdsmi("device_uuid")

    assert count >= torch.cuda.device_count()
    assert len(set(uuids)) == count
    assert amdsmi_handle(device) is not None


READINGS = ["temperature", "power_draw", "clock_rate", "utilization", "memory_usage", "device_memory_used"]


@pytest.mark.requires(nvml=False)
@pytest.mark.parametrize("name", READINGS)
def test_nvml_readings_without_the_library_are_refused(name: str) -> None:
    """Contract: where NVML does not answer there is no reading: an error that names the library or the driver, never a
    number."""
    read = getattr(torch.cuda, name)

    with pytest.raises(Exception, match=r"(?i)nvml|nvidia|driver|amdsmi"):
        read(0)
