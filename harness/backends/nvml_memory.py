"""GPU memory of this process outside torch's allocator: contexts, kernels, memory of libraries.

NVML reports the memory of this process. The free memory of the device would also change with other processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pynvml

from harness._compat import has_cuda_context
from harness.core.text import single_line


@dataclass(frozen=True, slots=True)
class NvmlProcess:
    """A process as NVML lists it. `used`: in bytes, None if the driver does not report it."""

    pid: int
    used: int | None


def memory_of_process(pids: Sequence[int], listed: Sequence[NvmlProcess]) -> int | str:
    """Return the bytes that this process uses, or the reason why they are unknown.

    `pids`: the process ids of this process in nested pid namespaces. NVML may list ids of an outer namespace, which
    cannot be translated here. This process has a context, so if NVML lists only one process, it is this one.
    """
    mine = [process for process in listed if process.pid in pids] or (list(listed) if len(listed) == 1 else [])
    if not mine:
        return f"nvml lists {len(listed)} processes, but not pid {pids[0]}: it uses another pid namespace"
    if mine[0].used is None:
        return "the driver does not report the memory of single processes"
    return mine[0].used


class DriverMemory:
    """Opens NVML at the first reading and keeps it open."""

    def __init__(self) -> None:
        self._handles: dict[int, Any] | None = None

    def read(
        self, torch: ModuleType, memory: Mapping[str, int], unreadable: MutableMapping[str, str]
    ) -> dict[str, int]:
        """Return readings of ``cuda_driver``: the memory that NVML reports minus the allocator's (from `memory`)."""
        values: dict[str, int] = {}
        try:
            if self._handles is None:
                pynvml.nvmlInit()
                self._handles = {index: _handle(torch, index) for index in range(torch.cuda.device_count())}
        except (pynvml.NVMLError, AttributeError) as error:  # torch has a UUID for NVIDIA devices only
            self._handles = {}
            unreadable["cuda_driver"] = f"nvml cannot find the device: {single_line(str(error))}"
        for index, handle in self._handles.items():
            name = f"cuda_driver[{index}]"
            try:
                processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except pynvml.NVMLError as error:
                unreadable[name] = f"nvml cannot list the processes of the device: {single_line(str(error))}"
                continue
            if not has_cuda_context(torch, index):
                values[name] = 0
                continue
            used = memory_of_process(
                _own_pids(), [NvmlProcess(process.pid, process.usedGpuMemory) for process in processes]
            )
            if isinstance(used, str):
                unreadable[name] = used
            else:
                values[name] = used - memory.get(f"cuda_reserved[{index}]", 0)
        return values


def _handle(torch: ModuleType, index: int) -> Any:
    """Return the NVML handle of a device. torch gives the UUID without the prefix that NVML needs."""
    uuid = torch.cuda.get_device_properties(index).uuid
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError_NotFound:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _own_pids() -> list[int]:
    """Return the ids of this process in all pid namespaces that /proc shows, innermost first."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return [int(number) for number in reversed(line.split()[1:])]
    return [os.getpid()]
