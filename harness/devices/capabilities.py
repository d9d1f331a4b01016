"""The table of capabilities: their meanings, their detection, and the side effects that the detection avoids."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.backends import table
from harness.core.text import format_bytes
from harness.devices import detectors, software
from harness.devices.detectors import DetectionSubject
from harness.devices.device import Detected, Device, Inventory, Value
from harness.devices.probe import Question
from harness.devices.prober import Prober


class ValueKind(StrEnum):
    """The type of a capability's values. It decides which conditions are valid."""

    TEXT = "text"
    BOOL = "bool"
    COUNT = "count"
    BYTES = "bytes"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Capability:
    """An entry of the vocabulary.

    `text` is the meaning, `source` the way of detection, `without` the side effect that this avoids. `unit` is empty
    for a capability without a unit. `choices` returns the only possible values, if they are few; `allows` then tells
    whether a value is one of them, and is cheaper.
    """

    kind: ValueKind
    text: str
    source: str
    without: str
    find: Callable[[DetectionSubject], Detected]
    unit: str = ""
    choices: Callable[[], tuple[str, ...]] = tuple
    allows: Callable[[str], bool] | None = None


_NO_CONTEXT = "a CUDA context"
_NO_IMPORT = "an import, which would load the library and its dependencies"
_NO_LOADING = "importing torch or loading the library in this process"
_NO_DRIVER = "initialising the driver in this process, where it could crash or hang"
_NOTHING_RUN = "running a command"

_TENSOR_CORES = "the compute capability, as NVIDIA documents it for each architecture"
_LIBRARY = "metadata of {name}; without metadata, the probe queries the library that torch loads"
_PROBE = "the probe queries the driver, in a separate process with a time limit that sees only this device"
_REGISTERED = "the kind of the device; for a registered device"
_SEPARATELY = ", tested in a separate process"
_ON_CPU = Detected(False, "the device is the cpu")

