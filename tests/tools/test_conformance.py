"""The statement of a run, level by level, from verdicts as plain values and from a run's journal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcome import Outcome
from harness.gating.levels import Level, ListedLevel
from harness.gating.mustpass import write_must_pass
from harness.journal.events import Finish, Gate, Ruling
from harness.journal.ledger import Ledger
from harness.journal.reader import read_run_journal
from harness.journal.verdicts import Verdict
from harness.tools import conformance
from harness.tools.conformance import FAILED, INCOMPLETE, NOT_APPLICABLE, PASSED, judge_level
from tests.acceptance.project import Project
from tests.acceptance.rules import command
from tests.fleet.history import nights
from tests.fleet.matrix.runs import CASES


def a_verdict(case: str, outcome: str, more: str = "") -> Verdict:
    """`more`: the capability that a gated case lacks, or the place of the waiver of a case that is waived."""
    capability = more if outcome == "gated" else ""
    ruling = Ruling(outcome=Outcome.WAIVED, text="waived", source=more) if outcome == "waived" and more else None
    message = f"{capability}: wanted, not found" if capability else outcome
    finish = Finish(
        t=1.0, case=case, attempt=1, worker="main", seed=0, outcome=Outcome(outcome), final=True, duration=0.0,
        message=message, ruling=ruling, gate=Gate(capability=capability, wanted="x", found="y") if capability else None,
    )  # fmt: skip
    return Verdict(case, "s", Outcome(outcome), message, (finish,), finish, 1, (), True)


def a_level(folder: Path, *ids: str) -> ListedLevel:
    level = Level(
        description="x",
        cases=("suites/s/*",),
        needs=("accelerator", "accelerator_graphs"),
        may_lack=("devices",),
    )
    return ListedLevel("graphs", level, write_must_pass(folder / "graphs.txt", ids))


@pytest.mark.parametrize(
    ("outcomes", "state", "passed", "failed", "lacking"),
    [
        ({"a": ("passed", ""), "b": ("passed", "")}, PASSED, 2, 0, 0),
        ({"a": ("passed", ""), "b": ("gated", "devices")}, PASSED, 1, 0, 1),
        ({"a": ("passed", ""), "b": ("gated", "types")}, PASSED, 1, 0, 1),
        ({"a": ("passed", ""), "b": ("gated", "memory")}, FAILED, 1, 1, 0),
        ({"a": ("passed", ""), "b": ("failed", "")}, FAILED, 1, 1, 0),
        ({"a": ("passed", ""), "b": ("waived", "configs/waivers/a.yaml:3")}, FAILED, 1, 1, 0),
        ({"a": ("passed", ""), "b": ("flaky", "")}, FAILED, 1, 1, 0),
        ({"a": ("passed", ""), "b": ("skipped", "")}, FAILED, 1, 1, 0),
        ({"a": ("passed", "")}, INCOMPLETE, 1, 0, 0),
        ({"a": ("passed", ""), "b": ("not_run", "")}, INCOMPLETE, 1, 0, 0),
        ({"a": ("passed", ""), "b": ("gated", "accelerator_graphs")}, NOT_APPLICABLE, 1, 0, 1),
        ({"a": ("failed", ""), "b": ("gated", "accelerator_graphs")}, FAILED, 0, 1, 1),
        ({"a": ("passed", ""), "b": ("gated", "accelerator")}, PASSED, 1, 0, 1),
        ({"a": ("gated", "accelerator_graphs"), "b": ("gated", "accelerator_graphs")}, NOT_APPLICABLE, 0, 0, 2),
        ({"a": ("gated", "devices"), "b": ("gated", "devices")}, NOT_APPLICABLE, 0, 0, 2),
    ],
)
def test_a_level(
    tmp_path: Path, outcomes: dict[str, tuple[str, str]], state: str, passed: int, failed: int, lacking: int
) -> None:
    verdicts = {case: a_verdict(case, *what) for case, what in outcomes.items()}
    result = judge_level(a_level(tmp_path, "a", "b"), verdicts)
    assert (result.state, result.passed, len(result.failed)) == (state, passed, failed)
    assert sum(result.not_applicable.values()) == lacking
    assert result.cases == result.passed + failed + lacking + len(result.missing)


@pytest.mark.parametrize("source", ["", "a:4"], ids=["xfail", "leaks"])
def test_a_case_that_torch_fails_everywhere_is_named_and_does_not_count_against_the_device(
    tmp_path: Path, source: str
) -> None:
    verdicts = {"a": a_verdict("a", "waived", source), "b": a_verdict("b", "passed")}
    result = judge_level(a_level(tmp_path, "a", "b"), verdicts)
    assert (result.state, result.passed, dict(result.known), dict(result.failed)) == (PASSED, 1, {"a": "waived"}, {})
    assert judge_level(a_level(tmp_path, "a"), verdicts).state == FAILED, "a level of which nothing passed"


_CASES = """
import pytest

@pytest.mark.requires(devices=3)
def test_wide():
    pass

def test_passes():
    pass

