"""What devices this machine has, asked of NVML: neither CUDA nor torch is woken by it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pynvml

from harness.backends import cuda
from harness.devices.device import CPU, Device, Inventory
from harness.devices.visibility import select

T = TypeVar("T")

# Drivers before R470 name MIG instances after their GPU: MIG-GPU-<uuid>/<gpu instance>/<compute instance>.
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]+(/\d+/\d+)?")

# NVML's ways to say that this device or driver has no such thing, which is a fact about it and not a fault.
_NOT_OFFERED = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})


def discover(environ: Mapping[str, str] | None = None) -> Inventory:
    """Every device of this machine, with the outer ``CUDA_VISIBLE_DEVICES`` of `environ` applied.

    `environ` is ``os.environ`` unless given. Without NVML, without GPUs, and with every GPU hidden or at fault, the
    CPU is the device. Raises nothing on account of a device or driver: what went wrong stands in
    `Inventory.nvml_error`, `Inventory.notes` and `Device.fault`. NVML is started once and shut down before the return.
    """
    survey = _survey()
    selection = select(survey.devices, os.environ if environ is None else environ)
    usable = any(device.fault is None for device in selection.visible)
    return Inventory(
        devices=selection.visible if usable else (*selection.visible, CPU),
        hidden=selection.hidden,
        driver=survey.driver,
        cuda_driver=survey.cuda_driver,
        nvml_error=survey.error,
        notes=(*survey.notes, *selection.notes),
    )


@dataclass(frozen=True, slots=True)
class _Survey:
    """What NVML answered, before any mask."""

    devices: tuple[Device, ...] = ()
    driver: str | None = None
    cuda_driver: str | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()


def _survey() -> _Survey:
    try:
        with _nvml():
            ask = _Questions()
            driver = ask("driver version", pynvml.nvmlSystemGetDriverVersion)
            encoded = ask("cuda driver version", pynvml.nvmlSystemGetCudaDriverVersion)
            return _Survey(
                devices=tuple(device for index in range(pynvml.nvmlDeviceGetCount()) for device in _gpu(index)),
                driver=None if driver is None else _printable(driver),
                # 12080 is 12.8
                cuda_driver=None if encoded is None else f"{encoded // 1000}.{encoded % 1000 // 10}",
                notes=tuple(ask.faults),
            )
    except pynvml.NVMLError as error:
        return _Survey(error=f"nvml does not answer: {_printable(str(error))}")


@contextmanager
def _nvml() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


@dataclass(slots=True)
class _Questions:
    """Puts questions to NVML. What gets no answer is None, and a fault unless NVML says that there is no such thing."""

    faults: list[str] = field(default_factory=list)

    def __call__(self, what: str, call: Callable[..., T], *arguments: object) -> T | None:
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            if error.value not in _NOT_OFFERED:
                self.faults.append(f"{what}: {_printable(str(error))}")
        except UnicodeDecodeError as error:
            self.faults.append(f"{what}: nvml's text is not utf-8 ({error.reason})")
        return None

    def text(self, what: str, call: Callable[..., str], handle: object) -> str | None:
        answer = self(what, call, handle)
        return None if answer is None else _printable(answer)

    def uuid(self, handle: object) -> str | None:
        """The one fact that a device is of no use without, so that "not supported" is a fault as well."""
        answer = self.text("uuid", pynvml.nvmlDeviceGetUUID, handle)
        if answer is not None and _UUID.fullmatch(answer):
            return answer
        self.faults.append(f"uuid: {answer!r} has not the form GPU-… or MIG-…" if answer else "uuid: nvml tells none")
        return None

    def memory(self, handle: object) -> int | None:
        answer = self("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
        return None if answer is None else int(answer.total)

    @property
    def fault(self) -> str | None:
        """The first: a lost GPU gives the same answer to every question after it."""
        return self.faults[0] if self.faults else None


def _gpu(index: int) -> tuple[Device, ...]:
    """The GPU at `index`; with MIG mode on, its instances in its place."""
    ask = _Questions()
    handle = ask("handle", pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        fault = ask.fault or "handle: nvml gives none"
        return (Device(uuid=_stand_in(index), kind=cuda.BACKEND.kind, name="unknown GPU", index=index, fault=fault),)
    uuid = ask.uuid(handle)
    name = ask.text("name", pynvml.nvmlDeviceGetName, handle)
    memory = ask.memory(handle)
    compute_capability = ask("compute capability", pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    pci_bus_id = ask.text("pci bus id", _pci_bus_id, handle)
    ecc = ask("ecc mode", pynvml.nvmlDeviceGetCurrentEccMode, handle)
    mig = ask("mig mode", pynvml.nvmlDeviceGetMigMode, handle)
    gpu = Device(
        uuid=uuid or _stand_in(index),
        kind=cuda.BACKEND.kind,
        name=name or "unknown GPU",
        index=index,
        memory=memory,
        compute_capability=compute_capability,
        pci_bus_id=pci_bus_id,
        ecc=None if ecc is None else ecc == pynvml.NVML_FEATURE_ENABLED,
        fault=ask.fault,
    )
    mig_is_on = mig is not None and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    return _mig_instances(handle, gpu) if mig_is_on else (gpu,)


def _pci_bus_id(handle: object) -> str:
    bus_id: str | bytes = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return bus_id.decode() if isinstance(bus_id, bytes) else bus_id  # which of the two depends on pynvml's version


def _mig_instances(handle: object, gpu: Device) -> tuple[Device, ...]:
    """The instances `gpu` is cut into, followed by `gpu` itself, at fault, when they could not all be read."""
    ask = _Questions()
    instances = []
    for slot in range(ask("mig instances", pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except pynvml.NVMLError_NotFound:
            continue  # there are as many slots as the GPU could have instances, and most are empty
        except pynvml.NVMLError as error:
            ask.faults.append(f"mig instance {slot}: {_printable(str(error))}")
            continue
        instances.append(_mig_instance(instance, slot, gpu))
    if instances and not ask.faults:
        return tuple(instances)
    fault = gpu.fault or ask.fault or "mig mode is on and there is no instance: create one, or switch the mode off"
    return (*instances, replace(gpu, fault=fault))


def _mig_instance(handle: object, slot: int, gpu: Device) -> Device:
    """One instance. What NVML tells of whole GPUs only (bus id, ECC, compute capability) is its GPU's."""
    ask = _Questions()
    uuid = ask.uuid(handle)
    name = ask.text("name", pynvml.nvmlDeviceGetName, handle)
    memory = ask.memory(handle)
    return replace(
        gpu,
        uuid=uuid or f"{_stand_in(gpu.index)}/{slot}",
        name=name or f"{gpu.name} MIG",
        memory=memory,
        mig_parent=gpu.uuid,
        fault=gpu.fault or ask.fault,
    )


def _stand_in(index: int | None) -> str:
    """What to call a GPU that does not tell its UUID; no value of ``CUDA_VISIBLE_DEVICES`` looks like it."""
    return f"nvml:{index}"


def _printable(text: str) -> str:
    """`text` fit for terminals, XML and JSON, whatever a driver put into it."""
    return "".join(character if character.isprintable() else "�" for character in text)