# Unmet requirements are reported in this order: the most informative capability comes first.
VOCABULARY: Mapping[str, Capability] = {
    "device": Capability(
        ValueKind.TEXT,
        "what the case runs on: a GPU, a simulated GPU, a software device, the cpu, or a registered device by its "
        "kind (docs/backends.md). Every machine has a cpu; a simulated GPU meets `cuda` too, since torch does not "
        "distinguish them",
        "the device leased to the worker",
        _NO_CONTEXT,
        lambda subject: Detected(subject.device.kind),
        choices=table.known_kinds,
        allows=table.is_known,
    ),
    "accelerator": Capability(
        ValueKind.BOOL,
        "whether `torch.accelerator` serves the device: a GPU that torch is built for, or a software device",
        "the kind of the device, and torch/version.py, read as text",
        _NO_CONTEXT,
        detectors.detect_accelerator,
    ),
    "accelerator_graphs": Capability(
        ValueKind.BOOL,
        "whether torch has an implementation of `torch.accelerator.Graph` for the device",
        "the symbols of torch's library for CUDA; a software device has one from torch 2.13 on",
        _NO_CONTEXT,
        detectors.detect_accelerator_graphs,
    ),
    "asynchronous": Capability(
        ValueKind.BOOL,
        "whether the device works behind the host: a launch returns before its work is done. A synchronous device is "
        "valid, but cases that need pending work cannot test it",
        "the kind of the device; for a registered device, whether work takes longer after its launches than they "
        "do, in one of three trials in a separate process; for a software device, SOFT_SYNCHRONOUS",
        _NO_CONTEXT,
        detectors.detect_observed(
            "asynchronous", on_cpu=Detected(False, "work on the cpu is done when its call returns")
        ),
    ),
    "sparse": Capability(
        ValueKind.BOOL,
        "whether torch has sparse tensors (COO) on the device",
        "the kind of the device; for a registered device, whether a tensor can be made sparse and dense again, tested "
        "in a separate process",
        _NO_CONTEXT,
        detectors.detect_observed("sparse", on_cpu=Detected(True)),
    ),
    "inductor": Capability(
        ValueKind.BOOL,
        "whether inductor, the compiler of `torch.compile`, generates code for the device; it also needs a compiler: "
        "`triton` or `cpp_compiler`",
        f"{_REGISTERED}, whether torch has a code generator for its type{_SEPARATELY}",
        _NO_IMPORT,
        detectors.detect_observed("inductor", on_cpu=Detected(True)),
    ),
    "caching_allocator": Capability(
        ValueKind.BOOL,
        "whether the device's allocator keeps freed memory and counts it in `torch.accelerator.memory_stats`",
        f"{_REGISTERED}, whether that has statistics after the first tensor{_SEPARATELY}",
        _NO_CONTEXT,
        detectors.detect_observed("caching_allocator", on_cpu=_ON_CPU),
    ),
    "pinned_memory": Capability(
        ValueKind.BOOL,
        "whether `pin_memory()` and `to('cpu', non_blocking=True)` give memory of the host that the device copies "
        "without waiting; always on the cpu, whose copies need none",
        f"{_REGISTERED}, whether a tensor can be pinned{_SEPARATELY}",
        _NO_CONTEXT,
        detectors.detect_observed("pinned_memory", on_cpu=Detected(True)),
    ),
    "autocast": Capability(
        ValueKind.BOOL,
        "whether `torch.autocast` computes in a lower type on the device",
        f"{_REGISTERED}, the type of a product in a region of autocast{_SEPARATELY}",
        _NO_CONTEXT,
        detectors.detect_observed("autocast", on_cpu=Detected(True)),
    ),
    "wide_seeds": Capability(
        ValueKind.BOOL,
        "whether generators of the device take seeds of 64 bits, as those of the CPU and of CUDA do",
        f"{_REGISTERED}, whether a generator returns such a seed{_SEPARATELY}",
        _NO_CONTEXT,
        detectors.detect_observed("wide_seeds", on_cpu=Detected(True)),
    ),
    "device_properties": Capability(
        ValueKind.BOOL,
        "whether the module of the device has `get_device_properties`, as `torch.cuda` does",
        f"{_REGISTERED}, whether it gives the memory of the first device{_SEPARATELY}",
        _NO_CONTEXT,
        detectors.detect_observed("device_properties", on_cpu=_ON_CPU),
    ),
    "refuses_forks": Capability(
        ValueKind.BOOL,
        "whether a process that was forked after the first use of the device cannot use it; where memory survives a "
        "fork, cases for the error cannot see one",
        f"{_REGISTERED}, whether such a process computes{_SEPARATELY}",
        _NO_CONTEXT,
        detectors.detect_observed("refuses_forks", on_cpu=_ON_CPU),
    ),
    "process_groups": Capability(
        ValueKind.BOOL,
        "whether torch.distributed has a backend for the device: gloo for the CPU, NCCL for CUDA",
        "the kind of the device, and for CUDA whether there is NCCL; for a registered device, the backend that is "
        "registered for its type, queried in a separate process",
        _NO_CONTEXT,
        detectors.detect_process_groups,
    ),
    "silicon": Capability(
        ValueKind.BOOL,
        "whether a real GPU computes: for cases about its arithmetic, its speed or NVIDIA's libraries; false on a "
        "simulated GPU",
        "the kind of the device",
        _NO_CONTEXT,
        detectors.detect_silicon,
    ),
    "devices": Capability(
        ValueKind.COUNT,
        "how many devices of its kind one case can get together",
        "the inventory; a process can use several GPUs, but only one MIG instance",
        _NO_CONTEXT,
        detectors.detect_devices,
        unit="devices",
    ),
    "ranks": Capability(
        ValueKind.COUNT,
        "how many processes one case can run at once, each with a device of its own",
        "the number of devices that one case can get together; on the cpu, always 8",
        _NO_CONTEXT,
        detectors.detect_ranks,
        unit="ranks",
    ),
    "device_count": Capability(
        ValueKind.COUNT,
        "how many usable devices of its kind the machine has",
        "the inventory",
        _NO_CONTEXT,
        detectors.detect_device_count,
        unit="devices",
    ),
    "model": Capability(
        ValueKind.TEXT,
        "product name of the device, such as NVIDIA H100 80GB HBM3; for the cpu, of the processor",
        "NVML; for the cpu, /proc/cpuinfo; for a software device or a simulated GPU, a fixed name",
        _NO_CONTEXT,
        detectors.detect_model,
    ),
    "compute_capability": Capability(
        ValueKind.VERSION,
        "compute capability of the device, such as 9.0",
        "NVML",
        _NO_CONTEXT,
        detectors.detect_compute_capability,
    ),
    "memory": Capability(
        ValueKind.BYTES,
        "memory of the device, used or not",
        "NVML; for the cpu, the memory of the host or the limit of its control group; for a software device, "
        "SOFT_DEVICE_MEMORY; for a simulated GPU, SIMCUDA_DEVICE_MEMORY",
        _NO_CONTEXT,
        detectors.detect_memory,
        unit="bytes",
    ),
    "free_memory": Capability(
        ValueKind.BYTES,
        "memory of the device that was free at the first detection; it changes all the time and is not reserved",
        "NVML; for the cpu, /proc/meminfo and the free memory of its control group",
        f"{_NO_CONTEXT}, which takes memory itself",
        detectors.detect_free_memory,
        unit="bytes",
    ),
    "peer_access": Capability(
        ValueKind.BOOL,
        "whether the devices that one case can get together can all read and write each other's memory",
        "NVML's P2P status of each pair, in both directions",
        f"{_NO_CONTEXT} on any of them",
        detectors.detect_peer_access,
    ),
    "peer_links": Capability(
        ValueKind.TEXT,
        "by which links the pairs of devices that one case can get together reach each other: the kinds among nvlink, "
        "pcie and refused, in this order, such as nvlink, or nvlink, refused; none on the simulated CUDA",
        "NVML's P2P status of each pair",
        f"{_NO_CONTEXT} on any of them",
        detectors.detect_peer_links,
    ),
    "nvlink": Capability(
        ValueKind.BOOL,
        "whether the device has an active NVLink",
        "NVML's state of each link",
        _NO_CONTEXT,
        detectors.detect_nvlink,
    ),
    "fabric": Capability(
        ValueKind.BOOL,
        "whether the device has joined the fabric of its NVLink switches, without which collectives of all GPUs fail",
        "NVML's state of the fabric",
        _NO_CONTEXT,
        detectors.detect_fabric,
    ),
    "mig": Capability(
        ValueKind.BOOL,
        "whether the device is a MIG instance",
        "NVML",
        _NO_CONTEXT,
        lambda subject: Detected(subject.device.mig_parent is not None),
    ),
    "ecc": Capability(
        ValueKind.BOOL, "whether ECC is enabled for the device's memory", "NVML", _NO_CONTEXT, detectors.detect_ecc
    ),
    "bf16": Capability(
        ValueKind.BOOL,
        "whether the GPU's tensor cores multiply BF16 (compute capability 8.0 and up); emulation does not count",
        _TENSOR_CORES,
        _NO_CONTEXT,
        detectors.from_architecture(detectors.BF16_FROM),
    ),
    "tf32": Capability(
        ValueKind.BOOL,
        "whether the GPU's tensor cores multiply TF32 (compute capability 8.0 and up)",
        _TENSOR_CORES,
        _NO_CONTEXT,
        detectors.from_architecture(detectors.BF16_FROM),
    ),
    "fp8": Capability(
        ValueKind.BOOL,
        "whether the GPU's tensor cores multiply FP8, E4M3 and E5M2 (compute capability 8.9 and up)",
        _TENSOR_CORES,
        _NO_CONTEXT,
        detectors.from_architecture(detectors.FP8_FROM),
    ),
    "cuda_graphs": Capability(
        ValueKind.BOOL,
        "whether CUDA graphs can be captured and replayed",
        "the kind of the device",
        _NO_CONTEXT,
        lambda subject: Detected(not subject.no_gpu, subject.no_gpu),
    ),
    "cuda_malloc_async": Capability(
        ValueKind.BOOL,
        "whether torch's allocator can use its cudaMallocAsync backend (the device has memory pools)",
        _PROBE,
        _NO_DRIVER,
        detectors.from_driver("cuda_malloc_async"),
    ),
    "expandable_segments": Capability(
        ValueKind.BOOL,
        "whether torch's allocator can use expandable segments (the device has virtual memory management)",
        _PROBE,
        _NO_DRIVER,
        detectors.from_driver("expandable_segments"),
    ),
    "nvml": Capability(ValueKind.BOOL, "whether NVML answers", "nvmlInit", _NO_CONTEXT, detectors.detect_nvml),
    "driver": Capability(
        ValueKind.VERSION,
        "the NVIDIA driver",
        "NVML",
        _NO_CONTEXT,
        lambda subject: detectors.from_nvml(subject.inventory.driver, subject.inventory),
    ),
    "cuda_driver": Capability(
        ValueKind.VERSION,
        "the newest CUDA that the driver supports",
        "NVML",
        _NO_CONTEXT,
        lambda subject: detectors.from_nvml(subject.inventory.cuda_driver, subject.inventory),
    ),
    "cuda": Capability(
        ValueKind.VERSION,
        "the CUDA runtime that torch is built for",
        "torch/version.py, read as text",
        _NO_IMPORT,
        lambda _: software.torch_cuda_version(),
    ),
    "rocm": Capability(
        ValueKind.VERSION,
        "the HIP that torch is built for",
        "torch/version.py, read as text",
        _NO_IMPORT,
        lambda _: software.torch_rocm_version(),
    ),
    "cudnn": Capability(
        ValueKind.VERSION,
        "the cuDNN installed for torch",
        _LIBRARY.format(name="nvidia-cudnn-cu<major>"),
        _NO_LOADING,
        lambda subject: detectors.detect_library("cudnn", subject),
    ),
    "cublas": Capability(
        ValueKind.VERSION,
        "the cuBLAS installed for torch",
        _LIBRARY.format(name="nvidia-cublas-cu<major> or nvidia-cublas"),
        _NO_LOADING,
        lambda subject: detectors.detect_library("cublas", subject),
    ),
    "nccl": Capability(
        ValueKind.VERSION,
        "the NCCL installed for torch",
        _LIBRARY.format(name="nvidia-nccl-cu<major>"),
        _NO_LOADING,
        lambda subject: detectors.detect_library("nccl", subject),
    ),
    "torch": Capability(
        ValueKind.VERSION, "PyTorch", "metadata of the distribution", _NO_IMPORT, lambda _: software.torch_version()
    ),
    "torchvision": Capability(
        ValueKind.VERSION,
        "torchvision",
        "metadata of the distribution",
        _NO_IMPORT,
        lambda _: software.distribution_version("torchvision"),
    ),
    "triton": Capability(
        ValueKind.VERSION, "Triton", "metadata of the distribution", _NO_IMPORT, lambda _: software.triton_version()
    ),
    "cuda_toolkit": Capability(
        ValueKind.BOOL,
        "whether torch finds a CUDA toolkit, which compiling a kernel from its text needs",
        "$CUDA_HOME, $CUDA_PATH, nvcc in $PATH, /usr/local/cuda",
        _NO_IMPORT,
        lambda _: software.find_cuda_toolkit(),
    ),
    "cpp_compiler": Capability(
        ValueKind.VERSION,
        "the C++ compiler that torch would run",
        "--version of $CXX, or of c++, g++ or clang++ in $PATH",
        "compiling anything",
        lambda _: software.cpp_compiler_version(),
    ),
    "cpp_extensions": Capability(
        ValueKind.BOOL,
        "whether torch can build extensions in C++",
        "the C++ compiler, ninja in $PATH, and Python.h",
        "compiling anything",
        lambda _: software.can_build_cpp_extensions(),
    ),
    "cpu_bf16": Capability(
        ValueKind.BOOL,
        "whether torch can multiply and convolve BF16 on the host's processor without a crash; results are not checked",
        "the probe does both, in a separate process with a time limit",
        "an illegal instruction in this process",
        lambda subject: subject.prober.ask(Question.PROCESSOR)["cpu_bf16"],
    ),
    "python": Capability(
        ValueKind.VERSION,
        "the Python interpreter",
        "sys.version_info",
        _NOTHING_RUN,
        lambda _: Detected(tuple(sys.version_info[:3])),
    ),
    "numpy": Capability(
        ValueKind.VERSION,
        "NumPy",
        "metadata of the distribution",
        _NO_IMPORT,
        lambda _: software.distribution_version("numpy"),
    ),
    "platform": Capability(
        ValueKind.TEXT,
        "operating system and processor, such as linux-x86_64",
        "sys.platform and uname",
        _NOTHING_RUN,
        lambda _: Detected(f"{sys.platform}-{os.uname().machine}"),
    ),
}