@pytest.mark.xfail(reason="torch rounds twice")
def test_known():
    assert False

def test_fails():
    assert False
"""


@pytest.mark.acceptance
def test_the_statement_of_a_run(tmp_path: Path) -> None:
    """The command names the levels, their failures and hashes, and writes all of this as JSON."""
    project = Project(tmp_path / "project")
    project.write("suites/s/test_s.py", _CASES)
    folder = project.folder / "configs/conformance"
    folder.mkdir(parents=True)
    for name, cases in (("core", "test_passes', 'suites/s/test_s.py::test_known"), ("wide", "test_wide"), ("all", "*")):
        (folder / f"{name}.yaml").write_text(
            f"description: of a test\ncases: ['suites/s/test_s.py::{cases}']\nmarked: false\nmay_lack: [devices]\n"
        )
    status, said = command(project, "conformance", "--update-lists")
    assert status == 0, said
    result = project.run("-n0", "--device=cpu")
    status, said = command(project, "conformance", str(result.run_dir), "--output=statement.json")
    assert status == 1, said
    assert (
        "FAILED         all         1 of 4 cases passed, 1 failed, 1 failed as torch does everywhere, 1 not applicable"
        in said
    )
    assert "PASSED         core        1 of 2 cases passed, 1 failed as torch does everywhere" in said
    assert "1 expected failure: torch rounds twice" in said
    assert "NOT APPLICABLE wide        0 of 1 case passed, 1 not applicable" in said
    statement = json.loads((project.folder / "statement.json").read_text())
    states = {each["level"]: each["state"] for each in statement["levels"]}
    assert states == {"all": FAILED, "core": PASSED, "wide": NOT_APPLICABLE}
    (failed,) = statement["levels"][0]["failed"]
    assert failed == "suites/s/test_s.py::test_fails"
    assert statement["levels"][1]["list"].startswith("sha256:")
    assert {"torch", "python"} <= statement["software"].keys()
    status, _ = command(project, "conformance", str(result.run_dir), "--level=core", "--keep")
    assert status == 0
    assert command(project, "package", str(result.run_dir), "--out=evidence.zip")[0] == 0
    status, said = command(project, "verify", "evidence.zip")
    assert status == 0, said
    assert "level core: passed, 1 of 2 cases passed; list sha256:" in said
    kept = result.run_dir / conformance.FILE_NAME
    kept.write_text(kept.read_text().replace('"passed": 1', '"passed": 2'))
    status, said = command(project, "package", str(result.run_dir), "--out=forged.zip")
    assert status == 1
    assert "conformance.json does not follow from the journal: levels differs" in said


def a_ledger(folder: Path) -> Ledger:
    return Ledger.from_journal(read_run_journal(nights.night(folder, 0, {CASES[0]: Outcome.FAILED}) / "journal.ndjson"))


def forged(change: str) -> Callable[[dict[str, Any]], object]:
    """Return a forger's change to a stored statement."""
    return {
        "a failed case is left out of the list": lambda kept: kept["lists"].update(graphs=[CASES[1]]),
        "the state": lambda kept: kept["statement"]["levels"][0].update(state="passed"),
        "the definition": lambda kept: kept["definitions"]["graphs"].update(may_lack=["memory"]),
        "a further level": lambda kept: kept["lists"].update(more=[CASES[1]]),
        "no statement": lambda kept: kept.pop("statement"),
        "a definition that is none": lambda kept: kept["definitions"].update(graphs=3),
        "the software": lambda kept: kept["statement"]["software"].update(torch="9.9"),
    }[change]


@pytest.mark.parametrize(
    "change",
    [
        "a failed case is left out of the list",
        "the state",
        "the definition",
        "a further level",
        "no statement",
        "a definition that is none",
        "the software",
    ],
)
def test_a_kept_statement_that_was_changed_is_a_problem(tmp_path: Path, change: str) -> None:
    ledger, levels, software = a_ledger(tmp_path), [a_level(tmp_path, *CASES)], {"torch": "2.13.0"}
    data = conformance.kept_bytes(conformance.make_statement(ledger, software, levels), levels)
    assert conformance.kept_problem(data, ledger, software) == ""
    kept = json.loads(data)
    forged(change)(kept)
    made = (json.dumps(kept, indent=1, sort_keys=True) + "\n").encode()
    assert conformance.FILE_NAME in conformance.kept_problem(made, ledger, software)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"definitions": 1, "lists": 2}'])
def test_what_is_no_statement_is_a_problem(tmp_path: Path, data: bytes) -> None:
    assert conformance.kept_problem(data, a_ledger(tmp_path), {})


def test_hashes_cover_the_statement(tmp_path: Path) -> None:
    level = judge_level(a_level(tmp_path, "a"), {"a": a_verdict("a", "passed")})
    one = conformance.Statement("r", "npu", ("NPU-0",), {"torch": "2.13.0"}, (level,)).as_json()
    other = conformance.Statement("r", "npu", ("NPU-1",), {"torch": "2.13.0"}, (level,)).as_json()
    assert one["hash"] != other["hash"]
