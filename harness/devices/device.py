"""Devices that a case can run on, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.backends import table
from harness.backends.backend import Backend, DeviceKind
from harness.backends.table import BACKENDS
from harness.core.errors import HarnessError


class DeviceError(HarnessError):
    """There is no device of the requested kind, or it cannot be used."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, a MIG instance, a registered device, a software device (including a simulated GPU), or the CPU.

    `uuid` is its name everywhere (journal, leases, ``CUDA_VISIBLE_DEVICES``): ``GPU-…``, ``MIG-…``, ``SOFT-…`` or
    ``cpu``. `index` is NVML's index of the physical GPU, or the index of the software device; None for the CPU. Memory
    is in bytes. `graphics_clock` and `memory_clock` are those that are set for applications, in MHz, `power_limit` is
    in watts: they determine how fast cases run. Values that could not be read are None, and `fault` holds the reason. A
    lost GPU still has an entry, so that it is reported. `mask_entry` is its name in the mask of its kind, if that is
    not the UUID. `observed`: facts that its kind does not determine, by capability (`harness.devices.census`);
    None is unknown.
    """

    uuid: str
    kind: DeviceKind
    name: str
    index: int | None = None
    memory: int | None = None
    compute_capability: tuple[int, int] | None = None
    pci_bus_id: str | None = None
    ecc: bool | None = None
    graphics_clock: int | None = None
    memory_clock: int | None = None
    power_limit: int | None = None
    mig_parent: str | None = None
    fault: str | None = None
    mask_entry: str | None = None
    observed: Mapping[str, bool | None] = field(default_factory=dict, hash=False)

    @property
    def backend(self) -> Backend:
        """The backend of its kind."""
        return BACKENDS[self.kind]


CPU = Device(uuid="cpu", kind=table.CPU.kind, name=table.CPU.label)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices of this machine, found without initialising CUDA.

    `devices`: the devices that the run may use, after an outer ``CUDA_VISIBLE_DEVICES``. Without a GPU this is only the
    CPU. A run on software devices has only the software devices. `hidden`: devices that are present but masked.
    `driver` and `cuda_driver` are version strings, None without NVML. `nvml_error` says why NVML did not answer.
    """

    devices: tuple[Device, ...]
    hidden: tuple[Device, ...] = ()
    driver: str | None = None
    cuda_driver: str | None = None
    nvml_error: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The usable GPUs and MIG instances, in order."""
        return tuple(device for device in self.devices if device.backend.hardware and device.fault is None)

    @property
    def accelerators(self) -> tuple[Device, ...]:
        """The usable devices that are not the CPU: GPUs, or software devices."""
        return tuple(device for device in self.devices if device.backend.accelerator and device.fault is None)

    @property
    def separate(self) -> tuple[Device, ...]:
        """The usable devices that workers can have for themselves.

        Without a mask, every process computes on the first device that it sees.
        """
        return self.usable if self.usable[0].backend.mask or not self.accelerators else self.usable[:1]

    @property
    def usable(self) -> tuple[Device, ...]:
        """The devices for cases: the usable GPUs or software devices, or the CPU if there are none."""
        return self.accelerators or (CPU,)


# The result of detecting one capability

Version = tuple[int, ...]
Value = str | bool | int | Version


@dataclass(frozen=True, slots=True)
class Detected:
    """A value, or None for absent. `detail` says why the value is absent or False, or gives further information."""

    value: Value | None
    detail: str = ""

    @property
    def present(self) -> bool:
        """Whether the value is neither absent nor False."""
        return self.value is not None and self.value is not False
