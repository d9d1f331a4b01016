"""Other plugins and conftests with options of the same names. They keep them, in any order of loading."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.project import Project

#: A stand-in for pytest-playwright (``--device``, and a fixture of that name), pytest-retry, pytest-rerunfailures and
#: pytest-profiling.
PLUGIN = """\
import pytest

def pytest_addoption(parser):
    group = parser.getgroup("neighbour")
    group.addoption("--device", action="store", default=None)
    group.addoption("--retries", type=int, default=0)
    group.addoption("--fail-on-flaky", action="store_true")
    group.addoption("--profile", action="store_true")

@pytest.fixture(scope="session")
def device(pytestconfig):
    return pytestconfig.getoption("--device")
"""
TESTS = """\
import pytest

@pytest.mark.timeout(60)
def test_theirs(device, pytestconfig):
    assert device == "iPhone"
    assert pytestconfig.getoption("--retries") == 0
    assert pytestconfig.getoption("--profile")
"""
THEIR_MARK = "\ndef pytest_configure(config):\n    config.addinivalue_line('markers', 'timeout: of theirs')\n"
THEIRS = ("--device", "iPhone", "--profile")


@dataclass(frozen=True)
class Neighbour:
    """The source of the other options, and how pytest loads it."""

    file: str
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None


NEIGHBOURS = {
    "a plugin loaded before": Neighbour("neighbour.py", ("-p", "neighbour")),
    "a plugin loaded after": Neighbour("neighbour.py", env={"PYTEST_PLUGINS": "neighbour"}),
    "the first conftest": Neighbour("conftest.py"),
    "a conftest in the folder behind the option": Neighbour("inner/conftest.py"),
}


def _project(make_project: MakeProject, neighbour: Neighbour) -> Project:
    project = make_project()
    project.write("pytest.ini", "[pytest]\naddopts = -p no:hypothesispytest\nstrict_markers = true\npythonpath = .\n")
    project.write(neighbour.file, PLUGIN + THEIR_MARK)
    project.write("inner/test_it.py", TESTS)
    return project


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_harness_that_is_not_active_is_not_noticed(make_project: MakeProject, name: str) -> None:
    neighbour = NEIGHBOURS[name]
    project = _project(make_project, neighbour)
    words = (*neighbour.arguments, *THEIRS, "inner")
    result = project.run(*words, suites=None, results_dir=False, env=neighbour.env)
    plain = project.run(*words, "-p", "no:harness", suites=None, results_dir=False, env=neighbour.env)
    assert plain.counts == result.counts == {"passed": 1}, result.tail()
    assert "harness:" not in result.terminal
    assert not (project.folder / "results").exists()


@pytest.mark.ways("name", NEIGHBOURS)
def test_an_active_one_yields_and_says_so(make_project: MakeProject, name: str) -> None:
    """The harness keeps its long options, and the line that reproduces a failure uses them where it must."""
    neighbour = NEIGHBOURS[name]
    project = _project(make_project, neighbour)
    project.write("inner/test_red.py", "def test_red(): assert 0\n")
    words = (*neighbour.arguments, *THEIRS, "inner", "-p", "harness.plugin", "-oharness_preload=")
    ours = ("--harness-device=cpu", "--harness-retries", "1", "--isolation", "case")
    result = project.run(*words, *ours, suites=None, env=neighbour.env)
    assert result.verdicts == {"inner/test_it.py::test_theirs": "passed", "inner/test_red.py::test_red": "failed"}
    assert result.terminal.count("declared by another plugin or a conftest") == 1
    assert "--device, --fail-on-flaky, --profile, --retries: declared by" in result.terminal
    (settings,) = (line["settings"] for line in result.lines if line["event"] == "run")
    assert settings["device"] == "cpu"
    assert [line["attempt"] for line in result.lines if line["event"] == "finish" and "red" in line["case"]] == [1, 2]
    reproduce = shlex.split(result.ledger.verdicts[-1].reproduce or "")
    assert "--harness-device=cpu" in reproduce
    assert "--isolation=case" in reproduce


def test_a_conftest_that_is_met_while_tests_are_collected(make_project: MakeProject) -> None:
    """pytest has already parsed its arguments, so the option has its default; this must not be an error."""
    project = make_project()
    project.write("suites/inner/conftest.py", "def pytest_addoption(parser): parser.addoption('--seed', default=7)\n")
    project.write(
        "suites/inner/test_it.py", "def test_it(pytestconfig): assert pytestconfig.getoption('--seed') == 7\n"
    )
    result = project.run("--seed=3", "-n0")
    assert set(result.verdicts.values()) == {"passed"}, result.tail()
    assert result.lines[0]["seed"] == 3


@pytest.mark.ways(
    "words",
    [("--seed", "5"), ("--seed=5",), ("--harness-seed", "5"), ("@words",)],
)
def test_every_spelling(make_project: MakeProject, words: tuple[str, ...]) -> None:
    project = make_project("plain")
    project.write("words", "--seed\n5\n")
    assert project.run(*words, "-n2").lines[0]["seed"] == 5


#: A stand-in for syrupy: at its end, the session deletes unused snapshots, or is red if there are any.
SNAPSHOTS = """\
import pathlib, pytest

