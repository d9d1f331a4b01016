"""The output of ``harness devices``."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from harness.cli.main import app
from harness.devices.capabilities import VOCABULARY, Capabilities, detect_capabilities
from harness.devices.device import CPU, Device, Inventory
from harness.devices.render import capability_tables, inventory_json, inventory_tables

pytestmark = pytest.mark.acceptance

GPU = Device(
    uuid="GPU-a",
    kind="cuda",
    name="Fake [red]GPU",
    index=0,
    memory=80 * 2**30,
    compute_capability=(9, 0),
    pci_bus_id="00000000:10:00.0",
    ecc=False,
)
LOST = Device(uuid="nvml:1", kind="cuda", name="unknown GPU", index=1, fault="handle: GPU is lost")
MASKED = Device(uuid="GPU-b", kind="cuda", name="Fake GPU", index=2)
MACHINE = Inventory(
    devices=(GPU, LOST), hidden=(MASKED,), driver="570.86.15", cuda_driver="12.8", notes=("[bold]a note",)
)
BARE = Inventory(devices=(CPU,), nvml_error="NVML does not answer: NVML Shared Library Not Found")


def _shown(inventory: Inventory, device: Device) -> str:
    return _printed(inventory_tables(inventory, _capabilities(inventory, device)))


_BY_DEVICE: dict[tuple[int, str], Capabilities] = {}


def _capabilities(inventory: Inventory, device: Device) -> Capabilities:
    """The capabilities of a device. They are detected once for all tests: each detection imports torch in a child."""
    key = id(inventory), device.uuid
    if key not in _BY_DEVICE:
        _BY_DEVICE[key] = detect_capabilities(inventory, device)
    return _BY_DEVICE[key]


def _of_usable(inventory: Inventory) -> dict[str, Capabilities]:
    return {device.uuid: _capabilities(inventory, device) for device in inventory.usable}


def _printed(tables: list[Table], width: int = 300) -> str:
    console = Console(file=io.StringIO(), width=width)
    for table in tables:
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_json_survives_a_round_trip_and_keeps_the_facts() -> None:
    values = inventory_json(MACHINE, {"GPU-a": _capabilities(MACHINE, GPU)})
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["devices"][0] == {
        "uuid": "GPU-a",
        "kind": "cuda",
        "name": "Fake [red]GPU",
        "index": 0,
        "memory": 80 * 2**30,
        "compute_capability": "9.0",
        "pci_bus_id": "00000000:10:00.0",
        "ecc": False,
        "graphics_clock": None,
        "memory_clock": None,
        "power_limit": None,
        "mig_parent": None,
        "fault": None,
    }
    assert values["devices"][1]["fault"] == "handle: GPU is lost"
    assert [device["uuid"] for device in values["hidden"]] == ["GPU-b"]
    assert (values["driver"], values["cuda_driver"], values["notes"]) == ("570.86.15", "12.8", ["[bold]a note"])
    assert list(values["capabilities"]) == list(VOCABULARY)
    assert values["capabilities"]["driver"] == {"value": "570.86.15", "detail": "", "text": "570.86.15"}
    assert values["capabilities"]["memory"] == {"value": 80 * 2**30, "detail": "", "text": "80.0GiB"}
    assert values["capabilities"]["mig"]["value"] is False


def test_json_says_why_something_is_absent() -> None:
    values = inventory_json(BARE, {"cpu": _capabilities(BARE, CPU)})
    assert values["nvml_error"] == "NVML does not answer: NVML Shared Library Not Found"
    assert values["capabilities"]["compute_capability"] == {
        "value": None,
        "detail": "the device is the cpu",
        "text": "absent (the device is the cpu)",
    }


def test_tables_show_every_device_and_do_not_parse_markup() -> None:
    shown = _shown(MACHINE, GPU)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    assert ["0", "GPU-a", "Fake [red]GPU", "80.0GiB", "9.0", "00000000:10:00.0", "off", "usable"] in rows
    assert ["1", "nvml:1", "unknown GPU", "", "", "", "", "handle: GPU is lost"] in rows
    assert ["2", "GPU-b", "Fake GPU", "", "", "", "", "hidden"] in rows
    assert ["[bold]a note"] in rows
    assert ["driver", "570.86.15"] in rows


def test_tables_of_a_machine_without_nvml() -> None:
    shown = _shown(BARE, CPU)
    assert "NVML does not answer: NVML Shared Library Not Found" in shown
    assert len(inventory_tables(BARE, _capabilities(BARE, CPU))) == 3


def test_no_table_of_notes_without_notes() -> None:
    machine = Inventory(devices=(GPU,), driver="570.86.15")
    assert [table.title for table in inventory_tables(machine, _capabilities(machine, GPU))] == [
        "devices",
        "capabilities",
    ]


SECOND = Device(uuid="GPU-c", kind="cuda", name="Fake [red]GPU", index=3, compute_capability=(7, 5))
PAIR = Inventory(devices=(GPU, LOST, SECOND), driver="570.86.15", cuda_driver="12.8")


def test_json_has_the_capabilities_of_every_usable_device() -> None:
    values = inventory_json(PAIR, _of_usable(PAIR))
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert list(values["device_capabilities"]) == ["GPU-a", "GPU-c"]
    assert values["capabilities"] == values["device_capabilities"]["GPU-a"]
    assert values["device_capabilities"]["GPU-c"]["compute_capability"]["value"] == "7.5"
    assert list(values["vocabulary"]) == list(VOCABULARY)
    assert values["vocabulary"]["memory"] == {
        "kind": "bytes",
        "unit": "bytes",
        "text": VOCABULARY["memory"].text,
        "source": VOCABULARY["memory"].source,
        "without": VOCABULARY["memory"].without,
    }


def test_in_a_pipe_a_row_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = CliRunner().invoke(app, ["devices", "--capabilities"]).output.splitlines()
    (row,) = (line for line in shown if line.startswith("│ cuda_malloc_async "))
    assert VOCABULARY["cuda_malloc_async"].source in row


@pytest.mark.parametrize("width", [80, 300])
def test_every_capability_of_every_usable_device_is_shown(width: int) -> None:
    tables = capability_tables(PAIR, _of_usable(PAIR))
    assert [str(table.title) for table in tables] == ["GPU-a: Fake [red]GPU", "GPU-c: Fake [red]GPU"]
    for table in tables:
        shown = _printed([table], width)
        assert "…" not in shown
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
        assert [row[0] for row in rows if row and row[0]] == list(VOCABULARY)
        if width == 300:
            assert ["mig", "False", "NVML"] in rows
            devices = next(row for row in rows if row and row[0] == "devices")
            assert devices[1] == "2 (cuda)"


def test_the_command_prints_every_capability() -> None:
    shown = CliRunner().invoke(app, ["devices", "--capabilities"], env={"COLUMNS": "300"})
    assert shown.exit_code == 0, shown.output
    for name, entry in VOCABULARY.items():
        assert name in shown.output
        assert entry.source in shown.output
    facts = CliRunner().invoke(app, ["devices", "--capabilities", "--json"])
    assert json.loads(facts.output)["device_capabilities"]
