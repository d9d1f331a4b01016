"""Shows the results of `discover` and `detect` as JSON values and terminal tables, and the vocabulary as a page.

``python -m harness.devices.render`` prints the page docs/capabilities.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.backends import table
from harness.core.text import format_bytes, markdown_row
from harness.devices.capabilities import (
    VOCABULARY,
    Capabilities,
    Capability,
    ValueKind,
    format_capability,
)
from harness.devices.device import Device, Inventory

if TYPE_CHECKING:
    from rich.table import Table


_TYPES: Mapping[ValueKind, str] = {
    ValueKind.TEXT: "text",
    ValueKind.BOOL: "true or false",
    ValueKind.COUNT: "a whole number, 1 or more",
    ValueKind.BYTES: "a size in bytes; a condition needs a unit",
    ValueKind.VERSION: "numbers separated by dots; a condition can also be `True` (present) or `False` (absent)",
}


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


def capabilities_page() -> str:
    """Return the vocabulary as a page for authors of cases."""
    lines = [
        "# Capabilities",
        "",
        "What a case can require of device, driver and software. This page is generated from",
        "`harness/devices/capabilities.py`: change the code, then run",
        "`python -m harness.devices.render > docs/capabilities.md`.",
        "",
        "`harness devices --capabilities` prints the values on this machine, and [writing-cases.md](writing-cases.md)",
        "describes how to write conditions.",
        "",
        "A capability is detected when a case first requires it, and then keeps its value. An absent capability has a",
        "reason, and meets no condition except `False`.",
        "",
        "| type | values |",
        "| --- | --- |",
        *(markdown_row([kind.value, _TYPES[kind]]) for kind in ValueKind),
        "",
        "| capability | type | what it is | how it is detected |",
        "| --- | --- | --- | --- |",
        *(
            markdown_row([f"`{name}`", _type(entry), _choices(entry), entry.source])
            for name, entry in VOCABULARY.items()
        ),
        "",
        "The probe is a separate process. It sees only the one device and has a time limit. It is killed with all its",
        "children. If it crashes, hangs or gives an invalid answer, the capability is absent, with that reason. The",
        "run keeps its answers by driver, torch and device, so that only one of several workers starts a probe.",
    ]
    return "\n".join(lines) + "\n"


def _type(entry: Capability) -> str:
    return entry.kind.value if entry.unit in ("", entry.kind.value) else f"{entry.kind.value}, {entry.unit}"


def _choices(entry: Capability) -> str:
    """Return the text with the possible values for the kinds of this project.

    Those of other kinds depend on the machine.
    """
    choices = [choice for choice in entry.choices() if choice in table.own_kinds()]
    return f"{entry.text}; {' or '.join(f'`{choice}`' for choice in choices)}" if choices else entry.text


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


if __name__ == "__main__":
    print(capabilities_page(), end="")
