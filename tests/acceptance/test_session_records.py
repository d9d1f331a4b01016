"""Values that tests record per session, create once for all, or count on their session, compared with plain pytest."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.acceptance.conftest import MakeProject

SPREADS = pytest.mark.ways("options", [("-n0",), ("-n0", "--isolation=case"), ("-n2",), ("-n0", "--isolation=none")])

PROPERTIES = """\
import pytest

@pytest.fixture(scope="session", autouse=True)
def facts(record_testsuite_property):
    record_testsuite_property("architecture", "PPC")
    yield
    record_testsuite_property("at the end", 3)

def test_first(record_testsuite_property, record_property, record_xml_attribute):
    record_testsuite_property("in a test", {"a": 1})
    record_property("own", 1)
    record_xml_attribute("status", "required")

def test_second(): pass
"""
RECORDED = {("architecture", "PPC"), ("at the end", "3"), ("in a test", "{'a': 1}")}


def _properties(document: Path) -> set[tuple[str | None, str | None]]:
    return {
        (each.get("name"), each.get("value"))
        for each in ElementTree.parse(document).findall(".//testsuite/properties/*")
    }


@SPREADS
def test_properties_are_in_both_reports(make_project: MakeProject, options: tuple[str, ...]) -> None:
    project = make_project()
    project.write("suites/test_it.py", PROPERTIES)
    report = project.folder / "theirs.xml"
    words = (f"--junitxml={report}", "-ojunit_family=xunit1", "-Wignore")
    plain = project.run("-p", "no:harness", *words, suites="suites", results_dir=False)
    assert plain.status == 0, plain.tail()
    assert _properties(report) == RECORDED
    (attribute,) = ElementTree.parse(report).findall(".//testcase[@status='required']")
    report.unlink()
    result = project.run(*words, *options)
    assert result.status == 0, result.tail()
    assert _properties(report) == RECORDED
    assert len(ElementTree.parse(report).findall(".//testsuite/properties/*")) == len(RECORDED), "each once"
    (found,) = ElementTree.parse(report).findall(".//testcase[@status='required']")
    assert found.get("name") == attribute.get("name") == "test_first"
    own = {(each.get("name"), each.get("value")) for each in found.findall("properties/*")}
    assert own == {("own", "1")}
    assert _properties(result.run_dir / "junit.xml") >= RECORDED


#: From xdist's documentation, except for its fixture `worker_id`.
ONCE = """\
import os, pathlib
import pytest
from filelock import FileLock

@pytest.fixture(scope="session")
def data(tmp_path_factory):
    shared = tmp_path_factory.getbasetemp().parent / "data"
    with FileLock(f"{shared}.lock"):
        if not shared.is_file():
            pathlib.Path(os.environ["PROBE_DIR"], f"made-by-{os.getpid()}").touch()
            shared.write_text("made")
    return shared.read_text()

@pytest.mark.parametrize("number", range(4))
def test_data(data, number, tmp_path):
    assert data == "made"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
"""


@pytest.mark.ways(
    "options", [("-n2",), ("-n2", "--isolation=case"), ("-n0", "--isolation=case"), ("-n0", "--start=cold")]
)
def test_what_a_lock_makes_once_is_made_once_for_all_executors(
    make_project: MakeProject, options: tuple[str, ...]
) -> None:
    pytest.importorskip("filelock")
    project = make_project()
    project.write("suites/test_it.py", ONCE)
    plain = project.run("-p", "no:harness", "-n2", suites="suites", results_dir=False)
    assert plain.status == 0, plain.tail()
    assert len(project.probe_names()) == 1
    result = project.run(*options)
    assert result.status == 0, result.tail()
    assert len(project.probe_names()) == 2, "one more, by one process"
    assert not list(project.temp.glob("harness-*"))


COUNTED = """\
def test_first(request): request.session.testsfailed += 1
def test_last(): pass
"""
COUNTED_BY_A_FIXTURE = """\
import pytest

@pytest.fixture(scope="session")
def counted(request):
    yield
    request.session.testsfailed += 1

def test_last(counted): pass
"""
COUNTED_BY_A_HOOK = "def pytest_runtest_teardown(item): item.session.testsfailed += 1\n"
TAKEN_OFF = """\
def test_first(): assert 0
def test_last(request): request.session.testsfailed = 0
"""
#: By name: the test file, the conftest, and plain pytest's exit status.
COUNTS = {
    "a test": (COUNTED, "", 1),
    "a fixture at the end": (COUNTED_BY_A_FIXTURE, "", 1),
    "a hook": ("def test_last(): pass\n", COUNTED_BY_A_HOOK, 1),
    "nobody": ("import pytest\n@pytest.mark.xfail\ndef test_last(): assert 0\n", "", 0),
    "a test that takes a failure off": (TAKEN_OFF, "", 0),
}


@pytest.mark.ways("options", [("-n0",), ("-n0", "--isolation=case"), ("-n2",)])
@pytest.mark.ways("by", COUNTS)
def test_a_failure_that_is_counted_makes_the_run_red(
    make_project: MakeProject, by: str, options: tuple[str, ...]
) -> None:
    """A case that has failed stays red, regardless of the session's status."""
    project = make_project()
    tests, conftest, status = COUNTS[by]
    project.write("suites/test_it.py", tests)
    project.write("suites/conftest.py", conftest)
    plain = project.run("-p", "no:harness", suites="suites", results_dir=False)
    assert plain.status == status, plain.tail()
    result = project.run(*options)
    assert result.status == (1 if "takes" in by else status), result.tail()


KEEPS = """\
SEEN = []

def pytest_runtest_makereport(item): SEEN.append(item.nodeid)
def {end}(): print(f"seen {{len(SEEN)}}")
"""


@pytest.mark.ways("spread", ["-n0", "-n2"])
@pytest.mark.parametrize("end", ["pytest_sessionfinish", "pytest_unconfigure"])
def test_who_may_keep_results_is_named(make_project: MakeProject, end: str, spread: str) -> None:
    project = make_project()
    project.write("suites/test_it.py", "def test_it(): pass\n")
    project.write("suites/inner/test_inner.py", "def test_it(): pass\n")
    project.write("suites/conftest.py", KEEPS.format(end=end))
    project.write("suites/inner/conftest.py", KEEPS.format(end=end))
    result = project.run(spread)
    assert result.status == 0, result.tail()
    assert "harness: suites/conftest.py may keep results of tests" in result.terminal
    assert "harness: suites/inner/conftest.py may keep results of tests" in result.terminal
    assert result.terminal.count("may keep results") == 2


def test_only_those_with_both_hooks_are_named(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/test_it.py", "def test_it(): pass\n")
    project.write(
        "suites/conftest.py", "def pytest_sessionfinish(): pass\ndef pytest_runtest_logreport(report): pass\n"
    )
    project.write("suites/inner/conftest.py", "def pytest_runtest_setup(item): pass\n")
    project.write("suites/inner/test_inner.py", "def test_it(): pass\n")
    assert "may keep results" not in project.run("-n0").terminal
    project.write("suites/conftest.py", KEEPS.format(end="pytest_sessionfinish"))
    result = project.run("-n0", "--isolation=none")
    assert "may keep results" not in result.terminal
    assert "seen 6" in result.terminal
