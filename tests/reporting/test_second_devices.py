"""The result of a red case on a second device, in each report, with the journal's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.core.outcome import Outcome
from harness.journal import journal, reader
from harness.journal.ledger import Ledger
from harness.journal.stored_run import StoredRun
from harness.reporting import github, junit, report_json, terminal
from harness.reporting.page import document, model
from tests.journal import journals
from tests.reporting import build
from tests.schemas import shipped_schema

HERE, BOTH = "suites/a/test_a.py::test_here", "suites/a/test_a.py::test_both"
_TEXTS = {
    HERE: "red on this device only (GPU-1; on GPU-2 of node2: passed)",
    BOTH: "red on both (GPU-1; on GPU-2 of node2: crashed)",
}


def second(case: str, outcome: Outcome, finding: str) -> list[build.Line]:
    start = {"event": "second_start", "t": 5.0, "case": case, "attempt": 1, "seed": 7, "host": "node2"}
    end: dict[str, Any] = {"event": "second_device", "t": 6.0, "case": case, "first": "GPU-1", "second": "GPU-2"}
    end |= {"host": "node2", "outcome": outcome.value, "finding": finding, "message": "what happened there"}
    return [{**start, "devices": ["GPU-2"]}, end]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    red = [line for case in (HERE, BOTH) for line in (build.start(case), build.finish(case, Outcome.FAILED))]
    looks = [*second(HERE, Outcome.PASSED, "red on this device only"), *second(BOTH, Outcome.CRASHED, "red on both")]
    head = [build.run(), build.collected(HERE, BOTH), build.executor()]
    return journals.write(tmp_path / "run", [*head, *red, *looks, build.end(exit_status=1)])


def test_the_verdict_stays_and_has_it(run_dir: Path) -> None:
    contents = reader.read_run_journal(run_dir / journal.FILE_NAME)
    ledger = Ledger.from_journal(contents)
    assert [(each.outcome, each.started, len(each.finishes)) for each in ledger.verdicts] == 2 * [("failed", 1, 1)]
    assert {each.case: [line.text for line in each.second_devices] for each in ledger.verdicts} == {
        case: [text] for case, text in _TEXTS.items()
    }
    with StoredRun.of(run_dir) as stored:
        assert tuple(verdict for verdict, _ in stored.cases()) == ledger.verdicts
    printed = terminal.terminal_summary(ledger, run_dir, blocks=False)
    assert [line for line in printed if line.startswith("SECOND")] == [
        f"SECOND DEVICE {case} - {text}" for case, text in _TEXTS.items()
    ]


def test_junit_and_markdown(run_dir: Path) -> None:
    with StoredRun.of(run_dir) as stored:
        report, summary = junit.serialise_junit(stored)[0].decode(), b"".join(github.job_summary(stored, None)).decode()
    for text in _TEXTS.values():
        assert report.count(f"second device: {text}\n") == 1
        assert summary.count(f"second device: {text}\n") == 1


def test_json(run_dir: Path) -> None:
    with StoredRun.of(run_dir) as stored:
        found = json.loads(b"".join(report_json.report_json_chunks(stored, None)))
    jsonschema.Draft202012Validator(shipped_schema("reporting/report")).validate(found)
    assert [case["second_devices"] for case in found["cases"]] == [
        [
            {
                "first": "GPU-1",
                "second": "GPU-2",
                "host": "node2",
                "outcome": outcome,
                "finding": finding,
                "message": "what happened there",
            }
        ]
        for outcome, finding in (("passed", "red on this device only"), ("crashed", "red on both"))
    ]


def test_the_page(run_dir: Path) -> None:
    page = model.page_of(reader.read_run_journal(run_dir / journal.FILE_NAME), None)
    text = document.render_report(page).decode()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    for number, line in enumerate(_TEXTS.values()):
        assert f"<p>Second device: {line}</p>" in text
        assert data["second"][str(number)] == [line]
