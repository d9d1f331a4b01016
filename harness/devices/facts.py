"""How each capability of one device is found. The table in `harness.devices.vocabulary` names one function for each."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from harness.devices import host, software
from harness.devices import nvml as asked
from harness.devices.detected import Detected, Version
from harness.devices.device import Device, Inventory
from harness.devices.probe import Question
from harness.devices.prober import Prober
from harness.devices.visibility import combinable

_BF16_FROM = (8, 0)  # Ampere, the first with BF16 and TF32 in its tensor cores
_FP8_FROM = (8, 9)  # Ada, with Hopper the first with FP8

_THE_CPU = "the device is the cpu"
_SOFTWARE = "the device is a software device"
_NOT_TOLD = "nvml does not tell it"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a capability is asked of: a device, the inventory it is of, and who asks what only a child process may."""

    inventory: Inventory
    device: Device
    prober: Prober

    @property
    def is_cpu(self) -> bool:
        return not self.device.backend.accelerator

    @property
    def no_gpu(self) -> str:
        """Why the device has nothing that only a GPU has; an empty text for a GPU."""
        return self.device.backend.no_gpu

    @property
    def together(self) -> tuple[Device, ...]:
        """The devices of which a case on this one can be given several."""
        group = combinable(self.inventory.accelerators)
        return group if self.device in group else (self.device,)


def kind(subject: Subject) -> Detected:
    return Detected(subject.device.kind)


def model(subject: Subject) -> Detected:
    if not subject.is_cpu:
        return Detected(subject.device.name)
    name = host.processor()
    return Detected(name, "" if name else "/proc/cpuinfo does not tell it")


def devices(subject: Subject) -> Detected:
    if subject.is_cpu:
        return Detected(1, "cpu")
    together = combinable(subject.inventory.accelerators)
    limit = ", for a process sees one mig instance only" if any(gpu.mig_parent for gpu in together) else ""
    return Detected(len(together), f"{subject.device.kind}{limit}")


def accelerator(subject: Subject) -> Detected:
    """torch serves one kind of accelerator: that of its build, unless a backend was loaded, as for software devices."""
    if subject.device.backend.software:
        return Detected(True)
    if subject.is_cpu:
        return Detected(False, subject.no_gpu)
    built = software.cuda()
    return Detected(True) if built.value is not None else Detected(False, built.detail)


def device_count(subject: Subject) -> Detected:
    return Detected(1 if subject.is_cpu else len(subject.inventory.accelerators), subject.device.kind)


def compute_capability(subject: Subject) -> Detected:
    if subject.no_gpu:
        return Detected(None, subject.no_gpu)
    return Detected(subject.device.compute_capability, "" if subject.device.compute_capability else _NOT_TOLD)


def memory(subject: Subject) -> Detected:
    if subject.is_cpu:
        return Detected(host.memory(), "of the host")
    return Detected(subject.device.memory, "" if subject.device.memory is not None else _NOT_TOLD)


def free_memory(subject: Subject) -> Detected:
    if subject.device.backend.software:
        return Detected(subject.device.memory, "of a software device, which each process has for itself")
    if not subject.is_cpu:
        return asked.free_memory(subject.device)
    free = host.free_memory()
    return Detected(free, "of the host" if free is not None else "/proc/meminfo does not tell it")


def peer_access(subject: Subject) -> Detected:
    if subject.no_gpu:
        return Detected(False, subject.no_gpu)
    if subject.device.mig_parent is not None:
        return Detected(False, "a process sees one mig instance only")
    if len(subject.together) < 2:
        return Detected(False, "there is one gpu only")
    return asked.peer_access(subject.together)


def nvlink(subject: Subject) -> Detected:
    if subject.no_gpu:
        return Detected(False, subject.no_gpu)
    if subject.device.mig_parent is not None:
        return Detected(False, "the device is a mig instance, which uses none")
    return asked.nvlink(subject.device)


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
        return Detected(None, f"it follows from the compute capability, and {_NOT_TOLD}")
    if own >= first:
        return Detected(True)
    return Detected(False, f"compute capability {_dotted(own)}, and it began with {_dotted(first)}")


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def cuda_graphs(subject: Subject) -> Detected:
    return Detected(not subject.no_gpu, subject.no_gpu)


def cuda_malloc_async(subject: Subject) -> Detected:
    return _of_the_allocator(subject, "cuda_malloc_async")


def expandable_segments(subject: Subject) -> Detected:
    return _of_the_allocator(subject, "expandable_segments")


def _of_the_allocator(subject: Subject, name: str) -> Detected:
    if subject.no_gpu:
        return Detected(False, subject.no_gpu)
    if (built := software.cuda()).value is None:  # torch's allocator is what would use it
        return Detected(False, built.detail)
    return subject.prober.ask(Question.DRIVER)[name]


def nvml(subject: Subject) -> Detected:
    return Detected(subject.inventory.nvml_error is None, subject.inventory.nvml_error or "")


def driver(subject: Subject) -> Detected:
    return _told_by_nvml(subject.inventory.driver, subject.inventory)


def cuda_driver(subject: Subject) -> Detected:
    return _told_by_nvml(subject.inventory.cuda_driver, subject.inventory)


def _told_by_nvml(version: str | None, inventory: Inventory) -> Detected:
    found = None if version is None else software.release(version)
    return Detected(found, "" if found else inventory.nvml_error or _NOT_TOLD)


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
    """What metadata says, or else the library itself, where a GPU and a torch for it make it worth loading."""
    if installed.value is not None or subject.no_gpu or software.cuda().value is None:
        return installed
    return subject.prober.ask(Question.LIBRARIES)[name]


def torch(_: Subject) -> Detected:
    return software.torch()


def torchvision(_: Subject) -> Detected:
    return software.torchvision()


def triton(_: Subject) -> Detected:
    return software.triton()


def cpp_compiler(_: Subject) -> Detected:
    return software.cpp_compiler()


def cpu_bf16(subject: Subject) -> Detected:
    return subject.prober.ask(Question.PROCESSOR)["cpu_bf16"]


def python(_: Subject) -> Detected:
    return software.python()


def numpy(_: Subject) -> Detected:
    return software.numpy()


def platform(_: Subject) -> Detected:
    return Detected(f"{sys.platform}-{os.uname().machine}")
