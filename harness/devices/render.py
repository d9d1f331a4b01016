"""Shows the results of `discover` and `detect` as JSON values and terminal tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.core.text import format_bytes
from harness.devices.capabilities import VOCABULARY, Capabilities, Capability, format_capability
from harness.devices.device import Device, Inventory

if TYPE_CHECKING:
    from rich.table import Table


def inventory_json(inventory: Inventory, detected: Mapping[str, Capabilities]) -> dict[str, Any]:
    """Return all findings as JSON values. `detected` maps the UUID of each usable device to its capabilities.

    Memory is in bytes; versions are texts (``"9.0"``). Each capability is an object with ``value`` (null if absent),
    ``detail`` (the reason, or what else a reader should know) and ``text`` (both, for a reader). ``capabilities`` are
    those of the first device of ``device_capabilities``.
    """
    capabilities = {uuid: _capabilities(of_device) for uuid, of_device in detected.items()}
    return {
        "driver": inventory.driver,
        "cuda_driver": inventory.cuda_driver,
        "nvml_error": inventory.nvml_error,
        "notes": list(inventory.notes),
        "devices": [_device(device) for device in inventory.devices],
        "hidden": [_device(device) for device in inventory.hidden],
        "capabilities": next(iter(capabilities.values()), {}),
        "device_capabilities": capabilities,
        "vocabulary": {name: _entry(entry) for name, entry in VOCABULARY.items()},
    }


def inventory_tables(inventory: Inventory, capabilities: Capabilities) -> list[Table]:
    """Return tables for a terminal: devices, the capabilities of one device, and notes if any."""
    from rich.table import Table  # importing rich takes longer than importing everything else in this folder
    from rich.text import Text

    # Names and errors come from drivers and the environment: in a Text, rich does not parse markup.
    devices = Table("index", "device", "name", "memory", "capability", "bus", "ecc", "state", title="devices")
    for device in (*inventory.devices, *inventory.hidden):
        state = device.fault or ("hidden" if device in inventory.hidden else "usable")
        cells = (
            "" if device.index is None else str(device.index),
            device.uuid,
            device.name,
            "" if device.memory is None else format_bytes(device.memory),
            ""
            if device.compute_capability is None
            else format_capability("compute_capability", device.compute_capability),
            device.pci_bus_id or "",
            "" if device.ecc is None else ("on" if device.ecc else "off"),
            state,
        )
        devices.add_row(*(Text(cell) for cell in cells))

    values = Table("capability", "found", title="capabilities")
    for name in capabilities:
        values.add_row(Text(name), Text(capabilities.describe(name)))

    notes = Table("note", title="notes", show_header=False)
    for note in (*([inventory.nvml_error] if inventory.nvml_error else []), *inventory.notes):
        notes.add_row(Text(note))
    return [devices, values, *([notes] if notes.row_count else [])]


def capability_tables(inventory: Inventory, detected: Mapping[str, Capabilities]) -> list[Table]:
    """Return tables for a terminal: one per usable device, with all its capabilities and how each is detected.

    Their types are in docs/capabilities.md and in the JSON.
    """
    from rich.table import Table
    from rich.text import Text

    tables = []
    for device in inventory.usable:
        table = Table(title=Text(f"{device.uuid}: {device.name}"))
        table.add_column("capability", no_wrap=True)
        for column in ("found", "source"):
            table.add_column(column, overflow="fold")
        for name, entry in VOCABULARY.items():
            table.add_row(*(Text(cell) for cell in (name, detected[device.uuid].describe(name), entry.source)))
        tables.append(table)
    return tables


def _entry(entry: Capability) -> dict[str, str]:
    return {
        "kind": entry.kind.value,
        "unit": entry.unit,
        "text": entry.text,
        "source": entry.source,
        "without": entry.without,
    }


def _capabilities(capabilities: Capabilities) -> dict[str, Any]:
    return {name: _capability(name, capabilities) for name in capabilities}


def _device(device: Device) -> dict[str, Any]:
    values = asdict(device)
    for name in ("mask_entry", "observed"):  # only of registered devices
        if not values[name]:
            del values[name]
    if device.compute_capability is not None:
        values["compute_capability"] = format_capability("compute_capability", device.compute_capability)
    return values


def _capability(name: str, capabilities: Capabilities) -> dict[str, Any]:
    finding = capabilities.finding(name)
    value = format_capability(name, finding.value) if isinstance(finding.value, tuple) else finding.value
    return {"value": value, "detail": finding.detail, "text": capabilities.describe(name)}
