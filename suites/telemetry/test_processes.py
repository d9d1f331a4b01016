"""`torch.cuda.list_gpu_processes`: the processes on a device that the driver reports."""

from __future__ import annotations

import os
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

MIB = 1 << 20


class DriverNotLoadedError(Exception):
    """NVML's error if no driver is loaded."""


def nvml(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """Make torch import this NVML; `functions` are its functions without their prefix."""
    fakes = {f"nvml{name}": function for name, function in functions.items()}
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError_DriverNotLoaded=DriverNotLoadedError, **fakes))


@pytest.mark.requires(device="cuda", nvml=True)
def test_list_gpu_processes_has_a_line_per_process(device: torch.device) -> None:
    """The text names the device, and then the id and memory of each process, which may include the calling process.

    In a container, the driver reports the host's process ids or none. Source:
    https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.list_gpu_processes.html.
    """
    held = torch.ones(MIB, device=device)
    first, *lines = torch.cuda.list_gpu_processes(device).splitlines()
    assert re.fullmatch(r"GPU:\d+", first)
    found = [re.fullmatch(r"process +(\d+) uses +([\d.]+) MB GPU memory", line) for line in lines]
    assert lines == ["no processes are running"] or all(found)
    mine = [each[2] for each in found if each and int(each[1]) == os.getpid()]
    assert all(float(size) > 0 for size in mine)
    del held


@pytest.mark.requires(device="cuda", rocm=False)
@pytest.mark.parametrize("none", [False, True])
def test_list_gpu_processes_shows_what_nvml_reads(
    none: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is in units of 2**20 bytes, with three digits. Without processes, the text says so."""
    asked: list[object] = []

    def running(handle: object) -> list[SimpleNamespace]:
        asked.append(handle)
        return [] if none else processes

    processes = [SimpleNamespace(pid=12, usedGpuMemory=3 * MIB), SimpleNamespace(pid=4567890, usedGpuMemory=MIB // 8)]
    nvml(
        monkeypatch,
        Init=lambda: asked.append("init"),
        DeviceGetHandleByIndex=lambda index: ("handle", index),
        DeviceGetComputeRunningProcesses=running,
    )
    first, *lines = torch.cuda.list_gpu_processes(device).splitlines()
    number = int(first.removeprefix("GPU:"))
    assert asked == ["init", ("handle", number)]
    assert lines == (
        ["no processes are running"]
        if none
        else [
            "process         12 uses        3.000 MB GPU memory",
            "process    4567890 uses        0.125 MB GPU memory",
        ]
    )


@pytest.mark.requires(rocm=False)
def test_list_gpu_processes_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the NVML package, or without a driver, the text says so, and nothing is raised."""

    def no_driver() -> None:
        raise DriverNotLoadedError

    nvml(monkeypatch, Init=no_driver)
    assert torch.cuda.list_gpu_processes() == "cuda driver can't be loaded, is cuda enabled?"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert torch.cuda.list_gpu_processes() == "pynvml module not found, please install nvidia-ml-py"
