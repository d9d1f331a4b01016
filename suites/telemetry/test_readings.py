"""Driver readings through torch: available, plausible, and of the requested device."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ._torch_private import amdsmi_handle, nvml_handle, raw_amdsmi, replace_nvml

nvml = pytest.mark.requires(device="cuda", nvml=True)

#: Bounds that every working machine satisfies, and that a wrong unit or register exceeds.
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

    The current device does not change.
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


@pytest.mark.requires(device="cuda", rocm=True, cuda=False)
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


class TwoDevices:
    """An NVML with two devices. Each reading has its own number, plus 1000 for the second device.

    Temperature and clock are those of the GPU and of its multiprocessors (NVML_TEMPERATURE_GPU, NVML_CLOCK_SM).
    """

    def __init__(self) -> None:
        self.ready = False

    def nvmlInit(self) -> None:  # noqa: N802
        self.ready = True

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        assert self.ready
        return 1000 * (0, 1)[index]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=handle + 1, memory=handle + 2)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return handle + {0: 3}[sensor]

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return handle + 4

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return handle + {0: 50, 1: 5, 2: 52}[kind]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=handle + 60, free=handle + 61, used=handle + 6)


NUMBERS = {
    "utilization": 1,
    "memory_usage": 2,
    "temperature": 3,
    "power_draw": 4,
    "clock_rate": 5,
    "device_memory_used": 6,
}
#: The readings that query the current device first.
CURRENT_TOO = ("memory_usage", "device_memory_used")


@pytest.mark.requires(rocm=False)
@pytest.mark.parametrize("visible", ["0,1", "1,0", "1"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.requires(device="cuda")) if each in CURRENT_TOO else each
        for each in NUMBERS
    ],
)
def test_readings_ask_nvml_about_the_device_they_are_given(
    monkeypatch: pytest.MonkeyPatch, name: str, visible: str
) -> None:
    """Each reading is NVML's for the device to which CUDA_VISIBLE_DEVICES assigns the number.

    A number beyond them raises.
    """
    if name in CURRENT_TOO:
        torch.cuda.init()  # initializes with the devices of this process
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    read = getattr(torch.cuda, name)
    places = [int(each) for each in visible.split(",")]
    for index, place in enumerate(places):
        for given in (index, f"cuda:{index}", torch.device("cuda", index)):
            replace_nvml(monkeypatch, TwoDevices())
            assert read(given) == NUMBERS[name] + 1000 * place
    with pytest.raises(RuntimeError, match="is not visible"):
        read(len(places))


@pytest.mark.requires(rocm=False)
@pytest.mark.parametrize("name", NUMBERS)
def test_readings_without_pynvml_name_its_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without pynvml, a reading raises ModuleNotFoundError, which names the package that contains it."""
    replace_nvml(monkeypatch, TwoDevices())
    replace_nvml(monkeypatch, None)
    with pytest.raises(ModuleNotFoundError, match="nvidia-ml-py"):
        getattr(torch.cuda, name)(0)
