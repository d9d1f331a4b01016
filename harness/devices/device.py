"""Devices that a case can run on, and the masks that show them to a process. Plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.backends import table
from harness.backends.backend import Backend, DeviceKind
from harness.backends.cuda import MASK
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


# Convert between values of ``CUDA_VISIBLE_DEVICES`` and the devices that they show. Plain values only.
#
# The rules come from the CUDA programming guide (appendix on environment variables) and, for MIG, from the MIG user
# guide (chapter on device enumeration).

ORDER = "CUDA_DEVICE_ORDER"

# Longer numbers name no GPU, and Python refuses to convert very long ones to an int.
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class VisibleDevices:
    """The result of a mask: `visible` devices in the mask's order, `hidden` devices in NVML's order, and `notes`."""

    visible: tuple[Device, ...]
    hidden: tuple[Device, ...] = ()
    notes: tuple[str, ...] = ()


def apply_visible_mask(devices: Sequence[Device], environ: Mapping[str, str]) -> VisibleDevices:
    """Apply the mask in `environ` to all `devices` of a machine, given in NVML's order.

    - Not set: all devices are visible. Empty or ``-1``: no device is visible.
    - Otherwise: a list of indices, UUIDs, and UUID prefixes that match exactly one GPU or instance, with commas. The
      order is kept. The list ends at the first invalid entry. A device that is named twice hides all devices.
    - The index or UUID of a GPU in MIG mode shows the first of its instances, as in CUDA.
    - ``MIG-GPU-<uuid>/<gi>/<ci>`` is valid only with drivers before R470, whose NVML reports instances by that name.
      Later drivers report a UUID for each instance, and the old name is an invalid entry.
    """
    mask = environ.get(MASK)
    if mask is None:
        return VisibleDevices(visible=tuple(devices))
    entries = [entry.strip() for entry in mask.split(",")]
    if entries in ([""], ["-1"]):
        remarks = ["hides every GPU"] if devices else []
        return _selection((), devices, mask, remarks)

    visible: list[Device] = []
    remarks = []
    for entry in entries:
        device = _find(entry, devices)
        if isinstance(device, str):
            remarks.append(f"entry {entry!r} {device}; this entry and all later entries are ignored")
            break
        if device in visible:
            remarks.append(f"entry {entry!r} names {device.uuid} a second time, which hides every GPU")
            visible.clear()
            break
        visible.append(device)
    if doubt := _doubt_about_indices(entries, devices, environ):
        remarks.append(doubt)
    return _selection(visible, devices, mask, remarks)


def mask_for(devices: Sequence[Device]) -> str:
    """Return the value of ``CUDA_VISIBLE_DEVICES`` that shows exactly `devices`, in their order, by UUID.

    For the CPU alone, and for software devices, the value is empty, which hides every GPU. Raise ValueError for
    devices that one process cannot use together (two MIG instances, an instance and a GPU, devices of two kinds, the
    CPU twice) and for a device with a fault.
    """
    if faulty := next((device for device in devices if device.fault is not None), None):
        raise ValueError(f"device {faulty.uuid} cannot be used because it has a fault: {faulty.fault}")
    kinds = {device.kind for device in devices}
    if len(kinds) > 1 or (
        len(devices) > 1 and (not devices[0].backend.accelerator or any(d.mig_parent is not None for d in devices))
    ):
        together = ", ".join(device.uuid for device in devices)
        raise ValueError(
            f"one process cannot use these devices together: {together}; "
            "several devices must all be whole GPUs, or all software devices"
        )
    return ",".join(device.uuid for device in devices if device.backend.mask == MASK)


def masks_for(devices: Sequence[Device]) -> dict[str, str]:
    """Return the variables and values that show exactly `devices`: GPUs, or software devices and no GPU.

    Raise ValueError; see `mask_for`.
    """
    masks = {MASK: mask_for(devices)}
    for backend in BACKENDS.values():
        shown = ",".join(device.mask_entry or device.uuid for device in devices if device.kind == backend.kind)
        if shown and backend.mask is not None:
            masks[backend.mask] = shown
    return masks


def combinable_devices(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the largest subset of `devices` that one process can use together; see `mask_for`.

    CUDA shows a process at most one MIG instance, and then no whole GPU. The result is therefore all whole GPUs without
    a fault, or all software devices. If there are none, it is the first MIG instance or the CPU.
    """
    usable = [device for device in devices if device.fault is None]
    whole = tuple(device for device in usable if device.backend.accelerator and device.mig_parent is None)
    return whole or tuple(usable[:1])


def _selection(
    visible: Sequence[Device], devices: Sequence[Device], mask: str, remarks: Sequence[str]
) -> VisibleDevices:
    hidden = tuple(device for device in devices if device not in visible)
    return VisibleDevices(tuple(visible), hidden, tuple(f"{MASK}={mask!r}: {remark}" for remark in remarks))


def _is_index(entry: str) -> bool:
    return entry.isascii() and entry.isdigit() and len(entry) <= _MOST_DIGITS


def _find(entry: str, devices: Sequence[Device]) -> Device | str:
    """Return the device that `entry` names, or a text that says why it names none."""
    if _is_index(entry):
        return next((device for device in devices if device.index == int(entry)), "is the index of no GPU")
    if not entry.startswith(("GPU-", "MIG-")):
        return "is neither an index nor a UUID"
    if exact := next((device for device in devices if entry in (device.uuid, device.mig_parent)), None):
        return exact
    # A prefix of a GPU's UUID matches each of its instances, but they count as one GPU.
    fits: dict[str, Device] = {}
    for device in devices:
        for uuid in (device.uuid, device.mig_parent):
            if uuid is not None and uuid.startswith(entry):
                fits.setdefault(uuid, device)
    if len(fits) > 1:
        return f"is a prefix of {len(fits)} UUIDs"
    return next(iter(fits.values()), "is the UUID of no device")


def _doubt_about_indices(entries: Sequence[str], devices: Sequence[Device], environ: Mapping[str, str]) -> str | None:
    """Return why CUDA and NVML may disagree on an index in the mask. None if they agree.

    NVML counts in PCI bus order.
    """
    if not any(_is_index(entry) for entry in entries):
        return None
    if fault := next((device for device in devices if device.fault is not None), None):
        return f"indices are uncertain because {fault.uuid} has a fault; name devices by UUID"
    models = {device.name for device in devices if device.mig_parent is None}
    if len(models) > 1 and environ.get(ORDER) != "PCI_BUS_ID":
        return (
            f"indices are uncertain because there are {len(models)} GPU models and CUDA counts the fastest GPU first; "
            f"name devices by UUID, or set {ORDER}=PCI_BUS_ID"
        )
    return None
