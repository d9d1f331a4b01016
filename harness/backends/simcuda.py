"""Simulated CUDA devices: torch's CUDA build on this project's CUDA runtime (`harness.sim.simcuda`), without a GPU."""

from __future__ import annotations

from types import ModuleType

from harness.backends import cuda, simulation
from harness.backends.backend import Backend

COUNT = "SIMCUDA_DEVICE_COUNT"
MEMORY = "SIMCUDA_DEVICE_MEMORY"

NAME = "Simulated H100 (no GPU)"


def is_initialized(torch: ModuleType) -> bool:
    """Return whether this process uses simulated devices. Does not initialise any."""
    return cuda.torch_uses_cuda(torch) and simulation.simulated_runtime() is not None


def _own_threads(_: ModuleType) -> int:
    runtime = simulation.simulated_runtime()
    return 0 if runtime is None else int(runtime.simcudaThreadCount())


def _in_use() -> bool:
    runtime = simulation.simulated_runtime()
    return runtime is not None and bool(runtime.simcudaIsInitialized())


BACKEND = Backend(
    kind="simcuda",
    torch_type=cuda.BACKEND.torch_type,
    inventory="harness.sim.simcuda.machine:buildable_inventory",
    noun="the simulated CUDA",
    host_kernels=True,
    device_name=NAME,
    label="simulated CUDA (no GPU)",
    no_gpu="",
    uuid_prefixes=("GPU-51ed0000-0000-4000-8000-",),
    mask=cuda.MASK,
    variables=(COUNT, MEMORY),
    hardware=False,
    provider="harness.sim.simcuda.provider",
    from_start=True,
    faults=(*cuda.FAULTS, "simcuda/csrc/nccl/faults.def"),
    faults_variable=cuda.INJECT,
    interposed=True,
    implied={"accelerator": True, "silicon": False},
    in_use=_in_use,
    is_initialized=is_initialized,
    device_count=cuda.BACKEND.device_count,
    synchronize=cuda.BACKEND.synchronize,
    seed=cuda.BACKEND.seed,
    empty_cache=cuda.BACKEND.empty_cache,
    faults_struck=cuda.BACKEND.faults_struck,
    counters=cuda.CudaCounters,
    release_caches=cuda.BACKEND.release_caches,
    objects=cuda.BACKEND.objects,
    own_threads=_own_threads,
    # Device memory is host memory. Libraries keep buffers for each thread of the runtime that calls them.
    ignored_meters=("heap_bytes", "mapped_bytes"),
)
