"""Files and cases that are lost before the first case leave a finding, in every mode, and an error in junit.xml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.main import app
from harness.gating import mustpass
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal
from tests.acceptance.project import Project, Result

SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])
GOOD = "def test_good(): pass\ndef test_better(): pass\n"
#: Each way to lose cases: a file, its text, and the kind and the words of the finding.
WAYS = {
    "import": ("suites/b/test_bad.py", "import nosuch\n", "collection_error", "suites/b/test_bad.py could not be coll"),
    "syntax": ("suites/b/test_bad.py", "def test_it(:\n", "collection_error", "SyntaxError: invalid syntax"),
    "conftest": (
        "suites/b/conftest.py",
        "1 / 0\n",
        "collection_error",
        "suites/b could not be collected: Zero",
    ),
    "hook": (
        "suites/conftest.py",
        "def pytest_collection_modifyitems(items): raise RuntimeError('the hook is broken')\n",
        "session",
        "pytest ended with an internal error",
    ),
    "exit": ("suites/b/test_bad.py", "import pytest\npytest.exit('that is enough')\n", "collection_error", "enough"),
    "aborts": ("suites/b/test_bad.py", "import os\nos.abort()\n", "collection_error", "beyond 'suites/b/test_bad.py'"),
}


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    project = make_project()
    project.write("suites/a/test_good.py", GOOD)
    project.write("suites/b/test_other.py", "def test_other(): pass\n")
    return project


def found(result: Result) -> dict[str, str]:
    return {finding.kind: finding.message for finding in result.ledger.findings}


def expect_red(result: Result, kind: str, words: str) -> None:
    """Fail unless the finding is in the journal, the summary and junit.xml, and the run is red."""
    findings = found(result)
    assert words in findings[kind], (findings, result.tail())
    assert result.status not in (0, 5), result.tail()
    assert f"FINDING {kind}: " in result.terminal
    messages = [error.attrib["message"] for error in result.junit.iterfind("testsuite/testcase/error")]
    assert any(message and message in findings[kind] for message in messages)
    assert int(result.junit.attrib["errors"]) >= 1
    assert "--resume" not in result.terminal.partition("= harness =")[2] or kind != "collection_error"


@SPREADS
@pytest.mark.ways("mode", ["--isolation=batch", "--isolation=none", "--start=cold"])
@pytest.mark.ways("way", WAYS)
def test_what_is_lost_before_the_first_case_is_a_finding(project: Project, way: str, mode: str, spread: str) -> None:
    path, text, kind, words = WAYS[way]
    if way == "aborts" and mode != "--isolation=batch":
        pytest.skip("it ends pytest's own process, as it does without the harness")
    project.write(path, text)
    result = project.run(spread, mode)
    expect_red(result, kind, words)
    # Without isolation, xdist's workers run what they have collected, as they do without the harness.
    assert "passed" not in result.verdicts.values() or (mode, spread) == ("--isolation=none", "-n2")


@SPREADS
def test_the_finding_has_file_and_text_and_the_other_cases_run_on_request(project: Project, spread: str) -> None:
    project.write("suites/b/test_bad.py", "import nosuch\n")
    result = project.run(spread, "--continue-on-collection-errors")
    check_journal(result)
    expect_red(result, "collection_error", "No module named 'nosuch'")
    first, *text = found(result)["collection_error"].splitlines()
    assert first == "suites/b/test_bad.py could not be collected: ModuleNotFoundError: No module named 'nosuch'"
    assert "suites/b/test_bad.py:1: in <module>" in text
    assert [*result.verdicts.values()] == ["passed"] * 3
    assert (result.status, result.counts) == (1, {"passed": 3, "error": 1, "finding": 1})


def test_the_run_can_be_packed_and_read(project: Project) -> None:
    project.write("suites/b/test_bad.py", "import nosuch\n")
    stopped = project.run("-n0")
    whole = project.run("-n0", "--continue-on-collection-errors")
    out = project.folder / "evidence.tar.gz"
    status, output = harness("package", str(whole.run_dir), "-o", str(out))
    assert status == 0, output
    status, output = harness("package", str(stopped.run_dir), "-o", str(project.folder / "other.tar.gz"))
    assert (status, "mend it and start a new run" in output) == (1, True), output
    status, output = harness("report", "json", str(stopped.run_dir))
    assert [finding["kind"] for finding in json.loads(output)["findings"]] == ["collection_error"]
    assert "none of them red" not in (stopped.run_dir / "report.html").read_text(encoding="utf-8")


def test_a_file_that_skips_itself_is_a_finding_where_skips_are_forbidden(project: Project) -> None:
    project.write("suites/b/test_skips.py", "import pytest\npytest.importorskip('nosuch')\ndef test_it(): pass\n")
    project.write("configs/profiles/strict.yaml", "description: no skips\nskips: forbidden\n")
    project.write("configs/profiles/loose.yaml", "description: skips\n")
    loose = project.run("-n0", "--profile=loose")
    assert (loose.status, found(loose)) == (0, {}), loose.tail()
    strict = project.run("-n0", "--profile=strict")
    expect_red(strict, "collection_error", "suites/b/test_skips.py skipped itself, but profile strict forbids skips: ")
    assert "could not import 'nosuch'" in found(strict)["collection_error"]


@SPREADS
def test_a_file_of_a_must_pass_list_that_skips_itself_names_its_reason(project: Project, spread: str) -> None:
    project.write("suites/b/test_skips.py", "import pytest\npytest.skip('by mistake', allow_module_level=True)\n")
    (project.folder / "configs/must-pass").mkdir(parents=True)
    ids = ["suites/a/test_good.py::test_good", "suites/b/test_skips.py::test_it"]
    mustpass.write_must_pass(project.folder / "configs/must-pass/all.txt", ids)
    result = project.run(spread, "--must-pass=all")
    expect_red(result, "collection_error", "skipped itself, but must-pass list all.txt has 1 case of it: by mistake")
    assert "must_pass" in found(result)


def test_a_status_that_nothing_explains_is_a_finding(project: Project) -> None:
    project.write("suites/conftest.py", "def pytest_sessionfinish(session): session.exitstatus = 7\n")
    result = project.run("-n0")
    assert (result.status, result.ledger.run_exit_status()) == (7, 7), result.tail()
    expect_red(result, "session", "pytest ended with exit status 7, which no case and no other finding explains")


def harness(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


@SPREADS
def test_a_file_that_is_deleted_after_the_collection_loses_no_case(project: Project, spread: str) -> None:
    """A process that collects by itself cannot find the cases of the file: they are `lost`, and not left out."""
    gone = "import os, pathlib\ndef test_deletes(): pathlib.Path('suites/b/test_other.py').unlink()\n"
    project.write("suites/a/test_deletes.py", gone)
    for start in ("fork", "cold"):
        project.write("suites/b/test_other.py", "def test_other(): pass\n")
        result = project.run("-n0", f"--start={start}", "--isolation=case", spread)
        assert len(result.verdicts) == 4
        if start == "cold":
            assert result.status == 1, result.tail()
        assert not Path(project.folder, "suites/b/test_other.py").exists()
