"""Tests are collected once, in the zygote: supervisors get the same list, and import no test files."""

from __future__ import annotations

import re

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal
from tests.acceptance.project import Project, Result

SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])

#: Records the processes of the run that import the tests.
HEAVY = """\
import os, pathlib, sys

with pathlib.Path(os.environ["PROBE_DIR"], "imports").open("a") as file:
    file.write(f"{'zygote' if 'harness.zygote' in ' '.join(sys.orig_argv) else 'supervisor'}\\n")
"""
MANY = """\
import unittest
import warnings

import heavy
import pytest

warnings.warn("mind the gap")

@pytest.fixture(scope="class", params=["x", "y"])
def wide(request): return request.param

@pytest.fixture(scope="module", params=[1, 2])
def wider(request): return request.param

@pytest.fixture(scope="session", params=["s", "t"])
def widest(request): return request.param

@pytest.mark.slow
class TestOne:
    def test_one(self, wide): pass
    def test_two(self, wide, widest): pass

    class TestIn:
        @pytest.mark.timeout(30)
        def test_three(self, wider): pass

def test_four(wider, widest): pass

def test_five(): pass

test_five.special = True

@pytest.mark.parametrize("value", [object(), lambda: 1, 2, "größe"], ids=["o", "l", "n", None])
@pytest.mark.requires(device="cuda")
@pytest.mark.covers("a row")
def test_gated(value): pass

class Old(unittest.TestCase):
    def test_old(self): pass

@pytest.mark.skip(reason="not today")
def test_skipped(): pass

@pytest.mark.xfail(reason="known", strict=True)
def test_expected(): assert 1 == 2
"""
MORE = """\
import heavy
import pytest

@pytest.fixture(scope="session", params=["s", "t"])
def widest(request): return request.param

@pytest.mark.xdist_group("first")
def test_more(widest): pass

@pytest.mark.usefixtures("widest")
@pytest.mark.filterwarnings("error::heavy.HeavyWarning")
class TestMore:
    @pytest.mark.parametrize("n", range(3))
    def test_many(self, n): pass

class TestOther:
    def test_other(self): pass
"""
SKIPS = """\
import pytest
pytest.skip("not on this machine", allow_module_level=True)
"""


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    project = make_project()
    project.write("pytest.ini", (project.folder / "pytest.ini").read_text() + "markers = slow\n")
    project.write("heavy.py", HEAVY + "\nclass HeavyWarning(UserWarning): pass\n")
    project.write("suites/a/test_many.py", MANY)
    project.write("suites/a/test_skips.py", SKIPS)
    project.write("suites/b/test_more.py", MORE)
    return project


def _listed(project: Project, *arguments: str, suites: str | None = "suites") -> list[str]:
    """Return the ids that pytest lists when it imports the tests itself."""
    result = project.run("--collect-only", "-q", "-n0", *arguments, suites=suites)
    assert result.status in (0, 5), result.tail()
    return [line for line in result.terminal.splitlines() if "::" in line and not line.startswith(" ")]


def _collected(result: Result) -> tuple[list[str], set[str]]:
    """Return the ids in the journal, and the deselected ones; fail if workers differ."""
    lines = [line for line in result.lines if line["event"] == "collected"]
    assert len({line["hash"] for line in lines}) == 1, result.tail()
    # Workers that have collected at the same time both write the ids.
    full, *others = [line for line in lines if line["ids"] or line["deselected"]] or lines[:1]
    assert all((other["ids"], other["deselected"]) == (full["ids"], full["deselected"]) for other in others)
    return list(full["ids"]), set(full["deselected"])


@SPREADS
@pytest.mark.ways(
    "arguments",
    [
        (),
        ("-k", "special or one or slow and In"),
        ("-k", "test_more.py"),
        ("-m", "slow and not timeout"),
        ("-m", "requires(device='cuda')"),
        ("-m", "xdist_group"),
        ("--deselect", "suites/a/test_many.py::TestOne"),
        ("--ignore", "suites/a"),
        ("--dist=loadgroup",),
        ("--dist=loadscope",),
    ],
    ids=" ".join,
)
def test_the_list_is_that_of_a_local_collection(project: Project, arguments: tuple[str, ...], spread: str) -> None:
    """The ids have the same order, and the same ids are deselected."""
    listing = [] if arguments and arguments[0].startswith("--dist") else arguments
    wanted = _listed(project, *listing)
    result = project.run(spread, *arguments)
    check_journal(result)
    ids, deselected = _collected(result)
    assert ids == wanted
    if arguments and arguments[0] in ("-k", "-m", "--deselect"):
        assert deselected == set(_listed(project)) - set(wanted)
    assert set(result.verdicts) == set(wanted)
    assert "lost" not in result.verdicts.values(), result.tail()
    assert set(project.probe("imports")) == {"zygote", "supervisor"}, "the listing imports them"


