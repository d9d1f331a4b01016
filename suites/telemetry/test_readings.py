"""Driver readings through torch: available, plausible, and of the requested device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ._torch_private import amdsmi_handle, nvml_handle, raw_amdsmi

nvml = pytest.mark.requires(device="cuda", nvml=True)

#: Bounds that every working machine satisfies, and that a wrong unit or register violates.
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
    """NVML finds torch's device and has the same name for it."""
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
    """Each of twenty readings is a plausible integer for every form of the device argument.

    The current device stays.
    """
    before = torch.cuda.current_device()

    for _ in range(10):
        for value in (read(device), read(device.index)):
            assert isinstance(value, int)
            assert least <= value <= most

    assert torch.cuda.current_device() == before


@nvml
@pytest.mark.requires(mig=False)
@pytest.mark.covers("test_cuda::TestCudaAllocator::test_device_memory_used")
def test_device_memory_used_grows_with_an_allocation(device: torch.device) -> None:
    """`device_memory_used` counts the bytes of the whole device: it increases and decreases with a large tensor.

    Other processes may change it too, so one of several trials must show both.
    """
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
    """AMD SMI counts at least torch's devices, with unique ids, and has a handle for the current one."""
    count, uuids = raw_amdsmi("device_count"), raw_amdsmi("device_uuid")

    assert count >= torch.cuda.device_count()
    assert len(set(uuids)) == count
    assert amdsmi_handle(device) is not None


READINGS = ["temperature", "power_draw", "clock_rate", "utilization", "memory_usage", "device_memory_used"]


@pytest.mark.requires(nvml=False)
@pytest.mark.parametrize("name", READINGS)
def test_nvml_readings_without_the_library_are_refused(name: str) -> None:
    """Without a working NVML, a reading raises and names the library or the driver."""
    read = getattr(torch.cuda, name)

    with pytest.raises(Exception, match=r"(?i)nvml|nvidia|driver|amdsmi"):
        read(0)
