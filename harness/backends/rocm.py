"""AMD GPUs, through a torch that is built for HIP.

Written from the documentation, and never run on such a GPU: torch's notes on HIP
(https://docs.pytorch.org/docs/stable/notes/hip.html) say that ``torch.cuda`` and devices of the type ``cuda`` stand for
HIP; ROCm's page on GPU isolation (https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html) describes
``HIP_VISIBLE_DEVICES``; the ROCm runtime opens ``/dev/kfd`` when it is initialised.
"""

from __future__ import annotations

from types import ModuleType

from harness.backends import cuda
from harness.backends.backend import Backend


def is_hip(torch: ModuleType) -> bool:
    """Return whether this torch is built for HIP, so that ``torch.cuda`` serves AMD GPUs."""
    return getattr(torch.version, "hip", None) is not None


class RocmBackend(Backend):
    """The GPUs of ``torch.cuda`` in a build for HIP; none in another build."""

    def is_initialized(self, torch: ModuleType) -> bool:
        return is_hip(torch) and super().is_initialized(torch)

    def device_count(self, torch: ModuleType) -> int:
        return super().device_count(torch) if is_hip(torch) else 0

    def release_caches(self, torch: ModuleType) -> None:
        cuda.release_caches(torch)


BACKEND = RocmBackend(
    kind="rocm",
    torch_type=cuda.BACKEND.torch_type,
    noun="AMD GPUs",
    label="rocm (AMD GPU)",
    no_gpu="the device is an AMD GPU, not one of CUDA",
    mask="HIP_VISIBLE_DEVICES",
    variables=("ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HSA_OVERRIDE_GFX_VERSION"),
    device_nodes=("/dev/kfd",),
    implied={"accelerator": True, "silicon": True},
    capabilities={"cuda_graphs": True},
    objects=cuda.OBJECTS,
)
