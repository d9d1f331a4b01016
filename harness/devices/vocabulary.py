"""The table of capabilities: what each is, how it is found, and which side effect that avoids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from harness.backends.table import BACKENDS
from harness.devices import facts
from harness.devices.detected import Detected
from harness.devices.facts import Subject


class ValueKind(StrEnum):
    """The type of a capability's values, which decides what a condition on it may say."""

    TEXT = "text"
    BOOL = "bool"
    COUNT = "count"
    BYTES = "bytes"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Capability:
    """An entry of the vocabulary.

    `text` says what it is, `source` how it is found, `without` what finding it so does not do. `unit` is empty for
    what has none, and `choices` are its only values, where they are few.
    """

    kind: ValueKind
    text: str
    source: str
    without: str
    find: Callable[[Subject], Detected]
    unit: str = ""
    choices: tuple[str, ...] = ()


_NO_CONTEXT = "a CUDA context"
_NO_IMPORT = "an import, which would load the library and what it needs"
_NO_LOADING = "an import of torch or loading the library here"
_NO_DRIVER = "waking the driver in this process, which a crash or a hang would take with it"
_NOTHING_RUN = "running anything"

_TENSOR_CORES = "the compute capability, as NVIDIA documents it for each architecture"
_LIBRARY = "metadata of {name}; where there is none, the probe asks the library that torch loads"
_PROBE = "the probe asks the driver: a process of its own, bound to the device, with a time limit"

