"""What `discover` and `detect` found, as plain JSON values and as tables for a terminal; the vocabulary as a page.

``python -m harness.devices.present`` prints that page, docs/capabilities.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.devices.capabilities import VOCABULARY, Capabilities, Capability, ValueKind, size, written
from harness.devices.device import Device, Inventory

if TYPE_CHECKING:
    from rich.table import Table


_TYPES: Mapping[ValueKind, str] = {
    ValueKind.TEXT: "a text",
    ValueKind.BOOL: "true or false",
    ValueKind.COUNT: "a whole number, from 1 on",
    ValueKind.BYTES: "a size, in bytes; conditions on it have a unit",
    ValueKind.VERSION: "numbers separated by dots; conditions can also be `True` and `False`, for there and absent",
}


def as_json(inventory: Inventory, found: Mapping[str, Capabilities]) -> dict[str, Any]:
    """Everything found, in values that JSON has; `found` has the capabilities of each usable device, by its UUID.

    Memory is in bytes and versions are texts (``"9.0"``). Each capability is an object of ``value`` (null for
    absent), ``detail`` (why, or what the value alone would hide) and ``text`` (both, for a reader).
    ``capabilities`` are those of the first device of ``device_capabilities``.
    """
    capabilities = {uuid: _capabilities(each) for uuid, each in found.items()}
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


def as_tables(inventory: Inventory, capabilities: Capabilities) -> list[Table]:
    """For a terminal: a table of devices, one of the capabilities of one, and one of notes if there are any."""
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


def as_capability_tables(inventory: Inventory, found: Mapping[str, Capabilities]) -> list[Table]:
    """For a terminal: for each usable device all that is known of it, of what type that is, and how it was found."""
    from rich.table import Table
    from rich.text import Text

    tables = []
    for device in inventory.usable:
        table = Table(title=Text(f"{device.uuid}: {device.name}"))
        table.add_column("capability", no_wrap=True)
        for column in ("found", "type", "how"):
            table.add_column(column, overflow="fold")
        for name, entry in VOCABULARY.items():
            how = f"{entry.source}; without {entry.without}"
            table.add_row(*(Text(cell) for cell in (name, found[device.uuid].describe(name), _type(entry), how)))
        tables.append(table)
    return tables


def as_markdown() -> str:
    """The vocabulary as a page for those who write cases."""
    lines = [
        "# Capabilities",
        "",
        "What a case may require of device, driver and software. This page is written by",
        "`python -m harness.devices.present > docs/capabilities.md` from the table that the harness itself uses,",
        "`harness/devices/vocabulary.py`; change that. `harness devices --capabilities` prints what each is here, and",
        "[writing-cases.md](writing-cases.md) says how conditions are written.",
        "",
        "Each is looked for when a case first asks for it, and stays what it was then. What is absent says why, and",
        "meets no condition but `False`.",
        "",
        "| type | values |",
        "| --- | --- |",
        *(_row([kind.value, _TYPES[kind]]) for kind in ValueKind),
        "",
        "| capability | type | what it is | how it is found | without |",
        "| --- | --- | --- | --- | --- |",
        *(
            _row([f"`{name}`", _type(entry), _choices(entry), entry.source, entry.without])
            for name, entry in VOCABULARY.items()
        ),
        "",
        "The probe is a process of its own: it sees the one device only, has a time limit, and is killed with all that",
        "it started. One that crashes, hangs or says nothing sensible makes what it was asked for absent, for that",
        "reason. What it said is kept for the run, by driver, torch and device, so that of several workers one asks.",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type(entry: Capability) -> str:
    return entry.kind.value if entry.unit in ("", entry.kind.value) else f"{entry.kind.value}, {entry.unit}"


def _choices(entry: Capability) -> str:
    return f"{entry.text}; {' or '.join(f'`{choice}`' for choice in entry.choices)}" if entry.choices else entry.text


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
    if device.compute_capability is not None:
        values["compute_capability"] = written("compute_capability", device.compute_capability)
    return values


def _capability(name: str, capabilities: Capabilities) -> dict[str, Any]:
    finding = capabilities.finding(name)
    value = written(name, finding.value) if isinstance(finding.value, tuple) else finding.value
    return {"value": value, "detail": finding.detail, "text": capabilities.describe(name)}


if __name__ == "__main__":
    print(as_markdown(), end="")
