"""The devices of this machine, from NVML. Initialises neither CUDA nor torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pynvml

from harness.backends import cuda
from harness.devices.call_thread import StuckError, call_nvml
from harness.devices.device import CPU, Device, DeviceError, Inventory, apply_visible_mask

T = TypeVar("T")

# Drivers before R470 name MIG instances after their GPU: MIG-GPU-<uuid>/<gpu instance>/<compute instance>.
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]+(/\d+/\d+)?")

# NVML statuses for a feature that this device or driver does not have: a fact about the device, not a fault.
_NOT_OFFERED = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})


def discover_devices(environ: Mapping[str, str] | None = None) -> Inventory:
    """Return every device of this machine, with the outer ``CUDA_VISIBLE_DEVICES`` of `environ` applied.

    `environ` defaults to ``os.environ``. The CPU is the device if there is no NVML or no GPU, or if every GPU is hidden
    or at fault. Errors of a device or driver are not raised: they are in `Inventory.nvml_error`, `Inventory.notes` and
    `Device.fault`. NVML is initialised once and shut down before the return.
    """
    try:
        survey = call_nvml(_survey)
    except StuckError as error:
        survey = _Survey(error=f"NVML does not answer: {error}")
    selection = apply_visible_mask(survey.devices, os.environ if environ is None else environ)
    usable = any(device.fault is None for device in selection.visible)
    return Inventory(
        devices=selection.visible if usable else (*selection.visible, CPU),
        hidden=selection.hidden,
        driver=survey.driver,
        cuda_driver=survey.cuda_driver,
        nvml_error=survey.error,
        notes=(*survey.notes, *selection.notes),
    )


def gpu_inventory(environ: Mapping[str, str]) -> Inventory:
    """Return the inventory of a run that must have a GPU. Raise DeviceError if no GPU is usable."""
    inventory = discover_devices(environ)
    if not inventory.gpus:
        raise DeviceError(
            f"--device=cuda: there is no usable GPU ({why_no_gpu(inventory)}); repair it, or use --device=cpu"
        )
    return inventory


def cpu_inventory(environ: Mapping[str, str]) -> Inventory:
    """Return the inventory of a run on the CPU: all GPUs are hidden."""
    return discover_devices({**environ, cuda.MASK: ""})


def why_no_gpu(inventory: Inventory) -> str:
    """Return why an inventory has no usable GPU."""
    sick = [f"{device.uuid}: {device.fault}" for device in inventory.devices if device.fault is not None]
    hidden = [f"{len(inventory.hidden)} hidden by {cuda.MASK}"] if inventory.hidden else []
    return "; ".join([*([inventory.nvml_error] if inventory.nvml_error else []), *sick, *hidden]) or "NVML finds none"


@dataclass(frozen=True, slots=True)
class _Survey:
    """NVML's answers, before any mask is applied."""

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
            encoded = ask("CUDA driver version", pynvml.nvmlSystemGetCudaDriverVersion)
            return _Survey(
                devices=tuple(device for index in range(pynvml.nvmlDeviceGetCount()) for device in _gpu(index)),
                driver=None if driver is None else _printable(driver),
                # 12080 is 12.8
                cuda_driver=None if encoded is None else f"{encoded // 1000}.{encoded % 1000 // 10}",
                notes=tuple(ask.faults),
            )
    except pynvml.NVMLError as error:
        return _Survey(error=f"NVML does not answer: {_printable(str(error))}")


@contextmanager
def _nvml() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


