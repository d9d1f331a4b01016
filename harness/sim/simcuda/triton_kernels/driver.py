"""Triton's driver for simulated devices: compiled kernels are launched, but run by Triton's interpreter.

Triton compiles a kernel as for a GPU, down to machine code, and with all of its errors: kernels that ask for more
shared memory or threads than the device has are refused, and `asm` has all stages. Only the two functions that give
machine code to a device are others.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from triton import knobs
from triton.backends.driver import GPUDriver
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver as active_driver

from harness.sim.simcuda import autoload
from harness.sim.simcuda.triton_kernels import accesses, interpreter


@functools.cache
def _library() -> ctypes.PyDLL:
    name = os.environ[autoload.VARIABLE]
    library = ctypes.PyDLL(name)
    library.simcuda_launch_callable.argtypes = [
        ctypes.py_object,
        ctypes.py_object,
        ctypes.c_ulonglong,
        ctypes.py_object,
    ]
    library.simcuda_launch_callable.restype = ctypes.py_object
    atexit.register(ctypes.CDLL(name).simcuda_end_callables)
    return library


@functools.cache
def checks_races() -> bool:
    """Return whether the runtime wants to know which memory work uses."""
    return bool(_library().simcudaChecksWork())


def launch(name: str, work: Callable[[], None], stream: int, accesses: Sequence[tuple[int, int, bool]]) -> None:
    """Queue a call of the function on a stream of the current device, or add it to the stream's capture.

    `accesses`: the memory that it uses, as addresses, bytes, and whether it is written. An exception becomes a
    device-side assertion. Raise RuntimeError if CUDA refuses the launch.
    """
    _library().simcuda_launch_callable(work, name, stream, list(accesses))


_MAX_THREADS, _REGISTERS, _WARP = 1024, 65536, 32  # of a block
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCKS = 32  # of a multiprocessor


class _Utilities:
    """What Triton asks of the CUDA driver. Triton's own functions are in a C module, which it would have to compile."""

    @functools.cache  # noqa: B019 - one object per process
    def get_device_properties(self, device: int) -> dict[str, int]:
        properties: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": properties.regs_per_multiprocessor,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": properties.warp_size,
            "sm_clock_rate": properties.clock_rate,
            "mem_clock_rate": properties.memory_clock_rate,
            "mem_bus_width": properties.memory_bus_width,
        }

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:  # noqa: ARG002
        """Return module, function, registers, spilled registers, and the most threads of a block."""
        used = _used_resources(kernel)
        registers = max(1, used["REG"])
        threads = _REGISTERS // registers // _WARP * _WARP
        return 1, 1, registers, (used["STACK"] + used["LOCAL"]) // 4, min(_MAX_THREADS, threads)


def _used_resources(kernel: bytes) -> dict[str, int]:
    """Return what a kernel's machine code needs, by the names of cuobjdump."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel)
        file.flush()
        text = subprocess.check_output([knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name], text=True)
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}


def _run_once(call: Callable[[], object], quantiles: Sequence[float] = (0.5,)) -> list[float]:
    call()
    torch.cuda.synchronize()
    return [0.0] * len(quantiles)


class SimulatedDriver(CudaDriver):  # type: ignore[misc]
    """The driver of a process on simulated devices."""

    def __init__(self) -> None:
        GPUDriver.__init__(self)  # that of CUDA compiles a C module against libcuda
        self.utils = _Utilities()
        self.launcher_cls = Launcher

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Return what measures a configuration for autotuning: times mean nothing here, so all are the same.

        Autotuning then takes the first configuration that runs.
        """
        return _run_once

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """Return what a benchmark clears before each call: a device here has no cache of its own."""
        return torch.empty(1, dtype=torch.int, device="cuda")


class Launcher:
    """Launches one compiled kernel."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self._kernel = interpreter.InterpretedKernel(src, metadata)
        self._most_blocks = _resident_blocks(metadata) if metadata.launch_cooperative_grid else None

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: int,  # noqa: ARG002
        kernel_metadata: Any,  # noqa: ARG002
        launch_metadata: Any,
        enter_hook: Callable[[Any], object] | None,
        exit_hook: Callable[[Any], object] | None,
        *arguments: Any,
    ) -> None:
        if enter_hook is not None:
            enter_hook(launch_metadata)
        grid = (grid_x, grid_y, grid_z)
        if min(grid) > 0:
            self._check_grid(*grid)
            call = self._kernel.bind(grid, arguments)
            known = accesses.find_accesses(call) if checks_races() else []
            launch(self._kernel.name, call, stream, known)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _check_grid(self, *grid: int) -> None:
        """Raise RuntimeError with the words of Triton's launcher for a grid that CUDA refuses."""
        if any(size > most for size, most in zip(grid, _MAX_GRID, strict=True)):
            raise RuntimeError(
                f"Triton Error [CUDA]: invalid argument (the simulated CUDA: a grid of {grid}, at most {_MAX_GRID})"
            )
        if self._most_blocks is not None and (blocks := math.prod(grid)) > self._most_blocks:
            raise RuntimeError(
                f"Triton Error [CUDA]: too many blocks in cooperative launch (the simulated CUDA: {blocks}, at most "
                f"{self._most_blocks})"
            )


def _resident_blocks(metadata: Any) -> int:
    """Return how many blocks of a kernel the device runs at once, as far as threads and shared memory limit them."""
    properties: Any = torch.cuda.get_device_properties()
    own_shared = 1024  # what the system takes of each block
    of_processor = min(
        _MAX_BLOCKS,
        properties.max_threads_per_multi_processor // (metadata.num_warps * _WARP),
        properties.shared_memory_per_multiprocessor // (metadata.shared + own_shared),
    )
    return int(properties.multi_processor_count * of_processor)


def install() -> None:
    """Make the driver that of Triton in this process."""
    interpreter.install()
    active_driver.set_active(SimulatedDriver())