# The order is that in which unmet requirements are told: what explains most comes first.
VOCABULARY: Mapping[str, Capability] = {
    "device": Capability(
        ValueKind.TEXT,
        "what the case runs on: a GPU, a software device or the cpu; the cpu is there on every machine",
        "the device leased to the worker",
        _NO_CONTEXT,
        facts.kind,
        choices=tuple(BACKENDS),
    ),
    "accelerator": Capability(
        ValueKind.BOOL,
        "whether the device is one that `torch.accelerator` serves: a GPU of torch's own, or a software device",
        "the kind of the device, and torch/version.py, read as text",
        _NO_CONTEXT,
        facts.accelerator,
    ),
    "devices": Capability(
        ValueKind.COUNT,
        "how many devices of its kind one case can be given together",
        "the inventory; a process can hold several GPUs, but one MIG instance only",
        _NO_CONTEXT,
        facts.devices,
        unit="devices",
    ),
    "device_count": Capability(
        ValueKind.COUNT,
        "how many usable devices of the kind the machine has",
        "the inventory",
        _NO_CONTEXT,
        facts.device_count,
        unit="devices",
    ),
    "model": Capability(
        ValueKind.TEXT,
        "product name of the device, such as NVIDIA H100 80GB HBM3; of the cpu, the processor's",
        "NVML; for the cpu, /proc/cpuinfo; a software device says that it is one",
        _NO_CONTEXT,
        facts.model,
    ),
    "compute_capability": Capability(
        ValueKind.VERSION,
        "compute capability of the device, such as 9.0",
        "NVML",
        _NO_CONTEXT,
        facts.compute_capability,
    ),
    "memory": Capability(
        ValueKind.BYTES,
        "memory of the device, used or not",
        "NVML; for the cpu, the host's or its control group's limit; for a software device, SOFT_DEVICE_MEMORY",
        _NO_CONTEXT,
        facts.memory,
        unit="bytes",
    ),
    "free_memory": Capability(
        ValueKind.BYTES,
        "memory of the device that was free when first asked for; it changes all the time and is no reservation",
        "NVML; for the cpu, /proc/meminfo and what its control group has left",
        f"{_NO_CONTEXT}, which takes memory itself",
        facts.free_memory,
        unit="bytes",
    ),
    "peer_access": Capability(
        ValueKind.BOOL,
        "whether every pair of the devices that one case can be given together reads and writes each other's memory",
        "NVML's P2P status of each pair, both ways",
        f"{_NO_CONTEXT} on any of them",
        facts.peer_access,
    ),
    "nvlink": Capability(
        ValueKind.BOOL,
        "whether the device has an active NVLink",
        "NVML's state of each link",
        _NO_CONTEXT,
        facts.nvlink,
    ),
    "mig": Capability(ValueKind.BOOL, "whether the device is a MIG instance", "NVML", _NO_CONTEXT, facts.mig),
    "ecc": Capability(
        ValueKind.BOOL, "whether ECC is switched on for the device's memory", "NVML", _NO_CONTEXT, facts.ecc
    ),
    "bf16": Capability(
        ValueKind.BOOL,
        "whether the GPU's tensor cores multiply BF16 (compute capability 8.0 and up); emulation does not count",
        _TENSOR_CORES,
        _NO_CONTEXT,
        facts.bf16,
    ),
    "tf32": Capability(
        ValueKind.BOOL,
        "whether the GPU's tensor cores multiply TF32 (compute capability 8.0 and up)",
        _TENSOR_CORES,
        _NO_CONTEXT,
        facts.tf32,
    ),
    "fp8": Capability(
        ValueKind.BOOL,
        "whether the GPU's tensor cores multiply FP8, E4M3 and E5M2 (compute capability 8.9 and up)",
        _TENSOR_CORES,
        _NO_CONTEXT,
        facts.fp8,
    ),
    "cuda_graphs": Capability(
        ValueKind.BOOL,
        "whether CUDA graphs can be captured and replayed",
        "the kind of the device",
        _NO_CONTEXT,
        facts.cuda_graphs,
    ),
    "cuda_malloc_async": Capability(
        ValueKind.BOOL,
        "whether torch's allocator can use its cudaMallocAsync backend: the device has memory pools",
        _PROBE,
        _NO_DRIVER,
        facts.cuda_malloc_async,
    ),
    "expandable_segments": Capability(
        ValueKind.BOOL,
        "whether torch's allocator can use expandable segments: the device has virtual memory management",
        _PROBE,
        _NO_DRIVER,
        facts.expandable_segments,
    ),
    "nvml": Capability(ValueKind.BOOL, "whether NVML answers", "nvmlInit", _NO_CONTEXT, facts.nvml),
    "driver": Capability(ValueKind.VERSION, "the NVIDIA driver", "NVML", _NO_CONTEXT, facts.driver),
    "cuda_driver": Capability(
        ValueKind.VERSION, "the newest CUDA the driver supports", "NVML", _NO_CONTEXT, facts.cuda_driver
    ),
    "cuda": Capability(
        ValueKind.VERSION,
        "the CUDA runtime torch is built for",
        "torch/version.py, read as text",
        _NO_IMPORT,
        facts.cuda,
    ),
    "rocm": Capability(
        ValueKind.VERSION,
        "the HIP that torch is built for",
        "torch/version.py, read as text",
        _NO_IMPORT,
        facts.rocm,
    ),
    "cudnn": Capability(
        ValueKind.VERSION,
        "the cuDNN installed for torch",
        _LIBRARY.format(name="nvidia-cudnn-cu<major>"),
        _NO_LOADING,
        facts.cudnn,
    ),
    "cublas": Capability(
        ValueKind.VERSION,
        "the cuBLAS installed for torch",
        _LIBRARY.format(name="nvidia-cublas-cu<major> or nvidia-cublas"),
        _NO_LOADING,
        facts.cublas,
    ),
    "nccl": Capability(
        ValueKind.VERSION,
        "the NCCL installed for torch",
        _LIBRARY.format(name="nvidia-nccl-cu<major>"),
        _NO_LOADING,
        facts.nccl,
    ),
    "torch": Capability(ValueKind.VERSION, "PyTorch", "metadata of the distribution", _NO_IMPORT, facts.torch),
    "torchvision": Capability(
        ValueKind.VERSION, "torchvision", "metadata of the distribution", _NO_IMPORT, facts.torchvision
    ),
    "triton": Capability(ValueKind.VERSION, "Triton", "metadata of the distribution", _NO_IMPORT, facts.triton),
    "cpp_compiler": Capability(
        ValueKind.VERSION,
        "the C++ compiler torch would run",
        "$CXX --version, or that of c++, g++ or clang++ on the path",
        "compiling anything",
        facts.cpp_compiler,
    ),
    "cpu_bf16": Capability(
        ValueKind.BOOL,
        "whether torch multiplies and convolves BF16 on the host's processor without dying of it, rightly or not",
        "the probe does both: a process of its own, with a time limit",
        "an illegal instruction in this process",
        facts.cpu_bf16,
    ),
    "python": Capability(ValueKind.VERSION, "the Python interpreter", "sys.version_info", _NOTHING_RUN, facts.python),
    "numpy": Capability(ValueKind.VERSION, "NumPy", "metadata of the distribution", _NO_IMPORT, facts.numpy),
    "platform": Capability(
        ValueKind.TEXT,
        "operating system and processor, such as linux-x86_64",
        "sys.platform and uname",
        _NOTHING_RUN,
        facts.platform,
    ),
}
