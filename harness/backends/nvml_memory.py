"""Memory of the GPU that this process holds and torch's allocator did not make: contexts, kernels, libraries' own.

Asked of NVML for this process alone, since the device's free memory moves with everybody's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pynvml

from harness.text import one_line


@dataclass(frozen=True, slots=True)
class Listed:
    """A process as NVML lists it; `used` in bytes, None where the driver does not tell."""

    pid: int
    used: int | None


def used_by(pids: Sequence[int], listed: Sequence[Listed]) -> int | str:
    """The bytes that one process uses, known by any of `pids` (its numbers in nested pid namespaces), or why not.

    NVML may list the numbers of a namespace outside ours, which nothing here can translate. The process asking has a
    context, so if NVML lists a single one, that is it.
    """
    mine = [process for process in listed if process.pid in pids] or (list(listed) if len(listed) == 1 else [])
    if not mine:
        return f"nvml lists {len(listed)} processes and not {pids[0]}: it counts in another pid namespace"
    if mine[0].used is None:
        return "the driver does not tell memory by process"
    return mine[0].used


class DriverMemory:
    """Holds NVML open from the first reading on."""

    def __init__(self) -> None:
        self._handles: dict[int, Any] | None = None

    def beside(self, torch: ModuleType, memory: Mapping[str, int], blind: MutableMapping[str, str]) -> dict[str, int]:
        """Readings of ``cuda_driver``: what NVML tells less what `memory` says that torch's allocator reserved."""
        values: dict[str, int] = {}
        try:
            if self._handles is None:
                pynvml.nvmlInit()
                self._handles = {index: _handle(torch, index) for index in range(torch.cuda.device_count())}
        except (pynvml.NVMLError, AttributeError) as error:  # torch tells no uuid for what is not NVIDIA's
            self._handles = {}
            blind["cuda_driver"] = f"nvml does not find the device: {one_line(str(error))}"
        for index, handle in self._handles.items():
            name = f"cuda_driver[{index}]"
            try:
                found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except pynvml.NVMLError as error:
                blind[name] = f"nvml does not tell it: {one_line(str(error))}"
                continue
            used = used_by(_own_pids(), [Listed(process.pid, process.usedGpuMemory) for process in found])
            if isinstance(used, str):
                blind[name] = used
            else:
                values[name] = used - memory.get(f"cuda_reserved[{index}]", 0)
        return values


def _handle(torch: ModuleType, index: int) -> Any:
    """The device's handle; torch tells the UUID without the word in front that NVML wants."""
    uuid = torch.cuda.get_device_properties(index).uuid
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError_NotFound:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _own_pids() -> list[int]:
    """This process's numbers, innermost first, in as many pid namespaces as /proc shows."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return [int(number) for number in reversed(line.split()[1:])]
    return [os.getpid()]
