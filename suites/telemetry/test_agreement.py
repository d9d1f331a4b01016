"""Whether what torch says of a device is what the driver's own library says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .. import children
from ._torch_private import nvml_handle

pytestmark = pytest.mark.requires(device="cuda", nvml=True, rocm=False, mig=False)


def library() -> Any:
    """NVML's own bindings, initialised by torch."""
    import pynvml

    return pynvml


def text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.covers("test_cuda::TestCuda::test_uuid")
def test_nvmldevicegetuuid_is_the_uuid_of_the_properties(device: torch.device) -> None:
    """Contract: the UUID of the properties is that of NVML, without its prefix."""
    expected = text(library().nvmlDeviceGetUUID(nvml_handle(device)))

    assert f"GPU-{torch.cuda.get_device_properties(device).uuid}" == expected


def test_nvmldevicegetmemoryinfo_is_the_memory_of_the_properties(device: torch.device) -> None:
    """Contract: the device's total memory is what NVML says, within a tenth (what the driver reserves), and what NVML
    says is used is at least what this process has reserved."""
    torch.ones(1 << 20, device=device)
    told = library().nvmlDeviceGetMemoryInfo(nvml_handle(device))

    assert torch.cuda.get_device_properties(device).total_memory == pytest.approx(told.total, rel=0.1)
    assert told.used >= torch.cuda.memory_reserved(device)
    assert told.used <= told.total


def test_nvmldevicegetcudacomputecapability_is_get_device_capability(device: torch.device) -> None:
    """Contract: the compute capability is the one that NVML tells."""
    expected = library().nvmlDeviceGetCudaComputeCapability(nvml_handle(device))

    assert torch.cuda.get_device_capability(device) == tuple(expected)


def test_clock_rate_is_below_nvmldevicegetmaxclockinfo(device: torch.device) -> None:
    """Contract: the clock rate is no higher than the highest that NVML allows for the multiprocessors."""
    highest = library().nvmlDeviceGetMaxClockInfo(nvml_handle(device), library().NVML_CLOCK_SM)

    assert 0 < torch.cuda.clock_rate(device) <= highest


def test_power_draw_is_below_the_enforced_limit(device: torch.device) -> None:
    """Contract: the power drawn is, in most of thirty readings, no higher than one and a half times the limit that is
    enforced."""
    limit = library().nvmlDeviceGetEnforcedPowerLimit(nvml_handle(device))

    readings = [torch.cuda.power_draw(device) for _ in range(30)]

    assert sum(reading <= 1.5 * limit for reading in readings) > 15


def test_temperature_is_below_the_shutdown_threshold(device: torch.device) -> None:
    """Contract: the temperature is below the one at which the device shuts down, where NVML knows it."""
    bindings = library()
    try:
        shutdown = bindings.nvmlDeviceGetTemperatureThreshold(
            nvml_handle(device), bindings.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
        )
    except bindings.NVMLError as error:
        pytest.skip(f"NVML does not tell the temperature of the shutdown: {error}")

    assert 0 < torch.cuda.temperature(device) < shutdown


@pytest.mark.timeout(300)
@pytest.mark.covers("test_cuda::TestCudaAllocator::test_uuid_visible_devices")
def test_cuda_visible_devices_takes_uuids(device: torch.device) -> None:
    """Contract: CUDA_VISIBLE_DEVICES takes UUIDs, whole or by their first letters as far as they are unique; the
    process then sees that device alone. One that no device has shows none."""
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
