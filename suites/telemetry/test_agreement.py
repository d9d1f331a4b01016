"""Agreement of torch's device information with NVML."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .. import children
from ._torch_private import nvml_handle

pytestmark = pytest.mark.requires(device="cuda", nvml=True, rocm=False, mig=False)


def library() -> Any:
    """Return the NVML bindings, initialized by torch."""
    import pynvml

    return pynvml


def text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.covers("test_cuda::TestCuda::test_uuid")
def test_nvmldevicegetuuid_is_the_uuid_of_the_properties(device: torch.device) -> None:
    """The UUID in the device properties equals NVML's without its prefix."""
    expected = text(library().nvmlDeviceGetUUID(nvml_handle(device)))

    assert f"GPU-{torch.cuda.get_device_properties(device).uuid}" == expected


def test_nvmldevicegetmemoryinfo_is_the_memory_of_the_properties(device: torch.device) -> None:
    """The total memory in the properties equals NVML's within a tenth (the driver's reserve).

    The used memory according to NVML is at least what this process has reserved.
    """
    torch.ones(1 << 20, device=device)
    reported = library().nvmlDeviceGetMemoryInfo(nvml_handle(device))

    assert torch.cuda.get_device_properties(device).total_memory == pytest.approx(reported.total, rel=0.1)
    assert reported.used >= torch.cuda.memory_reserved(device)
    assert reported.used <= reported.total


def test_nvmldevicegetcudacomputecapability_is_get_device_capability(device: torch.device) -> None:
    """The compute capability equals NVML's."""
    expected = library().nvmlDeviceGetCudaComputeCapability(nvml_handle(device))

    assert torch.cuda.get_device_capability(device) == tuple(expected)


def test_clock_rate_is_below_nvmldevicegetmaxclockinfo(device: torch.device) -> None:
    """The clock rate does not exceed NVML's maximum for the multiprocessors."""
    highest = library().nvmlDeviceGetMaxClockInfo(nvml_handle(device), library().NVML_CLOCK_SM)

    assert 0 < torch.cuda.clock_rate(device) <= highest


def test_power_draw_is_below_the_enforced_limit(device: torch.device) -> None:
    """In most of thirty readings, the power draw is at most one and a half times the enforced limit."""
    limit = library().nvmlDeviceGetEnforcedPowerLimit(nvml_handle(device))

    readings = [torch.cuda.power_draw(device) for _ in range(30)]

    assert sum(reading <= 1.5 * limit for reading in readings) > 15


def test_temperature_is_below_the_shutdown_threshold(device: torch.device) -> None:
    """The temperature is below the shutdown threshold, if NVML reports one."""
    bindings = library()
    try:
        shutdown = bindings.nvmlDeviceGetTemperatureThreshold(
            nvml_handle(device), bindings.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
        )
    except bindings.NVMLError as error:
        pytest.skip(f"NVML does not report the shutdown threshold: {error}")

    assert 0 < torch.cuda.temperature(device) < shutdown


@pytest.mark.timeout(300)
@pytest.mark.covers("test_cuda::TestCudaAllocator::test_uuid_visible_devices")
def test_cuda_visible_devices_takes_uuids(device: torch.device) -> None:
    """CUDA_VISIBLE_DEVICES accepts a UUID or a unique prefix, and the process then sees only that device.

    An unknown UUID hides all devices.
    """
    nvml = library()
    uuid = text(nvml.nvmlDeviceGetUUID(nvml_handle(device)))
    every = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    others = {text(nvml.nvmlDeviceGetUUID(each)) for each in every} - {uuid}
    lengths = range(20, len(uuid) + 1)
    short = next(uuid[:length] for length in lengths if not any(each.startswith(uuid[:length]) for each in others))
    script = """
import torch
count = torch.cuda.device_count()
print(count, *(str(torch.cuda.get_device_properties(index).uuid) for index in range(count)))
"""
    expected = f"1 {uuid.removeprefix('GPU-')}"

    assert children.run(script, environ={"CUDA_VISIBLE_DEVICES": uuid}).lines() == [expected]
    assert children.run(script, environ={"CUDA_VISIBLE_DEVICES": short}).lines() == [expected]
    nobody = "GPU-00000000-0000-0000-0000-000000000000"
    assert children.run(script, environ={"CUDA_VISIBLE_DEVICES": nobody}).lines() == ["0"]
