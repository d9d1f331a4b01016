"""The shipped schema equals the models' schema, and both accept and refuse the same lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.core.outcome import Outcome
from harness.journal import journal
from tests.reporting import build
from tests.schemas import shipped_schema

LINES = [
    build.run(),
    build.run(
        profile="nightly", hardware="h200", minimum_cases=10, settings={"retries": 1, "shuffle": True, "x": None}
    ),
    build.collected("a::b", "a::c"),
    build.collected("a::b", deselected=["a::c"]),
    build.collected(),
    build.run(shard="1/3", identity={"torch": "2.13.0"}),
    build.shard(),
    build.reopened("a::b"),
    build.shard(exit_status=None),
    build.collected("a::b", selection=f"sha256:{'0' * 64}", selected=["a::b", "a::c"]),
    build.must_pass("a::b"),
    build.waiver("a::*", when={"device": "cuda", "not": {"memory": ">=2GiB"}}),
    build.start("a::b", alone=True, pid=3, executor=None),
    *(build.finish("a::b", outcome) for outcome in Outcome),
    build.finish(
        "a::b",
        phases={"setup": 0.1, "call": 0.2, "teardown": 0},
        exit_status=-11,
        notes=["a note"],
        reproduce="pytest a::b",
        gate={"capability": "memory", "wanted": ">=12GiB", "found": "8.0GiB"},
        detail="Traceback",
        stdout="\x00 out",
        log="log",
        ruling=build.ruling(Outcome.WAIVED),
    ),
    build.device(),
    build.device("drained", worker="gw0", moment="after a::b crashed", message="it hangs", seconds=1.5),
    build.executor(startup=0.02),
    build.executor(state="ended", cases=3, exit_status=-9, reason="crashed"),
    build.finding("gone", cases=["a::b"]),
    build.wait("could not fork"),
    build.session_property("arch", "PPC"),
    build.bisected("a::b", ["a::c"]),
    build.confirmation("a::b"),
    build.batch("a::b", "a::c", leaks=["a::b leaks"], failure="given up: 60 trials were used up"),
    build.wait("worker gw1 has waited 30 s for device GPU-0, which worker gw0 (process 7) holds"),
    build.levels("a::b", heap_bytes=1 << 40, threads=1),
    build.activity("examining device GPU-1", since=1_760_000_003.0),
    build.activity(""),
    build.stopped(),
    build.stopped("SIGINT", 0),
    {"event": "node", "t": 1.0, "host": "h0", "state": "lost", "message": "silent", "devices": ["GPU-0"]},
    {"event": "late", "t": 1.0, "host": "h0", "case": "a", "what": "finish", "outcome": "passed"},
    {"event": "suspect", "t": 1.0, "case": "a", "host": "h1"},
    {"event": "second_start", "t": 1.0, "case": "a", "attempt": 1, "devices": ["GPU-1"], "seed": 1, "host": "h1"},
    {
        "event": "second_device",
        "t": 1.0,
        "case": "a",
        "first": "GPU-0",
        "second": "GPU-1",
        "host": "h1",
        "outcome": "passed",
        "finding": "red on this device only",
    },
    build.end(),
]

BAD = [
    pytest.param({**build.run(), "extra": 1}, id="a field too many"),
    pytest.param({**build.run(), "schema": 0}, id="no such schema"),
    pytest.param({**build.run(), "seed": "7"}, id="number as text"),
    pytest.param({k: v for k, v in build.run().items() if k != "t"}, id="no time"),
    pytest.param({**build.end(), "t": 1e300}, id="a time outside the calendar"),
    pytest.param({**build.end(), "duration": -1}, id="negative duration"),
    pytest.param({**build.collected("a"), "hash": "sha256:x"}, id="malformed hash"),
    pytest.param({**build.start("a"), "case": ""}, id="no case"),
    pytest.param({**build.start("a"), "attempt": 0}, id="attempts count from 1"),
    pytest.param({**build.finish("a"), "outcome": "fine"}, id="unknown outcome"),
    pytest.param({**build.finish("a"), "gate": {"capability": "memory"}}, id="half a gate"),
    pytest.param({**build.executor(), "state": "idle"}, id="unknown state"),
    pytest.param(build.device("tired"), id="unknown state of a device"),
    pytest.param(build.batch("a", trials=-1), id="fewer than no trials"),
    pytest.param(build.batch("a", suspicions={"heap_bytes": "much"}), id="an amount that is none"),
    pytest.param(build.activity("waiting", since="now"), id="a moment as text"),
    pytest.param(build.levels("a", executor=""), id="levels of no executor"),
    pytest.param({**build.levels("a"), "values": {"heap_bytes": 0.5}}, id="half a byte"),
    pytest.param({**build.must_pass("a"), "hash": "md5:0"}, id="malformed hash of a list"),
    pytest.param(build.run(minimum_cases=-1), id="fewer than no cases"),
    pytest.param({**build.finish("a"), "ruling": {"text": "so"}}, id="a ruling without an outcome"),
]


def accepted_by_schema(line: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(shipped_schema("journal/journal")).is_valid(line))


def accepted_by_models(line: dict[str, Any]) -> bool:
    try:
        journal.decode_line(json.dumps(line).encode())
    except journal.LineError:
        return False
    return True


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(shipped_schema("journal/journal"))


def test_every_kind_is_documented_and_tried() -> None:
    definitions = shipped_schema("journal/journal")["$defs"]
    kinds = {d["properties"]["event"]["enum"][0] for d in definitions.values() if "event" in d.get("properties", {})}
    assert kinds == {line["event"] for line in LINES}
    for definition in definitions.values():
        assert definition["description"]


def test_real_lines_fit_the_schema(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    with journal.Journal(path) as writer:
        for line in LINES:
            writer.append(build.event(line))
    written = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    assert [build.event(line) for line in written] == build.events(*LINES)
    for line in (*LINES, *written):
        assert accepted_by_schema(line), line
        assert accepted_by_models(line), line


@pytest.mark.parametrize("line", BAD)
def test_bad_lines_are_refused_by_schema_and_models_alike(line: dict[str, Any]) -> None:
    assert not accepted_by_schema(line)
    assert not accepted_by_models(line)


def test_writing_events_loads_nothing_heavy() -> None:
    heavy = ("pydantic", "junitparser", "rich", "typer", "pytest", "torch")
    code = (
        "import sys, harness.journal.journal, harness.core.text;"
        f"sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
