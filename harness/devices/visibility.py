"""Which devices a value of ``CUDA_VISIBLE_DEVICES`` shows, and which value shows given devices. Plain values only.

The rules are those of the CUDA programming guide's appendix on environment variables and, for MIG, of the MIG user
guide's chapter on device enumeration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.backends.cuda import MASK
from harness.backends.table import BACKENDS
from harness.devices.device import Device

ORDER = "CUDA_DEVICE_ORDER"

# Longer runs of digits name no GPU, and Python refuses to read some of them as an int.
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Selection:
    """What a mask makes of the devices: `visible` in the mask's order, `hidden` in theirs, `notes` for the reader."""

    visible: tuple[Device, ...]
    hidden: tuple[Device, ...] = ()
    notes: tuple[str, ...] = ()


def select(devices: Sequence[Device], environ: Mapping[str, str]) -> Selection:
    """Apply the mask of `environ` to all `devices` of a machine, in NVML's order.

    - Not set: all are visible. Empty or ``-1``: none.
    - Otherwise a list, separated by commas, of indices, UUIDs, and beginnings of UUIDs that fit one GPU or instance.
      The order is kept. The list ends at its first invalid entry; the same device twice hides everything.
    - An index, or a UUID, of a GPU in MIG mode shows the first of its instances, as CUDA does.
    - ``MIG-GPU-<uuid>/<gi>/<ci>`` is known with drivers before R470 alone, whose NVML reports instances by that name;
      later ones report a UUID for each instance, and the old name is an invalid entry.
    """
    mask = environ.get(MASK)
    if mask is None:
        return Selection(visible=tuple(devices))
    entries = [entry.strip() for entry in mask.split(",")]
    if entries in ([""], ["-1"]):
        remarks = ["hides every GPU"] if devices else []
        return _selection((), devices, mask, remarks)

    visible: list[Device] = []
    remarks = []
    for entry in entries:
        found = _find(entry, devices)
        if isinstance(found, str):
            remarks.append(f"entry {entry!r} {found}; it and what follows it are not visible")
            break
        if found in visible:
            remarks.append(f"entry {entry!r} names {found.uuid} a second time, which hides every GPU")
            visible.clear()
            break
        visible.append(found)
    if doubt := _doubt_about_indices(entries, devices, environ):
        remarks.append(doubt)
    return _selection(visible, devices, mask, remarks)


def mask_for(devices: Sequence[Device]) -> str:
    """The value of ``CUDA_VISIBLE_DEVICES`` that shows exactly `devices`, in their order, by UUID.

    The CPU alone, and software devices, give the empty value, which hides every GPU. Raises ValueError for devices that
    no process can hold together: a second MIG instance, an instance beside a GPU, devices of two kinds, the CPU twice,
    or one that is at fault.
    """
    if faulty := next((device for device in devices if device.fault is not None), None):
        raise ValueError(f"device {faulty.uuid} cannot be bound, it is at fault: {faulty.fault}")
    kinds = {device.kind for device in devices}
    if len(kinds) > 1 or (
        len(devices) > 1 and (not devices[0].backend.accelerator or any(d.mig_parent is not None for d in devices))
    ):
        together = ", ".join(device.uuid for device in devices)
        raise ValueError(
            f"no process can hold these devices together: {together}; "
            "several must all be whole GPUs or software devices"
        )
    return ",".join(device.uuid for device in devices if device.backend.mask == MASK)


def masks_for(devices: Sequence[Device]) -> dict[str, str]:
    """The variables, with their values, that show exactly `devices`: GPUs, or software devices and no GPU.

    Raises ValueError, see `mask_for`.
    """
    masks = {MASK: mask_for(devices)}
    for backend in BACKENDS.values():
        shown = ",".join(device.uuid for device in devices if device.kind == backend.kind)
        if shown and backend.mask is not None:
            masks[backend.mask] = shown
    return masks


def combinable(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The largest part of `devices` that one process can hold together, see `mask_for`.

    CUDA shows a process one MIG instance at most, and no whole GPU beside it, so these are the whole GPUs that are not
    at fault, or the software devices; where there are none, the first instance or the CPU.
    """
    usable = [device for device in devices if device.fault is None]
    whole = tuple(device for device in usable if device.backend.accelerator and device.mig_parent is None)
    return whole or tuple(usable[:1])


def _selection(visible: Sequence[Device], devices: Sequence[Device], mask: str, remarks: Sequence[str]) -> Selection:
    hidden = tuple(device for device in devices if device not in visible)
    return Selection(tuple(visible), hidden, tuple(f"{MASK}={mask!r}: {remark}" for remark in remarks))


def _is_index(entry: str) -> bool:
    return entry.isascii() and entry.isdigit() and len(entry) <= _MOST_DIGITS


def _find(entry: str, devices: Sequence[Device]) -> Device | str:
    """The device that `entry` names, or in words why it names none."""
    if _is_index(entry):
        return next((device for device in devices if device.index == int(entry)), "is the index of no GPU")
    if not entry.startswith(("GPU-", "MIG-")):
        return "is neither an index nor a UUID"
    if exact := next((device for device in devices if entry in (device.uuid, device.mig_parent)), None):
        return exact
    # Every instance of a GPU answers to the beginning of that GPU's UUID, and is one GPU all the same.
    fits: dict[str, Device] = {}
    for device in devices:
        for uuid in (device.uuid, device.mig_parent):
            if uuid is not None and uuid.startswith(entry):
                fits.setdefault(uuid, device)
    if len(fits) > 1:
        return f"is the beginning of {len(fits)} UUIDs"
    return next(iter(fits.values()), "is the UUID of no device")


def _doubt_about_indices(entries: Sequence[str], devices: Sequence[Device], environ: Mapping[str, str]) -> str | None:
    """Why an index in the mask may name another GPU to CUDA than to NVML, which counts in the order of the PCI bus."""
    if not any(_is_index(entry) for entry in entries):
        return None
    if fault := next((device for device in devices if device.fault is not None), None):
        return f"indices are uncertain while {fault.uuid} is at fault; name devices by UUID"
    models = {device.name for device in devices if device.mig_parent is None}
    if len(models) > 1 and environ.get(ORDER) != "PCI_BUS_ID":
        return (
            f"indices are uncertain, for CUDA counts the fastest GPU first and there are {len(models)} models; "
            f"name devices by UUID, or set {ORDER}=PCI_BUS_ID"
        )
    return None
