"""The history of devices over runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from harness.cli.main import app
from harness.core.outcome import Outcome
from harness.fleet.answers import Answers
from harness.fleet.reading import reading
from tests.journal import journals
from tests.reporting import build

BASE = {"seed": 1, "isolation": "batch", "pid": 1, "devices": ["GPU-0", "GPU-1"], "fail_on_flaky": False}


def write(folder: Path, lines: list[dict[str, Any]], t: float = 100.0, host: str = "h") -> Path:
    run = {"event": "run", "t": t, "schema": 1, "run_id": folder.name, "argv": [], "host": host, "rootdir": "/", **BASE}
    ids = dict.fromkeys(line["case"] for line in lines if line["event"] == "start")
    return journals.write(folder, [run, {**build.collected(*ids), "t": t}, *({"t": t, **line} for line in lines)])


def ran(case: str, device: str, outcome: Outcome = Outcome.PASSED, host: str = "") -> list[dict[str, Any]]:
    known = {"case": case, "attempt": 1, "devices": [device], "seed": 1, "host": host}
    ended = {"event": "finish", "outcome": outcome.value, "final": True, "duration": 0.1, **known}
    return [{"event": "start", **known}, ended]


def second(case: str, outcome: Outcome) -> dict[str, Any]:
    finding = "red on both" if outcome.is_red else "red on this device only"
    known = {"first": "GPU-0", "second": "GPU-1", "host": "h1", "outcome": outcome.value, "finding": finding}
    return {"event": "second_device", "case": case, **known}


def device_history(*paths: Path) -> dict[str, Any]:
    with reading(paths, processes=1) as read:
        return Answers(read.database).device_history()


def runs(folder: Path) -> list[Path]:
    lines = [*ran("a", "GPU-0", Outcome.FAILED, "h0"), *ran("b", "GPU-0", Outcome.CRASHED, "h0"), *ran("c", "GPU-1")]
    first = write(folder / "one", [*lines, second("a", Outcome.PASSED), second("b", Outcome.FAILED)])
    sick = {"event": "device", "device": "GPU-0", "state": "sick"}
    return [first, write(folder / "two", [*ran("a", "GPU-0"), sick, *ran("d", "cpu")], t=200.0)]


def test_what_runs_say_of_a_device(tmp_path: Path) -> None:
    found = device_history(*runs(tmp_path))["devices"]
    assert [record["device"] for record in found] == ["GPU-0", "GPU-1", "cpu on h"]
    assert found[0] == {
        "device": "GPU-0",
        "hosts": ["h", "h0"],
        "runs": 2,
        "first": 100.0,
        "last": 200.0,
        "cases": 3,
        "red": 2,
        "only_here": 1,
        "on_both": 1,
        "second": 0,
        "second_red": 0,
        "sick": 1,
        "drained": 0,
        "findings": {},
    }
    assert (found[1]["second"], found[1]["second_red"]) == (2, 1)


def test_findings_are_at_the_devices_that_they_name_or_whose_cases_they_concern(tmp_path: Path) -> None:
    def finding(kind: str, message: str, *cases: str) -> dict[str, Any]:
        return {"event": "finding", "kind": kind, "message": message, "cases": list(cases)}

    found = [
        finding("sick_device", "device GPU-0 gets no more cases"),
        finding("sick_device", "device GPU-01 gets no more cases"),
        finding("batch_leak", "it leaks", "a", "c"),
        finding("worker", "gw0 died, and the cpu is hot"),
    ]
    lines = [*ran("a", "GPU-0"), *ran("b", "GPU-0"), *ran("c", "GPU-1"), *ran("d", "cpu"), *found]
    made = device_history(write(tmp_path / "one", lines))
    assert {each["device"]: each["findings"] for each in made["devices"]} == {
        "GPU-0": {"sick_device": 1, "batch_leak": 1},
        "GPU-1": {"batch_leak": 1},
        "cpu on h": {},
    }
    assert made["findings"] == {"sick_device": 1, "worker": 1}


def test_the_command(tmp_path: Path) -> None:
    runs(tmp_path)
    done = CliRunner().invoke(app, ["devices", "--history", str(tmp_path), "--json"])
    assert [entry["device"] for entry in json.loads(done.output)["devices"]] == ["GPU-0", "GPU-1", "cpu on h"]
    table = CliRunner().invoke(app, ["devices", "--history", str(tmp_path)], env={"COLUMNS": "200"}).output
    assert "GPU-0" in table
    assert "red only here" in table