@dataclass(slots=True)
class _Questions:
    """Calls NVML. A call that fails returns None.

    The failure is a fault unless NVML says that the call is not supported.
    """

    faults: list[str] = field(default_factory=list)

    def __call__(self, query: str, call: Callable[..., T], *arguments: object) -> T | None:
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            if error.value not in _NOT_OFFERED:
                self.faults.append(f"{query}: {_printable(str(error))}")
        except UnicodeDecodeError as error:
            self.faults.append(f"{query}: NVML's text is not utf-8 ({error.reason})")
        return None

    def text(self, query: str, call: Callable[..., str], handle: object) -> str | None:
        answer = self(query, call, handle)
        return None if answer is None else _printable(answer)

    def uuid(self, handle: object) -> str | None:
        """Return the UUID. A device cannot be used without one, so here "not supported" is a fault too."""
        answer = self.text("uuid", pynvml.nvmlDeviceGetUUID, handle)
        if answer is not None and _UUID.fullmatch(answer):
            return answer
        self.faults.append(f"uuid: {answer!r} is not of the form GPU-… or MIG-…" if answer else "uuid: NVML has none")
        return None

    def memory(self, handle: object) -> int | None:
        answer = self("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
        return None if answer is None else int(answer.total)

    @property
    def fault(self) -> str | None:
        """The first fault. A lost GPU gives the same answer to every later call."""
        return self.faults[0] if self.faults else None


def _gpu(index: int) -> tuple[Device, ...]:
    """Return the GPU at `index`, or its instances if MIG mode is on."""
    ask = _Questions()
    handle = ask("handle", pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        fault = ask.fault or "handle: NVML has none"
        return (
            Device(uuid=_placeholder_uuid(index), kind=cuda.BACKEND.kind, name="unknown GPU", index=index, fault=fault),
        )
    uuid = ask.uuid(handle)
    name = ask.text("name", pynvml.nvmlDeviceGetName, handle)
    memory = ask.memory(handle)
    compute_capability = ask("compute capability", pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    pci_bus_id = ask.text("PCI bus id", _pci_bus_id, handle)
    ecc = ask("ECC mode", pynvml.nvmlDeviceGetCurrentEccMode, handle)
    mig = ask("MIG mode", pynvml.nvmlDeviceGetMigMode, handle)
    graphics_clock, memory_clock, power_limit = _speed(handle)
    gpu = Device(
        uuid=uuid or _placeholder_uuid(index),
        kind=cuda.BACKEND.kind,
        name=name or "unknown GPU",
        index=index,
        memory=memory,
        compute_capability=compute_capability,
        pci_bus_id=pci_bus_id,
        ecc=None if ecc is None else ecc == pynvml.NVML_FEATURE_ENABLED,
        graphics_clock=graphics_clock,
        memory_clock=memory_clock,
        power_limit=power_limit,
        fault=ask.fault,
    )
    mig_is_on = mig is not None and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    return _mig_instances(handle, gpu) if mig_is_on else (gpu,)


def _speed(handle: object) -> tuple[int | None, int | None, int | None]:
    """Return the application clocks of graphics and memory in MHz, and the power limit in watts.

    Not all GPUs provide these, and cases can run without them, so a failure here is no fault of the device.
    """
    ask = _Questions()
    clock = pynvml.nvmlDeviceGetApplicationsClock
    milliwatts = ask("power limit", pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return (
        ask("graphics clock", clock, handle, pynvml.NVML_CLOCK_GRAPHICS),
        ask("memory clock", clock, handle, pynvml.NVML_CLOCK_MEM),
        None if milliwatts is None else round(milliwatts / 1000),
    )


def _pci_bus_id(handle: object) -> str:
    bus_id: str | bytes = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return bus_id.decode() if isinstance(bus_id, bytes) else bus_id  # the type depends on pynvml's version


def _mig_instances(handle: object, gpu: Device) -> tuple[Device, ...]:
    """Return the MIG instances of `gpu`. If not all of them could be read, `gpu` itself follows, with a fault."""
    ask = _Questions()
    instances = []
    for slot in range(ask("MIG instances", pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except pynvml.NVMLError_NotFound:
            continue  # there is a slot for every possible instance; most are empty
        except pynvml.NVMLError as error:
            ask.faults.append(f"MIG instance {slot}: {_printable(str(error))}")
            continue
        instances.append(_mig_instance(instance, slot, gpu))
    if instances and not ask.faults:
        return tuple(instances)
    fault = gpu.fault or ask.fault or "MIG mode is on but there is no instance: create one, or disable MIG mode"
    return (*instances, replace(gpu, fault=fault))


def _mig_instance(handle: object, slot: int, gpu: Device) -> Device:
    """Return one instance.

    Bus id, ECC and compute capability are those of its GPU: NVML reports them only for whole GPUs.
    """
    ask = _Questions()
    uuid = ask.uuid(handle)
    name = ask.text("name", pynvml.nvmlDeviceGetName, handle)
    memory = ask.memory(handle)
    return replace(
        gpu,
        uuid=uuid or f"{_placeholder_uuid(gpu.index)}/{slot}",
        name=name or f"{gpu.name} MIG",
        memory=memory,
        mig_parent=gpu.uuid,
        fault=gpu.fault or ask.fault,
    )


def _placeholder_uuid(index: int | None) -> str:
    """Return the name of a GPU without a UUID. No value of ``CUDA_VISIBLE_DEVICES`` looks like it."""
    return f"nvml:{index}"


def _printable(text: str) -> str:
    """Return `text` without unprintable characters.

    A driver may return any text, and terminals, XML and JSON must hold it.
    """
    return "".join(character if character.isprintable() else "�" for character in text)
