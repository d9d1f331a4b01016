"""NVML readings of a GPU: clocks, power, temperature, and error counters of its memory.

Values that NVML does not report are left out. A device other than a GPU has no readings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch


def clocks(device: torch.device) -> str:
    """Return the current clocks as text: ``SM 1980 MHz, memory 2619 MHz``; empty if unknown."""
    found = _readings(device, _CLOCKS)
    return ", ".join(f"{name} {value} MHz" for name, value in found.items())


def condition(device: torch.device) -> str:
    """Return the current temperature, power and clocks as text for messages; ``no readings`` if there are none."""
    found = _readings(device, _CONDITION)
    texts = [f"{found['temperature']} degrees Celsius"] if "temperature" in found else []
    texts += [f"{found['power'] / 1000:.0f} W"] if "power" in found else []
    return ", ".join([*texts, *filter(None, [clocks(device)])]) or "no readings"


def error_counters(device: torch.device) -> Mapping[str, int]:
    """Return the error counters of the device's memory since the driver was loaded, and the number of remapped rows."""
    return _readings(device, _COUNTERS)


def _remapped(nvml: Any, handle: Any, place: int) -> int:
    return int(nvml.nvmlDeviceGetRemappedRows(handle)[place])


_CLOCKS: Mapping[str, Callable[[Any, Any], int]] = {
    "SM": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
    "memory": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
}
_CONDITION: Mapping[str, Callable[[Any, Any], int]] = {
    "temperature": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
    "power": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle),
}
_COUNTERS: Mapping[str, Callable[[Any, Any], int]] = {
    "corrected ECC errors": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(
        handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC
    ),
    "uncorrected ECC errors": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(
        handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    ),
    "rows remapped after corrected errors": lambda nvml, handle: _remapped(nvml, handle, 0),
    "rows remapped after uncorrected errors": lambda nvml, handle: _remapped(nvml, handle, 1),
    "pending remappings": lambda nvml, handle: _remapped(nvml, handle, 2),
    "failed remappings": lambda nvml, handle: _remapped(nvml, handle, 3),
}


def _readings(device: torch.device, wanted: Mapping[str, Callable[[Any, Any], int]]) -> dict[str, int]:
    if device.type != "cuda":
        return {}
    try:
        import pynvml
    except ImportError:
        return {}
    found: dict[str, int] = {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        uuid = torch.cuda.get_device_properties(device).uuid
        with contextlib.suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            for name, read in wanted.items():
                with contextlib.suppress(pynvml.NVMLError):
                    found[name] = int(read(pynvml, handle))
    finally:
        pynvml.nvmlShutdown()
    return found