@SPREADS
@pytest.mark.ways(
    "arguments",
    [
        ("suites/a/test_many.py::TestOne", "suites/b"),
        ("suites/b/test_more.py::TestMore::test_many[s-1]", "suites/a/test_many.py::test_four"),
        ("suites/b/test_more.py", "suites/b/test_more.py", "--keep-duplicates"),
        ("--pyargs", "suites.b.test_more"),
        # pytest then creates the nodes of the folder, and so of its files, a second time.
        ("suites/b/test_more.py::TestMore", "suites/b/test_one.py", "suites/b/test_more.py::TestOther"),
        ("suites/b/test_more.py::TestOther", "suites/b/test_one.py"),
    ],
    ids=" ".join,
)
def test_named_tests(project: Project, arguments: tuple[str, ...], spread: str) -> None:
    project.write("suites/b/test_one.py", "def test_one(): pass\n")
    for folder in ("suites", "suites/a", "suites/b"):
        project.write(f"{folder}/__init__.py", "")
    wanted = _listed(project, *arguments, suites=None)
    result = project.run(spread, *arguments, suites=None)
    assert _collected(result)[0] == wanted
    assert "lost" not in result.verdicts.values(), result.tail()


@SPREADS
def test_only_the_zygote_imports_tests(project: Project, spread: str) -> None:
    result = project.run(spread)
    assert result.status == 0, result.tail()
    assert project.probe("imports") == ["zygote"]
    assert "each pytest process" not in result.terminal
    assert len(re.findall(r"test_many\.py:7: UserWarning: mind the gap", result.terminal)) == 1
    assert result.counts["warnings"] == (1 if spread == "-n0" else 2), "each worker has it, as ever"
    assert result.counts["skipped"] == 2 if spread == "-n0" else result.counts["skipped"] >= 2
    assert "xfailed" in result.counts


@SPREADS
def test_a_module_that_skips_itself_says_why(project: Project, spread: str) -> None:
    result = project.run(spread, "-rs")
    assert "suites/a/test_skips.py:2: not on this machine" in result.terminal, result.tail()


@SPREADS
@pytest.mark.ways(
    ("text", "shown"),
    [
        ("import not_there\n", "ModuleNotFoundError: No module named 'not_there'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def test_it(:\n", "SyntaxError: invalid syntax"),
        (
            "import pytest\nclass TestIt:\n    @pytest.mark.parametrize('a', [1])\n    def test_it(self): pass\n",
            "uses no",
        ),
    ],
)
def test_a_file_that_cannot_be_imported_is_shown_once(project: Project, text: str, shown: str, spread: str) -> None:
    project.write("suites/b/test_broken.py", text)
    local = project.run("--isolation=none", spread)
    result = project.run(spread)
    assert result.status == 2, result.tail()
    # xdist compares the error texts of two workers, but not the tracebacks.
    times = result.terminal.count("ERROR collecting")
    assert times == local.terminal.count("ERROR collecting") == result.counts["error"]
    assert times == 1 or spread == "-n2"
    assert "ERROR collecting suites/b/test_broken.py" in result.terminal
    assert shown in result.terminal
    assert "passed" not in result.verdicts.values()


@SPREADS
def test_the_other_tests_run_on_request(project: Project, spread: str) -> None:
    project.write("suites/b/test_broken.py", "import not_there\n")
    result = project.run(spread, "--continue-on-collection-errors")
    assert result.status == 1, result.tail()
    assert result.counts["error"] == 1
    assert result.verdicts["suites/a/test_many.py::test_five"] == "passed"


@pytest.mark.ways("spread", ["-n0", "-n2"])
@pytest.mark.ways(
    ("isolation", "missing", "reported"),
    [
        ("batch", "suites/a/test_many.py::test_six", "ERROR: not found: "),
        ("batch", "suites/nope.py", "ERROR: file or directory not found: suites/nope.py"),
        ("none", "suites/nope.py", "ERROR: file or directory not found: suites/nope.py"),
    ],
)
def test_what_is_not_there_is_a_usage_error(
    project: Project, spread: str, isolation: str, missing: str, reported: str
) -> None:
    """This also holds with workers, whose errors xdist drops: it ends with "no tests ran"."""
    result = project.run(f"--isolation={isolation}", spread, "suites/a/test_many.py::test_five", missing, suites=None)
    assert result.status == 4, result.tail()
    assert reported in result.terminal
    assert not result.verdicts


HOOK = "import pytest\ndef {hook}({argument}): pass\n"


