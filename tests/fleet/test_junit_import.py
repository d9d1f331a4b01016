"""Run directories of imported results: ids, journal, and forbidden operations."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.fleet import junit_import
from harness.fleet.junit_import import Ids, ImportingError, JUnitCase, JUnitError, Wanted
from harness.journal import journal, reader
from harness.journal.events import RunStarted
from harness.journal.ledger import Ledger
from harness.scheduling.resume import resumption_of
from harness.scheduling.workers import ResumeError
from harness.tools import order
from harness.tools.evidence import checks, record
from harness.tools.evidence.package import Package, PackageError

GTEST = (
    '<testsuites name="AllTests" failures="1"><testsuite name="Foo" hostname="node7" timestamp="2026-01-02T03:04:05">'
    '<testcase name="Ok" classname="Foo" status="run" time="0.25"/>'
    '<testcase name="Bad" classname="Foo" status="run" time="0.5"><failure message="no">trace</failure></testcase>'
    '<testcase name="Off" classname="Foo" status="notrun"/></testsuite></testsuites>'
)


@pytest.fixture
def gtest(tmp_path: Path) -> Path:
    path = tmp_path / "gtest.xml"
    path.write_text(GTEST)
    return path


def wanted(*files: Path, tool: str = "gtest", device: str = "") -> Wanted:
    return Wanted(files, tool, device, ["harness", "import"])


@pytest.mark.parametrize(
    ("names", "ids", "numbered"),
    [
        ([("C", "a"), ("C", "b"), ("D", "a")], ["t/C::a", "t/C::b", "t/D::a"], 0),
        ([("", "a")], ["t::a"], 0),
        ([("C", "a"), ("C", "a"), ("C", "a")], ["t/C::a", "t/C::a #2", "t/C::a #3"], 2),
        ([("C", "a"), ("C", "a #2"), ("C", "a")], ["t/C::a", "t/C::a #2", "t/C::a #3"], 1),
        ([("C", "a"), ("C", "a"), ("C", "a #2")], ["t/C::a", "t/C::a #2", "t/C::a #2 #2"], 2),
        ([("a::b", "c"), ("a", "b::c")], ["t/a::b::c", "t/a::b::c #2"], 1),
    ],
)
def test_ids_are_stable_and_no_two_are_the_same(names: list[tuple[str, str]], ids: list[str], numbered: int) -> None:
    made = Ids("t")
    assert [made.of(JUnitCase(group, name, Outcome.PASSED, 0.0)) for group, name in names] == ids == made.all
    assert made.numbered == numbered


@pytest.mark.parametrize("began", ["9999-12-31T23:59:59", "9999-12-31T23:59:59-12:00", "9990-01-01T00:00:00"])
@pytest.mark.parametrize("written", [1e9, 4e11], ids=["now", "in another age"])
def test_an_impossible_time_leaves_no_broken_run(began: str, written: float, tmp_path: Path) -> None:
    path = tmp_path / "late.xml"
    cases = '<testcase name="x" time="1000000000"/><testcase name="y" time="9"/>'
    path.write_text(f'<testsuite name="s" timestamp="{began}">{cases}</testsuite>')
    os.utime(path, (written, written))
    junit_import.write(wanted(path), tmp_path / "run")
    contents = reader.read_run_journal(tmp_path / "run" / journal.FILE_NAME)
    assert (contents.damaged, [verdict.case for verdict in Ledger.from_journal(contents).verdicts]) == (
        (),
        ["gtest/s::x", "gtest/s::y"],
    )


def test_the_journal_of_imported_results(gtest: Path, tmp_path: Path) -> None:
    result = junit_import.write(wanted(gtest, device="NVIDIA H100"), tmp_path / "run")
    assert result.text == "3 cases: 1 skipped, 1 passed, 1 failed"
    ledger = Ledger.from_journal(reader.read_run_journal(tmp_path / "run" / journal.FILE_NAME))
    run = ledger.run
    assert run is not None
    assert run.imported is not None
    assert [(each.path, each.sha256, each.cases) for each in run.imported.files] == [
        (str(gtest), hashlib.sha256(GTEST.encode()).hexdigest(), 3)
    ]
    assert (run.imported.tool, run.isolation, run.host, run.t) == ("gtest", "none", "node7", 1767323045.0)
    assert {verdict.case: verdict.outcome for verdict in ledger.verdicts} == {
        "gtest/Foo::Ok": Outcome.PASSED,
        "gtest/Foo::Bad": Outcome.FAILED,
        "gtest/Foo::Off": Outcome.SKIPPED,
    }
    assert not ledger.findings
    assert ledger.cost.executors == 0
    assert [verdict.reproduce for verdict in ledger.verdicts] == [None] * 3
    assert (ledger.run_exit_status(), ledger.end and ledger.end.duration) == (1, 0.75)


@pytest.mark.parametrize(
    ("case", "status"), [('<testcase name="a"/>', 0), ('<testcase name="a"><skipped/></testcase>', 5)]
)
def test_the_exit_status_of_imported_results(case: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text(f"<testsuite>{case}</testsuite>")
    junit_import.write(wanted(tmp_path / "x.xml"), tmp_path / "run")
    ledger = Ledger.from_journal(reader.read_run_journal(tmp_path / "run" / journal.FILE_NAME))
    assert ledger.run_exit_status() == status


def test_failures_that_no_case_has_are_a_finding(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text('<testsuite failures="2"><testcase name="a"/></testsuite>')
    result = junit_import.write(wanted(tmp_path / "x.xml"), tmp_path / "run")
    assert result.findings == (f"{tmp_path / 'x.xml'} counts 2 failures that no case of it has",)
    ledger = Ledger.from_journal(reader.read_run_journal(tmp_path / "run" / journal.FILE_NAME))
    assert [each.kind for each in ledger.findings] == ["imported_totals"]
    assert ledger.run_exit_status() == 1


def test_several_files_are_one_run_that_begins_with_the_earliest(gtest: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.xml"
    other.write_text(GTEST.replace("node7", "node8").replace("2026-01-02", "2026-01-01").replace("Bad", "Worse"))
    result = junit_import.write(wanted(gtest, other), tmp_path / "run")
    assert (result.numbered, result.counts[Outcome.FAILED]) == (2, 2)
    (run, *_) = reader.read_run_journal(tmp_path / "run" / journal.FILE_NAME).events
    assert isinstance(run, RunStarted)
    assert (run.host, run.t) == ("node7, node8", 1767236645.0)


def test_nothing_is_written_if_one_of_the_files_is_refused(gtest: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.xml").write_text("<testsuite>")
    with pytest.raises(JUnitError):
        junit_import.write(wanted(gtest, tmp_path / "bad.xml"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("tool", "device", "text"),
    [
        ("", "", "--name='': expected a name on one line"),
        ("a\nb", "", "expected a name on one line"),
        ("a/b", "", "--name='a/b' cannot begin the ids of cases"),
        ("a::b", "", "--name='a::b' cannot begin the ids of cases"),
        ("a", "\x00", "--device="),
    ],
)
def test_a_name_that_cannot_be_used(tool: str, device: str, text: str, gtest: Path, tmp_path: Path) -> None:
    with pytest.raises(ImportingError) as caught:
        junit_import.write(wanted(gtest, tool=tool, device=device), tmp_path / "run")
    assert text in str(caught.value)


def test_a_folder_with_a_run_is_left_alone(gtest: Path, tmp_path: Path) -> None:
    junit_import.write(wanted(gtest), tmp_path / "run")
    before = (tmp_path / "run" / journal.FILE_NAME).read_bytes()
    with pytest.raises(ImportingError, match="already contains a run: name another folder"):
        junit_import.write(wanted(gtest), tmp_path / "run")
    assert (tmp_path / "run" / journal.FILE_NAME).read_bytes() == before


def test_imported_results_are_no_evidence_and_nothing_of_them_can_run_again(gtest: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    junit_import.write(wanted(gtest), run_dir)
    contents = reader.read_run_journal(run_dir / journal.FILE_NAME)
    ran = "were run by gtest, imported from "
    with pytest.raises(PackageError, match=f"{ran}.*: only a run of the harness is evidence"):
        Package.of(run_dir)
    files = {name: (run_dir / name).read_bytes() for name in (journal.FILE_NAME, "environment.json")}
    assert any(
        "only a run of the harness is evidence" in each.text
        for each in checks.run_problems(record.read_evidence_record(files, run_dir))
    )
    with pytest.raises(ResumeError, match=ran):
        resumption_of(contents)
    with pytest.raises(HarnessError, match=ran):
        order.process_history_of(contents, "gtest/Foo::Bad", tmp_path)


def test_memory_does_not_grow_with_the_size_of_outputs(tmp_path: Path) -> None:
    path = tmp_path / "large.xml"
    with path.open("w") as file:
        file.write("<testsuites><testsuite>")
        for number in range(400):
            file.write(f'<testcase name="{number}"><system-out>{"x" * 100_000}</system-out></testcase>')
        file.write("</testsuite></testsuites>")
    tracemalloc.start()
    try:
        junit_import.write(wanted(path), tmp_path / "run")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 40_000_000
    assert peak < 20_000_000
