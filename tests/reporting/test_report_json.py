"""The JSON report: valid by its shipped schema, deterministic, whatever cases print."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
from hypothesis import given

from harness.core.outcome import Outcome
from harness.journal import journal, reader
from harness.journal.ledger import Ledger
from harness.journal.stored_run import StoredRun
from harness.reporting import report_json
from harness.reporting.junit_case import MOST_TEXT
from harness.reporting.report_json import Report
from tests.journal import journals
from tests.journal.journals import CRASHED, DETAIL, ENVIRONMENT, FAILED, FLAKY, GATED, NOT_RUN, PASSED
from tests.reporting import build
from tests.schemas import shipped_schema


@cache
def validator() -> Any:
    return jsonschema.Draft202012Validator(shipped_schema("reporting/report"))


def report(run_dir: Path, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a run directory's report, after checking its schema and models, and that it equals the one from memory."""
    with StoredRun.of(run_dir) as stored:
        data = b"".join(report_json.report_json_chunks(stored, known))
        assert b"".join(report_json.report_json_chunks(stored, known)) == data
    ledger = Ledger.from_journal(reader.read_journal(run_dir / journal.FILE_NAME))
    assert b"".join(report_json.report_json_chunks(ledger, known)) == data
    found = json.loads(data)
    validator().validate(found)
    msgspec.json.decode(data, type=Report)
    assert isinstance(found, dict)
    return found


def test_a_run_with_everything(tmp_path: Path) -> None:
    found = report(journals.write(tmp_path, journals.lines()), ENVIRONMENT)
    assert (found["schema"], found["finished"], found["exit_status"], found["duration"]) == (1, True, 1, 5.0)
    assert found["run"]["devices"] == ["GPU-1", "GPU-2"]
    assert found["totals"] == {"not_run": 1, "gated": 1, "passed": 1, "flaky": 1, "failed": 1, "crashed": 1}
    assert found["red_cases"] == 3
    assert [each["kind"] for each in found["findings"]] == ["device_lost", "must_pass"]
    assert [(each["name"], each["satisfied"], each["missed"]) for each in found["lists"]] == [("core", False, [FAILED])]
    assert found["environment"] == ENVIRONMENT
    assert [case["id"] for case in found["cases"]] == [FAILED, CRASHED, FLAKY, PASSED, GATED, NOT_RUN]
    by_id = {case["id"]: case for case in found["cases"]}
    assert {name: case["red"] for name, case in by_id.items() if case["red"]} == {
        FAILED: True,
        CRASHED: True,
        NOT_RUN: True,
    }
    failed = by_id[FAILED]
    assert (failed["suite"], failed["host"], failed["devices"]) == ("streams", "node1", ["GPU-1"])
    assert (failed["outcome"], failed["message"], failed["reproduce"]) == ("failed", "assert 1 == 2", "pytest 'x'")
    assert failed["attempts"][0]["detail"] == DETAIL
    assert [each["outcome"] for each in by_id[FLAKY]["attempts"]] == ["crashed", "passed"]
    assert by_id[GATED]["attempts"][0]["gate"]["capability"] == "memory"
    assert by_id[NOT_RUN]["attempts"] == []


def test_torn_doubled_and_foreign_lines_are_reported(tmp_path: Path) -> None:
    found = report(journals.write_bytes(tmp_path, b"".join(journals.odd())))
    odd = found["journal"]
    assert (odd["damaged"], odd["unknown"], odd["doubled"]) == (3, 1, 1)
    assert [each["number"] for each in odd["first_damaged"]] == [20, 21, 25]
    assert odd["first_unknown"] == [{"number": 19, "reason": "party"}]
    assert "damaged_journal" in [each["kind"] for each in found["findings"]]


def test_a_run_that_was_cut_off(tmp_path: Path) -> None:
    found = report(journals.write(tmp_path, [build.run(), build.collected(PASSED)]))
    assert (found["finished"], found["exit_status"], found["duration"], found["environment"]) == (False, 1, None, None)


def test_long_texts_are_cut(tmp_path: Path) -> None:
    line = build.finish(PASSED, Outcome.FAILED, stdout="x" * 100_000)
    (case,) = report(journals.write(tmp_path, [build.run(), line]))["cases"]
    assert len(case["attempts"][0]["stdout"]) < MOST_TEXT + 100


def test_an_environment_of_anything(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    known = {"\udc80": "\x00\ud800", "number": float("inf"), "deep": deep, "devices": "none"}
    found = report(journals.write(tmp_path, [build.run()]), known)
    assert found["environment"]["\\udc80"] == "\\x00\\ud800"
    assert found["environment"]["number"] is None


@given(journals.hostile())
def test_no_text_makes_an_invalid_report(lines: list[build.Line]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report(journals.write(Path(folder), [build.run(), *lines]))
