"""Detects each capability of one device. The table in `harness.devices.vocabulary` names one function for each."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from harness.devices import host, software
from harness.devices import nvml as nvml_queries
from harness.devices.detected import Detected, Version
from harness.devices.device import Device, Inventory
from harness.devices.probe import Question
from harness.devices.prober import Prober
from harness.devices.visibility import combinable

_BF16_FROM = (8, 0)  # Ampere: the first tensor cores with BF16 and TF32
_ACCELERATOR_GRAPHS_FROM = (2, 13)  # the first torch with torch.accelerator.Graph
_FP8_FROM = (8, 9)  # Ada and Hopper: the first tensor cores with FP8

_SIMULATED = "simulated"
_NOT_REPORTED = "nvml does not report it"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a capability is detected for: a device, its inventory, and the prober for questions to a child process."""

    inventory: Inventory
    device: Device
    prober: Prober

    @property
    def is_cpu(self) -> bool:
        return not self.device.backend.accelerator

    @property
    def no_gpu(self) -> str:
        """Why the device has no GPU features; empty for a GPU."""
        return self.device.backend.no_gpu

    @property
    def simulated(self) -> bool:
        """Whether the device is a simulated GPU: it has what a GPU has, and no driver serves it."""
        return self.device.backend.software and not self.no_gpu

    @property
    def together(self) -> tuple[Device, ...]:
        """The devices that one case on this device can get together."""
        group = combinable(self.inventory.accelerators)
        return group if self.device in group else (self.device,)


def kind(subject: Subject) -> Detected:
    return Detected(subject.device.kind)


def model(subject: Subject) -> Detected:
    if not subject.is_cpu:
        return Detected(subject.device.name)
    name = host.processor()
    return Detected(name, "" if name else "not in /proc/cpuinfo")


def devices(subject: Subject) -> Detected:
    if subject.is_cpu:
        return Detected(1, "cpu")
    together = combinable(subject.inventory.accelerators)
    limit = "; a process sees only one mig instance" if any(gpu.mig_parent for gpu in together) else ""
    return Detected(len(together), f"{subject.device.kind}{limit}")


def accelerator(subject: Subject) -> Detected:
    """torch serves one kind of accelerator: that of its build, or a loaded backend, as for software devices."""
    if subject.device.backend.software:
        return Detected(True)
    if subject.is_cpu:
        return Detected(False, subject.no_gpu)
    built = software.cuda()
    return Detected(True) if built.value is not None else Detected(False, built.detail)


def accelerator_graphs(subject: Subject) -> Detected:
    if subject.is_cpu:
        return Detected(False, subject.no_gpu)
    if subject.no_gpu:  # the software device brings them along, for a torch that has them
        release = software.torch().value
        return Detected(isinstance(release, tuple) and release >= _ACCELERATOR_GRAPHS_FROM)
    return software.cuda_accelerator_graphs()


def silicon(subject: Subject) -> Detected:
    backend = subject.device.backend
    return Detected(backend.hardware, backend.no_gpu or backend.label)


def device_count(subject: Subject) -> Detected:
    return Detected(1 if subject.is_cpu else len(subject.inventory.accelerators), subject.device.kind)


def compute_capability(subject: Subject) -> Detected:
    if subject.no_gpu:
        return Detected(None, subject.no_gpu)
    return Detected(subject.device.compute_capability, "" if subject.device.compute_capability else _NOT_REPORTED)


def memory(subject: Subject) -> Detected:
    if subject.is_cpu:
        return Detected(host.memory(), "of the host")
    return Detected(subject.device.memory, "" if subject.device.memory is not None else _NOT_REPORTED)


def free_memory(subject: Subject) -> Detected:
    if subject.device.backend.software:
        return Detected(subject.device.memory, "of a software device; each process has its own")
    if not subject.is_cpu:
        return nvml_queries.free_memory(subject.device)
    free = host.free_memory()
    return Detected(free, "of the host" if free is not None else "not in /proc/meminfo")


def peer_access(subject: Subject) -> Detected:
    if subject.no_gpu:
        return Detected(False, subject.no_gpu)
    if subject.device.mig_parent is not None:
        return Detected(False, "a process sees only one mig instance")
    if len(subject.together) < 2:
        return Detected(False, "there is only one gpu")
    if subject.simulated:
        return Detected(True, _SIMULATED)
    return nvml_queries.peer_access(subject.together)