def pytest_addoption(parser):
    parser.addoption("--snapshot-update", action="store_true", dest="update_snapshots")
    parser.addoption("--snapshot-disable-unused", action="store_true", dest="disable_unused_snapshots")

FOLDER = pathlib.Path(__file__).parent / "snapshots"
USED = set()

@pytest.fixture
def snapshot(request):
    USED.add(request.node.name)
    return (FOLDER / request.node.name).read_text()

def pytest_sessionfinish(session):
    unused = [path for path in FOLDER.iterdir() if path.name not in USED]
    if session.config.option.update_snapshots:
        for path in unused:
            path.unlink()
    elif unused and not session.config.option.disable_unused_snapshots:
        session.exitstatus = 1
"""


@pytest.mark.parametrize("update", [(), ("--snapshot-update",)])
def test_snapshots_that_cases_have_used_are_kept(make_project: MakeProject, update: tuple[str, ...]) -> None:
    project = make_project()
    project.write("suites/conftest.py", SNAPSHOTS)
    for name in ("test_a", "test_b"):
        project.write(f"suites/snapshots/{name}", "as ever")
    project.write(
        "suites/test_it.py", "def test_a(snapshot): pass\ndef test_b(snapshot): assert snapshot == 'as ever'\n"
    )
    plain = project.run("-p", "no:harness", *update, results_dir=False)
    result = project.run("-n0", *update)
    assert plain.status == result.status == 0, result.tail()
    assert set(result.verdicts.values()) == {"passed"}
    assert sorted(path.name for path in (project.folder / "suites/snapshots").iterdir()) == ["test_a", "test_b"]
    assert ("isolation none" in result.terminal) == bool(update)


#: A stand-in for coverage, which pytest-cov starts in the collecting process.
COVERAGE = """\
import os, pathlib, sys

class Coverage:
    @classmethod
    def current(cls): return cls()
    def stop(self): pass
    def save(self):
        pathlib.Path(os.environ["PROBE_DIR"], f"saved-{os.getpid()}").touch()
        if "broken" in os.environ: raise RuntimeError("no data")
"""


@pytest.mark.parametrize("env", [{}, {"broken": "1"}])
def test_what_coverage_has_measured_is_written_by_each_executor(make_project: MakeProject, env: dict[str, str]) -> None:
    project = make_project()
    project.write("coverage.py", COVERAGE)
    project.write("suites/conftest.py", "import sys\nsys.path.insert(0, '.')\nimport coverage\n")
    project.write("suites/test_it.py", "def test_one(): pass\ndef test_two(): pass\n")
    result = project.run("-n0", "--isolation=case", env=env)
    assert result.status == 0, result.tail()
    assert len(project.probe_names()) == 2


#: A stand-in for allure-pytest: it writes a result for each test when its protocol ends.
ALLURE = """\
import pathlib, uuid
import pytest

def pytest_addoption(parser): parser.addoption("--clean-alluredir", action="store_true", dest="clean_alluredir")

class Listener:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        yield
        write(item.nodeid.rpartition("::")[2], "ended")

def write(name, status):
    (FOLDER / f"{uuid.uuid4()}.txt").write_text(f"{name} {status}")

def pytest_configure(config):
    global FOLDER
    FOLDER = config.rootpath / "allure"
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.iterdir() if config.option.clean_alluredir else ():
        path.unlink()
    config.pluginmanager.register(Listener(), "allure_listener")
"""
#: A stand-in for the package with which allure-pytest writes results.
COMMONS = """\
import types
from allure_plugin import write

def report_result(result): write(result.name, result.status)

