"""What `discover` and `detect` found, as plain JSON values and as tables for a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.devices.capabilities import Capabilities, size, written
from harness.devices.device import Device, Inventory

if TYPE_CHECKING:
    from rich.table import Table


def as_json(inventory: Inventory, capabilities: Capabilities) -> dict[str, Any]:
    """Everything found, in values that JSON has.

    Memory is in bytes and versions are texts (``"9.0"``). Each capability is an object of ``value`` (null for
    absent), ``detail`` (why, or what the value alone would hide) and ``text`` (both, for a reader).
    """
    return {
        "driver": inventory.driver,
        "cuda_driver": inventory.cuda_driver,
        "nvml_error": inventory.nvml_error,
        "notes": list(inventory.notes),
        "devices": [_device(device) for device in inventory.devices],
        "hidden": [_device(device) for device in inventory.hidden],
        "capabilities": {name: _capability(name, capabilities) for name in capabilities},
    }


def as_tables(inventory: Inventory, capabilities: Capabilities) -> list[Table]:
    """The same for a terminal: a table of devices, one of capabilities, and one of notes if there are any."""
    from rich.table import Table  # rich costs more to import than everything else in this folder
    from rich.text import Text

    # Names and errors come from drivers and the environment: as Text they are never read as rich's markup.
    devices = Table("index", "device", "name", "memory", "capability", "bus", "ecc", "state", title="devices")
    for device in (*inventory.devices, *inventory.hidden):
        state = device.fault or ("hidden" if device in inventory.hidden else "usable")
        cells = (
            "" if device.index is None else str(device.index),
            device.uuid,
            device.name,
            "" if device.memory is None else size(device.memory),
            "" if device.compute_capability is None else written("compute_capability", device.compute_capability),
            device.pci_bus_id or "",
            "" if device.ecc is None else ("on" if device.ecc else "off"),
            state,
        )
        devices.add_row(*(Text(cell) for cell in cells))

    found = Table("capability", "found", title="capabilities")
    for name in capabilities:
        found.add_row(Text(name), Text(capabilities.describe(name)))

    notes = Table("note", title="notes", show_header=False)
    for note in (*([inventory.nvml_error] if inventory.nvml_error else []), *inventory.notes):
        notes.add_row(Text(note))
    return [devices, found, *([notes] if notes.row_count else [])]


def _device(device: Device) -> dict[str, Any]:
    values = asdict(device)
    if device.compute_capability is not None:
        values["compute_capability"] = written("compute_capability", device.compute_capability)
    return values


def _capability(name: str, capabilities: Capabilities) -> dict[str, Any]:
    finding = capabilities.finding(name)
    value = written(name, finding.value) if isinstance(finding.value, tuple) else finding.value
    return {"value": value, "detail": finding.detail, "text": capabilities.describe(name)}