# The capabilities of one device of this machine


class Capabilities(Mapping[str, Value | None]):
    """The value of each capability of `VOCABULARY`; None if absent. Each is detected at its first use.

    Versions are tuples of ints; memory is in bytes. `finding` and `describe` give the reason for an absence.
    """

    __slots__ = ("_findings", "_probes")

    def __init__(self, probes: Mapping[str, Callable[[], Detected]]) -> None:
        self._probes = dict(probes)
        self._findings: dict[str, Detected] = {}

    def finding(self, name: str) -> Detected:
        """Return the value of `name` and its detail, the same at every call. Raise KeyError for an unknown name."""
        if name not in self._findings:
            self._findings[name] = self._probes[name]()
        return self._findings[name]

    def describe(self, name: str) -> str:
        """Return the finding as text: ``8.0GiB``, ``1 (cpu)``, ``absent (torch is not installed)``."""
        finding = self.finding(name)
        words = "absent" if finding.value is None else format_capability(name, finding.value)
        return f"{words} ({finding.detail})" if finding.detail else words

    def __getitem__(self, name: str) -> Value | None:
        return self.finding(name).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._probes)

    def __len__(self) -> int:
        return len(self._probes)


def detect_capabilities(inventory: Inventory, device: Device, cache: Path | None = None) -> Capabilities:
    """Return the capabilities of `device`, a device of the inventory. Detect nothing yet, so the call is cheap.

    `cache` is a folder that the processes of the run share. It keeps the answers of probe processes.
    """
    subject = DetectionSubject(inventory, device, Prober(device, driver=inventory.driver, cache=cache))

    def probe(capability: Capability) -> Callable[[], Detected]:
        return lambda: capability.find(subject)

    declared = device.backend.capabilities
    own = {name: functools.partial(Detected, value, "declared by its registration") for name, value in declared.items()}
    return Capabilities({name: own.get(name) or probe(capability) for name, capability in VOCABULARY.items()})


def format_capability(name: str, value: Value) -> str:
    """Return a value of capability `name` as text: ``2.13.0``, ``8.0GiB``, ``True``."""
    if isinstance(value, tuple):
        return ".".join(str(part) for part in value)
    if VOCABULARY[name].kind is ValueKind.BYTES and isinstance(value, int):
        return format_bytes(value)
    return str(value)