plugin_manager = types.SimpleNamespace(hook=types.SimpleNamespace(report_result=report_result))
"""
MODEL = """\
import types
TestResult = StatusDetails = types.SimpleNamespace
"""
RESULTS = """\
import os, pytest
def test_green(): pass
def test_crash(): os.abort()
def test_red(): assert 0
@pytest.mark.requires(device="cuda")
def test_gated(): pass
def test_changes(): os.environ["LEFT"] = "1"
"""


@pytest.mark.ways("options", [("-n0",), ("-n2",), ("-n0", "--isolation=case"), ("-n0", "--start=cold")])
def test_allure_has_one_result_for_each_test_and_for_what_only_the_harness_knows(
    make_project: MakeProject, options: tuple[str, ...]
) -> None:
    project = make_project()
    project.write("pytest.ini", "[pytest]\naddopts = -p allure_plugin\npythonpath = .\nharness_suites = suites\n")
    project.write("allure_plugin.py", ALLURE)
    project.write("allure_commons/__init__.py", COMMONS)
    project.write("allure_commons/model2.py", MODEL)
    project.write("suites/test_it.py", RESULTS)
    project.write("allure/of-another-run", "test_old ended")
    project.run(*options, "--clean-alluredir", "--device=cpu")
    results = Counter(path.read_text() for path in (project.folder / "allure").iterdir())
    # A case that changes state in a shared process runs again alone: for allure, a retry.
    assert results.pop("test_changes ended") == (1 if "--isolation=case" in options else 2)
    assert results == {
        "test_changes: contaminated broken": 1,
        "test_crash: crashed broken": 1,
        "test_gated: gated skipped": 1,
        "test_green ended": 1,
        "test_red ended": 1,
    }


@pytest.mark.parametrize("declares", ["conftest.py", "inner/conftest.py"])
def test_marks_of_the_same_names_belong_to_the_suite_that_declares_them(
    make_project: MakeProject, declares: str
) -> None:
    """The conftest reads the marks; none of them gates or deselects a test, or is an error."""
    project = make_project()
    project.write("pytest.ini", "[pytest]\nstrict_markers = true\n")
    project.write(
        declares,
        """\
import pytest

def pytest_configure(config):
    for line in ("requires(capability): what a test needs", "extended", "leaks: of memory", "types(names): read below"):
        config.addinivalue_line("markers", line)

def pytest_runtest_setup(item):
    if any(mark.args[0] == "magic" for mark in item.iter_markers("requires")):
        pytest.skip("no magic here")
""",
    )
    project.write(
        "inner/test_it.py",
        """\
import pytest

@pytest.mark.requires("rng")
@pytest.mark.extended
@pytest.mark.leaks
@pytest.mark.types("float33")
def test_rng(): pass

@pytest.mark.requires("magic")
def test_magic(): pass
""",
    )
    result = project.run("inner", "-p", "harness.plugin", "-oharness_preload=", suites=None)
    assert result.verdicts == {"inner/test_it.py::test_rng": "passed", "inner/test_it.py::test_magic": "skipped"}
    assert result.terminal.count("extended, leaks, requires, types: marks that another plugin") == 1, result.tail()


def test_an_error_in_a_mark_of_a_foreign_suite_says_how_to_claim_the_mark(make_project: MakeProject) -> None:
    project = make_project()
    project.write("pytest.ini", "[pytest]\n")
    project.write("inner/test_it.py", "import pytest\n\n@pytest.mark.requires('rng')\ndef test_rng(): pass\n")
    result = project.run("inner", "-p", "harness.plugin", "-oharness_preload=", "-n0", suites=None)
    assert "requires('rng'): takes keyword arguments only" in result.terminal, result.tail()
    assert "if it is a mark of your own, declare 'requires' in pytest's ini value 'markers'" in result.terminal


#: Records at the end of each process of the run whether it has imported hypothesis.
HYPOTHESIS_IMPORTED = """\
import os, pathlib, sys

def pytest_unconfigure(config):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "controller")
    pathlib.Path(os.environ["PROBE_DIR"], f"{worker}-{'hypothesis' in sys.modules}").touch()
"""
#: What hypothesis's plugin adds to the reports of its tests, also in a worker.
NOTED = "\ndef pytest_runtest_logreport(report): report._hypothesis_stats = 'one example'\n"


@pytest.mark.parametrize(
    ("conftest", "words", "imported"),
    [
        ("", ("-n0",), ["controller-False"]),
        ("", ("-n1",), ["controller-False", "gw0-False"]),
        ("", ("-n0", "--hypothesis-show-statistics"), ["controller-True"]),
        (NOTED, ("-n0",), ["controller-True"]),
    ],
)
def test_hypothesis_is_imported_only_for_a_summary(
    make_project: MakeProject, conftest: str, words: tuple[str, ...], imported: list[str]
) -> None:
    project = make_project()
    project.write("conftest.py", HYPOTHESIS_IMPORTED + conftest)
    project.write("suites/test_it.py", "def test_it(): pass\n")
    result = project.run(*words)
    assert result.counts == {"passed": 1}, result.tail()
    assert ("= Hypothesis Statistics =" in result.terminal) == (len(words) > 1)
    assert project.probe_names() == imported
