"""Journals for tests of reports: a run with each kind of event, and journals with hostile or damaged lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from harness.core.outcome import Outcome
from harness.journal import journal
from tests.reporting import build

TEXT = st.text(st.characters(), max_size=20)
CASE_ID = st.text(st.characters(), min_size=1, max_size=20)
GPUS = ("GPU-1", "GPU-2")
FAILED = "suites/streams/test_a.py::test_failed[x|y]"
CRASHED = "suites/streams/test_a.py::TestB::test_crashed"
FLAKY = "suites/amp/test_c.py::test_flaky"
PASSED = "suites/amp/test_c.py::test_passed"
GATED = "suites/amp/test_c.py::test_gated"
NOT_RUN = "suites/amp/test_c.py::test_not_run"
DETAIL = "suites/streams/test_a.py:7: in test_failed\n    check()\nhelpers.py:3: AssertionError"


def lines(**facts: Any) -> list[build.Line]:
    """Return a run on two GPUs with a case of each kind, a finding and a must-pass list."""
    on: list[dict[str, Any]] = [{"devices": [gpu]} for gpu in GPUS]
    gate = {"capability": "memory", "wanted": ">=80GiB", "found": "12 GiB"}
    return [
        build.run(devices=list(GPUS), identity={"torch": "2.13.0", "driver": "580.1"}, **facts),
        build.must_pass(PASSED, FAILED),
        build.collected(FAILED, CRASHED, FLAKY, PASSED, GATED, NOT_RUN),
        build.executor(),
        build.start(FAILED, **on[0]),
        build.finish(
            FAILED,
            Outcome.FAILED,
            message="assert 1 == 2",
            detail=DETAIL,
            stdout="out & <out>",
            reproduce="pytest 'x'",
            **on[0],
        ),
        build.start(CRASHED, **on[1]),
        build.finish(CRASHED, Outcome.CRASHED, exit_status=-11, message="SIGSEGV in call", **on[1]),
        *({**line, **on[0]} for line in build.broke_and(FLAKY, Outcome.CRASHED, Outcome.PASSED)),
        build.start(PASSED, **on[1]),
        build.finish(PASSED, duration=0.25, **on[1]),
        build.finish(GATED, Outcome.GATED, gate=gate, devices=[], executor=None),
        build.finding("GPU-2 fell off", cases=[CRASHED]),
        build.executor(state="ended", exit_status=0),
        build.end(exit_status=1),
    ]


ENVIRONMENT: dict[str, Any] = {
    "schema": 1,
    "host": "node1",
    "devices": [{"uuid": gpu, "kind": "cuda", "name": f"NVIDIA {gpu}"} for gpu in GPUS],
    "driver": "580.1",
    "cuda_driver": "13.0",
    "versions": {"torch": "2.13.0", "cuda": "12.8"},
}


def write(folder: Path, events: Iterable[build.Line]) -> Path:
    """Write a journal as a run does; return the run directory."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / journal.FILE_NAME).open("a", encoding="ascii") as file:
        for line in events:
            stamped = {"event": line["event"], "t": 1.0, **line}
            file.write(json.dumps(stamped, separators=(",", ":")) + "\n")
    return folder


def write_bytes(folder: Path, data: bytes, environment: object = None) -> Path:
    """Write a journal of these bytes, and environment.json unless it is None; return the run directory."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / journal.FILE_NAME).write_bytes(data)
    if environment is not None:
        (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def encoded(events: Iterable[build.Line]) -> list[bytes]:
    """Return the lines of a journal, each with its line feed."""
    return [json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in events]


def odd() -> list[bytes]:
    """Return the lines of `lines`, with torn, duplicate and foreign ones among them."""
    usual = encoded(lines())
    finish = next(line for line in usual if b'"finish"' in line and b'"passed"' in line)
    foreign = [
        b'{"event":"party","t":1.0}\n',
        b"\xff\xfe nothing of ours \x00\n",
        b'{"event":"finish","t":1.0,"case":"suites/a.py::torn","outc\n',
        b'{ "t": 5.0, "event": "end", "exit_status": 1, "duration": 9.0 }\n',
        finish,
        b"\n",
        finish[:40],
    ]
    return [*usual, *foreign]


@st.composite
def hostile(draw: st.DrawFn) -> list[build.Line]:
    """Draw events with arbitrary texts."""
    ids = draw(st.lists(CASE_ID, max_size=4))
    texts = {
        name: draw(TEXT) for name in ("message", "detail", "stdout", "stderr", "log", "reproduce", "worker", "executor")
    }
    found = [
        build.run(
            host=draw(TEXT),
            run_id=draw(CASE_ID),
            rootdir=draw(TEXT),
            argv=draw(st.lists(TEXT, max_size=2)),
            identity={"torch": draw(TEXT), "driver": draw(TEXT)},
            devices=draw(st.lists(TEXT, max_size=2)),
            fail_on_flaky=draw(st.booleans()),
        ),
        build.collected(*ids, worker=draw(TEXT)),
        build.finding(draw(TEXT), kind=draw(CASE_ID), cases=draw(st.lists(TEXT, max_size=2))),
    ]
    for case in ids:
        final = draw(st.booleans())
        duration = draw(st.floats(0, 1e9))
        seen = {**texts, "final": final, "duration": duration, "notes": [draw(TEXT)], "devices": [draw(TEXT)]}
        found += [build.start(case), build.finish(case, draw(st.sampled_from(Outcome)), **seen)]
        if not final:
            found.append(build.finish(case, draw(st.sampled_from(Outcome)), duration=1e-7, stdout=draw(TEXT)))
    return found
