"""Statements of runs about conformance levels, in the matrix: a table over devices, and doubts about bad statements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcome import Outcome
from harness.fleet.record import read_levels
from harness.gating.levels import Level, ListedLevel
from harness.gating.mustpass import write_must_pass
from harness.journal.ledger import Ledger
from harness.journal.reader import read_run_journal
from harness.tools import conformance
from tests.fleet.matrix import runs
from tests.fleet.matrix.runs import CASES, Machine
from tests.fleet.matrix.test_page import render
from tests.reporting.page.reading import Read


def stating(folder: Path, machine: Machine, outcomes: dict[str, Outcome]) -> Path:
    """Write a run directory with a stored statement about two levels."""
    path = runs.run(folder / machine.host, machine, outcomes)
    levels = []
    for name, ids in (("core", CASES[:2]), ("memory", CASES[2:])):
        level = Level(description="x", cases=("suites/*",), marked=False, may_lack=("memory",))
        levels.append(ListedLevel(name, level, write_must_pass(folder / f"{name}.txt", ids)))
    ledger = Ledger.from_journal(read_run_journal(path / "journal.ndjson"))
    statement = conformance.make_statement(ledger, {}, levels)
    (path / conformance.FILE_NAME).write_bytes(conformance.kept_bytes(statement, levels))
    return path


def test_the_levels_of_a_run_are_read(tmp_path: Path) -> None:
    path = stating(tmp_path, Machine(), {CASES[0]: Outcome.FAILED, CASES[2]: Outcome.GATED})
    levels, doubt = read_levels(path, "run-of-n1-n1")
    assert doubt == ""
    assert [(each["level"], each["state"], each["passed"], each["cases"]) for each in levels] == [
        ("core", "failed", 1, 2),
        ("memory", "not applicable", 0, 1),
    ]
    assert all(each["hash"].startswith("sha256:") for each in levels)


def test_the_page_has_a_table_over_devices(tmp_path: Path) -> None:
    stating(tmp_path, Machine("n1", "H100"), {CASES[0]: Outcome.FAILED})
    stating(tmp_path, Machine("n2", "A10"), {})
    runs.run(tmp_path / "n3", Machine("n3"))
    shown = Read(render(tmp_path)).shown
    table = shown.partition("Levels of conformance 2")[2].partition("Machines 3")[0]
    assert "failed 1 of 2" in table.partition("A10")[2] or "failed 1 of 2" in table.partition("A10")[0]
    assert table.count("passed 1 of 1") == 2
    assert table.count("passed 2 of 2") == 1
    assert "H100" in table
    assert "n3" not in table


def test_a_page_without_statements_has_no_such_table(tmp_path: Path) -> None:
    runs.run(tmp_path / "n1", Machine("n1"))
    assert "Levels of conformance" not in render(tmp_path)


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        (lambda kept: kept["statement"].update(run="another<b>"), "is about another run: another<b>"),
        (lambda kept: kept["statement"]["levels"][0].update(state="<b>"), "is no statement"),
        (lambda kept: kept["statement"]["levels"][0].pop("passed"), "is no statement"),
        (lambda kept: kept.pop("statement"), "is no statement"),
        (lambda kept: kept.update(statement=[]), "is no statement"),
    ],
)
def test_a_bad_statement_is_a_doubt(tmp_path: Path, change: Any, doubt: str) -> None:
    path = stating(tmp_path, Machine(), {})
    kept = json.loads((path / conformance.FILE_NAME).read_text())
    change(kept)
    (path / conformance.FILE_NAME).write_text(json.dumps(kept))
    levels, said = read_levels(path, "run-of-n1-n1")
    assert levels == []
    assert doubt in said
    assert "<b>" not in render(tmp_path).replace("&lt;b&gt;", "").partition('id="data"')[0]


def test_hostile_names_of_levels_are_inert(tmp_path: Path) -> None:
    path = stating(tmp_path, Machine(), {})
    kept = json.loads((path / conformance.FILE_NAME).read_text())
    kept["statement"]["levels"][0]["level"] = "<script>alert(1)</script>\u202e"
    (path / conformance.FILE_NAME).write_text(json.dumps(kept))
    levels, _ = read_levels(path, "run-of-n1-n1")
    assert len(levels) == 2
    assert "<script>alert(1)" not in render(tmp_path).partition('id="data"')[0]
