"""Simulated CUDA devices: torch's CUDA build on this project's CUDA runtime (`harness.sim.simcuda`), without a GPU."""

from __future__ import annotations

from types import ModuleType

from harness.backends import cuda, simulation

COUNT = "SIMCUDA_DEVICE_COUNT"
MEMORY = "SIMCUDA_DEVICE_MEMORY"

NAME = "Simulated H100 (no GPU)"


class SimulatedBackend(cuda.CudaBackend):
    """Devices of the simulated runtime, which ``torch.cuda`` serves as it serves GPUs."""

    def in_use(self) -> bool:
        runtime = simulation.simulated_runtime()
        return runtime is not None and bool(runtime.simcudaIsInitialized())

    def is_initialized(self, torch: ModuleType) -> bool:
        return cuda.torch_uses_cuda(torch) and simulation.simulated_runtime() is not None

    def own_threads(self, torch: ModuleType) -> int:  # noqa: ARG002
        runtime = simulation.simulated_runtime()
        return 0 if runtime is None else int(runtime.simcudaThreadCount())


BACKEND = SimulatedBackend(
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
    provider="harness.sim.simcuda.build",
    from_start=True,
    faults=(*cuda.FAULTS, "simcuda/csrc/nccl/faults.def"),
    faults_variable=cuda.INJECT,
    interposed=True,
    race_check={"SIMCUDA_CHECK": "races"},
    implied={"accelerator": True, "silicon": False},
    objects=cuda.OBJECTS,
    # Device memory is host memory. Libraries keep buffers for each thread of the runtime that calls them.
    ignored_meters=("heap_bytes", "mapped_bytes"),
)
