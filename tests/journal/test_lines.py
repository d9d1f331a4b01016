"""Lines are read as they were created."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from harness.journal import lines
from harness.journal.events import EVENT

SHA = "sha256:" + "0" * 64
MADE: dict[str, lines.Line] = {
    "finding": lines.finding("zygote", "gone", ["a.py::t"], reproduce="pytest", host="n1"),
    "wait": lines.wait("gw0", "for a device"),
    "stopped": lines.stopped("SIGINT", 10.0),
    "reopened": lines.reopened("a.py::t"),
    "collected": lines.collected(
        "gw0",
        count=1,
        digest=SHA,
        part=1,
        ids=["a.py::t"],
        deselected=(),
        skipped={"suites/b/test_b.py::": "no compiler"},
        unread=["b/"],
        pid=3,
        selection=SHA,
        selected=["a.py::t"],
    ),
    "must_pass": lines.must_pass("cpu", SHA, ["a.py::t"]),
    "levels": lines.levels("a.py::t", attempt=1, executor="main-e1", values={"threads": 1}),
    "executor": lines.executor(
        "main-e1", "ended", worker="main", pid=3, devices=["cpu"], startup=0.1, cases=2, exit_status=0, reason="retired"
    ),
    "device": lines.device("GPU-1", "sick", worker="main", moment="at the start", message="wrong", seconds=0.1234567),
    "activity": lines.activity("main", "collecting", 1.0),
    "session_property": lines.session_property("arch", "PPC"),
    "confirmation": lines.confirmation(
        "a.py::t", suspicions={"threads": 1}, growths=[{"threads": 1}], leaks=["1 thread"], failure=""
    ),
    "batch": lines.batch(
        "main-e1", ["a.py::t"], suspicions={}, leaks=(), unproven=(), tried=1, trials=2, seconds=1.23456, failure=""
    ),
    "bisected": lines.bisected("a.py::t", outcome="failed", culprits=["a.py::u"], trials=3, reproduce="pytest"),
}


def test_each_function_is_here() -> None:
    public = {name for name, _ in inspect.getmembers(lines, inspect.isfunction) if not name.startswith("_")}
    assert public == set(MADE)


@pytest.mark.parametrize("kind", MADE)
def test_a_reader_takes_each_and_reads_every_field(kind: str) -> None:
    line: dict[str, Any] = {"t": 1.0, **MADE[kind]}
    event = EVENT.validate_json(json.dumps(line))
    assert event.event == kind
    read = event.model_dump(mode="json", by_alias=True)
    assert {name: read[name] for name in line} == line
    unset = set(read) - set(line)
    assert unset <= {"host"}, "a function has every field, and the head of a cluster run adds the node"


def test_what_is_not_given_is_left_out() -> None:
    assert lines.finding("zygote", "gone") == {"event": "finding", "kind": "zygote", "message": "gone", "cases": []}
    assert lines.activity("main") == {"event": "activity", "worker": "main", "what": ""}