def nvlink(subject: Subject) -> Detected:
    if subject.no_gpu:
        return Detected(False, subject.no_gpu)
    if subject.device.mig_parent is not None:
        return Detected(False, "the device is a mig instance, and these do not use nvlink")
    if subject.simulated:
        return Detected(False, _SIMULATED)
    return nvml_queries.nvlink(subject.device)


def mig(subject: Subject) -> Detected:
    return Detected(subject.device.mig_parent is not None)


def ecc(subject: Subject) -> Detected:
    if subject.no_gpu:
        return Detected(None, subject.no_gpu)
    return Detected(subject.device.ecc, "" if subject.device.ecc is not None else "the device has no ecc mode")


def bf16(subject: Subject) -> Detected:
    return _from_architecture(subject, _BF16_FROM)


def tf32(subject: Subject) -> Detected:
    return _from_architecture(subject, _BF16_FROM)


def fp8(subject: Subject) -> Detected:
    return _from_architecture(subject, _FP8_FROM)


def _from_architecture(subject: Subject, first: Version) -> Detected:
    if subject.no_gpu:
        return Detected(False, subject.no_gpu)
    own = subject.device.compute_capability
    if own is None:
        return Detected(None, "nvml does not report the compute capability")
    if own >= first:
        return Detected(True)
    return Detected(False, f"compute capability {_dotted(own)}, needs {_dotted(first)}")


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def cuda_graphs(subject: Subject) -> Detected:
    return Detected(not subject.no_gpu, subject.no_gpu)


def cuda_malloc_async(subject: Subject) -> Detected:
    return _from_driver(subject, "cuda_malloc_async")


def expandable_segments(subject: Subject) -> Detected:
    return _from_driver(subject, "expandable_segments")


def _from_driver(subject: Subject, name: str) -> Detected:
    if subject.no_gpu:
        return Detected(False, subject.no_gpu)
    if (built := software.cuda()).value is None:  # only torch's CUDA allocator would use it
        return Detected(False, built.detail)
    if subject.simulated:
        return Detected(True, _SIMULATED)
    return subject.prober.ask(Question.DRIVER)[name]


def nvml(subject: Subject) -> Detected:
    return Detected(subject.inventory.nvml_error is None, subject.inventory.nvml_error or "")


def driver(subject: Subject) -> Detected:
    return _from_nvml(subject.inventory.driver, subject.inventory)


def cuda_driver(subject: Subject) -> Detected:
    return _from_nvml(subject.inventory.cuda_driver, subject.inventory)


def _from_nvml(version: str | None, inventory: Inventory) -> Detected:
    found = None if version is None else software.release(version)
    return Detected(found, "" if found else inventory.nvml_error or _NOT_REPORTED)


def cuda(_: Subject) -> Detected:
    return software.cuda()


def rocm(_: Subject) -> Detected:
    return software.rocm()


def cudnn(subject: Subject) -> Detected:
    return _library(subject, "cudnn", software.cudnn())


def cublas(subject: Subject) -> Detected:
    return _library(subject, "cublas", software.cublas())


def nccl(subject: Subject) -> Detected:
    return _library(subject, "nccl", software.nccl())


def _library(subject: Subject, name: str, installed: Detected) -> Detected:
    """The version from metadata; else from the library itself, if there is a GPU and torch is built for CUDA."""
    if installed.value is not None or subject.no_gpu or subject.simulated or software.cuda().value is None:
        return installed
    return subject.prober.ask(Question.LIBRARIES)[name]


def torch(_: Subject) -> Detected:
    return software.torch()


def torchvision(_: Subject) -> Detected:
    return software.torchvision()


def triton(_: Subject) -> Detected:
    return software.triton()


def cuda_toolkit(_: Subject) -> Detected:
    return software.cuda_toolkit()


def cpp_compiler(_: Subject) -> Detected:
    return software.cpp_compiler()


def cpp_extensions(_: Subject) -> Detected:
    return software.cpp_extensions()


def cpu_bf16(subject: Subject) -> Detected:
    return subject.prober.ask(Question.PROCESSOR)["cpu_bf16"]


def python(_: Subject) -> Detected:
    return software.python()


def numpy(_: Subject) -> Detected:
    return software.numpy()


def platform(_: Subject) -> Detected:
    return Detected(f"{sys.platform}-{os.uname().machine}")