@SPREADS
@pytest.mark.ways(
    ("files", "options", "reason"),
    [
        ({}, ("--isolation=none",), "isolation is none"),
        ({}, ("--start=cold",), "executors start cold"),
        (
            {"conftest.py": HOOK.format(hook="pytest_itemcollected", argument="item")},
            (),
            "conftest.py implements pytest_itemcollected",
        ),
        (
            {"suites/b/conftest.py": HOOK.format(hook="pytest_collection_modifyitems", argument="items")},
            (),
            "suites/b/conftest.py implements pytest_collection_modifyitems",
        ),
        (
            {"looks.py": HOOK.format(hook="pytest_runtest_protocol", argument="item")},
            ("-p", "looks"),
            "the plugin looks implements pytest_runtest_protocol",
        ),
        (
            {"suites/b/test_plugins.py": "pytest_plugins = ['looks']\n", "looks.py": ""},
            (),
            "suites/b/test_plugins.py loads the plugin looks",
        ),
    ],
    ids=["isolation", "cold", "conftest", "late conftest", "plugin", "plugin of a test file"],
)
def test_reasons_to_collect_in_each_process(
    project: Project, files: dict[str, str], options: tuple[str, ...], reason: str, spread: str
) -> None:
    for name, text in files.items():
        project.write(name, text)
    result = project.run(spread, *options)
    assert result.status == 0, result.tail()
    reported = [line for line in result.terminal.splitlines() if "each pytest process imports and collects" in line]
    assert len(reported) == 1, result.tail()
    assert reported[0].endswith(f", since {reason}")
    assert "supervisor" in project.probe("imports")
    assert _collected(result)[0] == _listed(project)


@SPREADS
@pytest.mark.ways(
    "dies", ["os.abort()", "os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(3)", "raise KeyboardInterrupt"]
)
def test_a_file_that_ends_the_zygote(project: Project, dies: str, spread: str) -> None:
    project.write("suites/b/test_dies.py", f"import os, signal, sys\nprint('the last words', flush=True)\n{dies}\n")
    result = project.run(spread)
    assert result.status in (1, 2), result.tail()
    assert "harness: the tests could not be collected beyond 'suites/b/test_dies.py': " in result.terminal
    assert "log ends with:" in result.terminal
    assert "the last words" in result.terminal or dies in ("os.abort()", "sys.exit(3)"), "a long traceback follows"
    assert result.terminal.count("ERROR collecting") == 1
    assert not result.verdicts


def test_a_zygote_that_must_not_be_forked_has_a_list_all_the_same(make_project: MakeProject) -> None:
    """It is restarted, and its executors import the tests; supervisors still do not."""
    project = make_project()
    project.write("heavy.py", HEAVY)
    text = "import threading, heavy\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    project.write("suites/test_thread.py", text + "def test_it(): pass\n")
    result = project.run("-n2", "-p", "harness.plugin")
    assert set(result.verdicts.values()) == {"passed"}, result.tail()
    (started,) = {line["reason"] for line in result.lines if line["event"] == "executor" and line["state"] == "started"}
    assert "other threads" in started
    # The zygote and an executor: the zygote has started it with the same command line.
    assert set(project.probe("imports")) == {"zygote"}


CHANGES = """\
import os, pathlib, pytest, signal

PROBE = pathlib.Path(os.environ["PROBE_DIR"])
with (PROBE / "collections").open("a") as file:
    file.write(".\\n")

@pytest.mark.parametrize("number", [len((PROBE / "collections").read_text())])
def test_changes(number): pass

def test_kills():
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()

def test_last(): pass
"""


def test_a_second_zygote_with_another_list_is_refused(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/test_changes.py", CHANGES)
    result = project.run("-n0")
    assert result.status not in (0, 5), result.tail()
    assert "found other cases, or another order, than the first zygote" in result.terminal
    assert result.verdicts["suites/test_changes.py::test_last"] == "not_run"


#: Collects one test more in processes whose main module has this name.
ONE_MORE = """
import sys, pytest

NAME = getattr(sys.modules["__main__"].__spec__, "name", "")

@pytest.mark.parametrize("number", range(2 + (NAME {sign} "{main}")))
def test_it(number): pass
"""
HOOK = "def pytest_collection_modifyitems(items): pass\n"


@pytest.mark.parametrize("sign", ["==", "!="])
@pytest.mark.parametrize(("start", "workers"), [("fork", "-n0"), ("fork", "-n2"), ("cold", "-n0"), ("cold", "-n2")])
def test_processes_that_collect_different_tests_are_a_finding(
    make_project: MakeProject, start: str, workers: str, sign: str
) -> None:
    """Otherwise a worker that collects less than the executors would be green."""
    project = make_project()
    main = {"fork": "harness.zygote.__main__", "cold": "harness.zygote.cold"}[start]
    project.write("suites/conftest.py", HOOK)
    project.write("suites/test_more.py", ONE_MORE.format(main=main, sign=sign))
    result = project.run(workers, f"--start={start}")
    assert result.status == 1, result.tail()
    finding = next(finding for finding in result.ledger.findings if finding.kind == "collections_differ")
    assert {"2", "3"} <= {word.rstrip(":") for word in finding.message.split()}
    if start == "fork":
        assert "1 test only in " in finding.message
        assert "suites/test_more.py::test_it[2]" in finding.message
