"""AMD GPUs, through a torch that is built for HIP.

Written from the documentation, and never run on such a GPU: torch's notes on HIP
(https://docs.pytorch.org/docs/stable/notes/hip.html) say that ``torch.cuda`` and devices of the type ``cuda`` stand for
HIP; ROCm's page on GPU isolation (https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html) describes
``HIP_VISIBLE_DEVICES``; the ROCm runtime opens ``/dev/kfd`` when it is initialised.
"""

from __future__ import annotations

from types import ModuleType

from harness.backends import cuda
from harness.backends.accelerator import AcceleratorDefaults
from harness.backends.backend import Backend

_DEFAULTS = AcceleratorDefaults(cuda.BACKEND.torch_type)


def is_hip(torch: ModuleType) -> bool:
    """Return whether this torch is built for HIP, so that ``torch.cuda`` serves AMD GPUs."""
    return getattr(torch.version, "hip", None) is not None


def _device_count(torch: ModuleType) -> int:
    return _DEFAULTS.device_count(torch) if is_hip(torch) else 0


BACKEND = Backend(
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
    is_initialized=lambda torch: is_hip(torch) and _DEFAULTS.is_initialized(torch),
    device_count=_device_count,
    objects=cuda.BACKEND.objects,
    release_caches=cuda.BACKEND.release_caches,
)
