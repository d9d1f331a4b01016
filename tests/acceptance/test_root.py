"""One root folder, one ini file and one set of ids in all processes of a run, wherever pytest finds them."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from harness.core.outcome import Outcome
from harness.gating import mustpass
from tests.acceptance.conftest import MakeProject
from tests.acceptance.project import Project, Result

CASES = "def test_passes(): pass\ndef test_fails(): assert 0\n"
NEEDS_FIXTURE = "def test_passes(above): pass\ndef test_fails(above): assert 0\n"
ABOVE = "import pytest\n@pytest.fixture\ndef above(): pass\n"
NEEDS_MODULE = "import beside\ndef test_passes(): pass\ndef test_fails(): assert 0\n"
INI = "[pytest]\nharness_suites = {suites}\nharness_preload =\n"
#: The ini file of another project, with which nothing is collected here.
OTHER_INI = "[pytest]\npython_files = other_*.py\n"
FOREIGN = ("-p", "harness.plugin", "-oharness_preload=")


@dataclass(frozen=True)
class Layout:
    """Files, and a run among them. `folder` is where it is started, `links` are symbolic links by name.

    `run_dir` is the run directory that `arguments` name, if any.
    """

    arguments: tuple[str, ...]
    files: Mapping[str, str]
    folder: str = "."
    links: Mapping[str, str] = field(default_factory=dict)
    run_dir: str | None = None


LAYOUTS = {
    "no ini file, a new run directory": Layout(
        (".", *FOREIGN, "--results-dir", "../elsewhere/new"),
        {"mine/test_it.py": CASES},
        folder="mine",
        run_dir="elsewhere/new",
    ),
    "no ini file, switched on by an option alone": Layout(
        ("test_it.py", "-oharness_preload=", "--results-dir", "../elsewhere/new"),
        {"mine/test_it.py": CASES},
        folder="mine",
        run_dir="elsewhere/new",
    ),
    "no ini file, the run directory within another project": Layout(
        (*FOREIGN, "--results-dir", "../other/results/new"),
        {"mine/test_it.py": CASES, "other/pytest.ini": OTHER_INI},
        folder="mine",
        run_dir="other/results/new",
    ),
    "no ini file, an ini value that is a path": Layout(
        (".", *FOREIGN, "-opythonpath=src", "--results-dir", "../elsewhere/new"),
        {"mine/test_it.py": NEEDS_MODULE, "mine/src/beside.py": ""},
        folder="mine",
        run_dir="elsewhere/new",
    ),
    "an ini file, a new run directory": Layout(
        ("suites", "--results-dir", "../elsewhere/new"),
        {"mine/suites/test_it.py": CASES, "mine/pytest.ini": INI.format(suites="suites")},
        folder="mine",
        run_dir="elsewhere/new",
    ),
    "-c FILE": Layout(("-c", "my.ini", "suites"), {"my.ini": INI.format(suites="suites"), "suites/test_it.py": CASES}),
    "-c FILE in another folder": Layout(
        ("-c", "../conf/my.ini", "suites"),
        {"conf/my.ini": INI.format(suites="../mine/suites"), "mine/suites/test_it.py": CASES},
        folder="mine",
    ),
    "--rootdir above": Layout(
        ("--rootdir", "..", "suites"),
        {"mine/pytest.ini": INI.format(suites="suites"), "mine/suites/test_it.py": CASES},
        folder="mine",
    ),
    "--rootdir below": Layout(
        ("--rootdir=suites", "suites"), {"pytest.ini": INI.format(suites="suites"), "suites/test_it.py": CASES}
    ),
    "--confcutdir above": Layout(
        ("--confcutdir", "..", "suites"),
        {
            "mine/pytest.ini": INI.format(suites="suites"),
            "conftest.py": ABOVE,
            "mine/suites/test_it.py": NEEDS_FIXTURE,
        },
        folder="mine",
    ),
    "a file outside the root folder": Layout(
        ("-c", "pytest.ini", "../outside/test_it.py"),
        {"mine/pytest.ini": INI.format(suites="../outside"), "outside/test_it.py": CASES},
        folder="mine",
    ),
    "a folder outside the root folder": Layout(
        ("suites", "../outside"),
        {
            "mine/pytest.ini": INI.format(suites="suites ../outside"),
            "mine/suites/test_it.py": CASES,
            "outside/test_out.py": CASES,
        },
        folder="mine",
    ),
    "--pyargs": Layout(
        ("--pyargs", "suites.inner.test_it"),
        {
            "pytest.ini": INI.format(suites="suites") + "pythonpath = .\n",
            "suites/__init__.py": "",
            "suites/inner/__init__.py": "",
            "suites/inner/test_it.py": CASES,
        },
    ),
    "the suites are a link": Layout(
        ("suites",),
        {"pytest.ini": INI.format(suites="suites"), "real/test_it.py": CASES},
        links={"suites": "real"},
    ),
    "the project is reached through a link": Layout(
        ("link/suites",),
        {"real/pytest.ini": INI.format(suites="suites"), "real/suites/test_it.py": CASES},
        links={"link": "real"},
    ),
    "two folders, each with an ini file": Layout(
        ("a", "b", *FOREIGN),
        {"a/pytest.ini": "", "b/pytest.ini": "", "a/test_a.py": CASES, "b/test_b.py": CASES},
    ),
    "two folders without": Layout(
        ("a", "../b", *FOREIGN, "--results-dir", "../elsewhere/new"),
        {"mine/a/test_a.py": CASES, "b/test_b.py": CASES},
        folder="mine",
        run_dir="elsewhere/new",
    ),
    "an ini file nearer to the case": Layout(
        (".", *FOREIGN),
        {"pytest.ini": "", "inner/pytest.ini": "", "inner/test_it.py": CASES},
    ),
    "pytest.toml": Layout(
        ("suites",),
        {"pytest.toml": "[pytest]\nharness_suites = ['suites']\nharness_preload = []\n", "suites/test_it.py": CASES},
    ),
    "pyproject.toml": Layout(
        ("suites",),
        {
            "pyproject.toml": "[tool.pytest.ini_options]\nharness_suites = ['suites']\nharness_preload = []\n",
            "suites/test_it.py": CASES,
        },
    ),
    "pyproject.toml that says nothing": Layout(
        ("mine", *FOREIGN), {"mine/pyproject.toml": "[project]\nname = 'x'\n", "mine/test_it.py": CASES}
    ),
    "tox.ini": Layout(("suites",), {"tox.ini": INI.format(suites="suites"), "suites/test_it.py": CASES}),
    "setup.cfg": Layout(
        ("suites",),
        {"setup.cfg": INI.format(suites="suites").replace("pytest]", "tool:pytest]"), "suites/test_it.py": CASES},
    ),
    "a subfolder": Layout(
        (),
        {"pytest.ini": INI.format(suites="suites"), "suites/inner/test_it.py": CASES},
        folder="suites/inner",
    ),
    "arguments after two dashes": Layout(
        ("-oharness_preload=", "--isolation=case", "--", "suites/test_it.py"),
        {"pytest.ini": INI.format(suites="suites"), "suites/test_it.py": CASES},
    ),
    "addopts": Layout(
        ("suites",),
        {
            "pytest.ini": INI.format(suites="suites") + "addopts = --rootdir=suites --confcutdir=suites -m 'not slow'\n"
            "markers = slow\n",
            "suites/test_it.py": CASES,
        },
    ),
}
SPREAD = (
    "no ini file, a new run directory",
    "no ini file, the run directory within another project",
    "-c FILE in another folder",
    "--rootdir above",
    "a file outside the root folder",
    "two folders, each with an ini file",
    "arguments after two dashes",
)
COLD = ("no ini file, a new run directory", "-c FILE in another folder", "the project is reached through a link")


def _laid_out(project: Project, layout: Layout) -> None:
    (project.folder / "pytest.ini").unlink()
    for name, text in layout.files.items():
        project.write(name, text)
    for name, target in layout.links.items():
        (project.folder / name).symlink_to(target)


def _run(project: Project, layout: Layout, *options: str) -> Result:
    """Run without an option of the harness, so that only the ini value decides which tests are cases."""
    result = project.run(*options, *layout.arguments, suites=None, folder=layout.folder, results_dir=False)
    if layout.run_dir is not None:
        return dataclasses.replace(result, run_dir=project.folder / layout.run_dir)
    made = [path for path in (project.folder / layout.folder / "results").glob("*") if path.is_dir()]
    assert len(made) == 1, f"the harness was not active:\n{result.tail()}"
    return dataclasses.replace(result, run_dir=made[0])


def _plain_ids(project: Project, layout: Layout) -> set[str]:
    """Return the ids that pytest collects without the harness."""
    ours = {"-p", "harness.plugin", "-oharness_preload=", "--isolation=case", "--results-dir"}
    arguments = [word for word in layout.arguments if word not in ours and "/new" not in word]
    options = ("-p", "no:harness", "--collect-only", "-q", "-oharness_suites=", "-Wignore::pytest.PytestConfigWarning")
    result = project.run(*options, *arguments, suites=None, folder=layout.folder)
    assert result.status == 0, result.tail()
    return {line for line in result.terminal.splitlines() if "::test_" in line}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, ("-n0",)) for name in [*LAYOUTS][::4]),
        *(pytest.param(name, ("-n0",), marks=pytest.mark.nightly) for name in LAYOUTS if name not in [*LAYOUTS][::4]),
        *(pytest.param(name, ("-n2",), marks=pytest.mark.nightly) for name in SPREAD),
        *(pytest.param(name, ("-n0", "--start=cold"), marks=pytest.mark.nightly) for name in COLD),
    ],
)
def test_every_process_has_the_root_folder_of_the_first(
    make_project: MakeProject, name: str, options: tuple[str, ...]
) -> None:
    """Ids are those of plain pytest, each case has its verdict, and the line that reproduces a failure works."""
    project, layout = make_project(), LAYOUTS[name]
    _laid_out(project, layout)
    ids = _plain_ids(project, layout)
    result = _run(project, layout, *options)
    assert result.verdicts == {case: "failed" if case.endswith("fails") else "passed" for case in ids}, result.tail()
    assert result.status == 1
    for verdict in result.ledger.verdicts:
        if verdict.outcome is Outcome.FAILED:
            assert verdict.reproduce is not None
            program, *words = shlex.split(verdict.reproduce)
            assert program == "pytest"
            again = project.run(*words, suites=None, folder=layout.folder)
            assert again.verdicts == {verdict.case: "failed"}, f"{verdict.reproduce}\n{again.tail()}"


@pytest.mark.ways("options", [("-n0",), ("-n2",), ("-n0", "--start=cold")])
def test_a_process_that_finds_another_ini_file_says_so(make_project: MakeProject, options: tuple[str, ...]) -> None:
    """Another plugin's option names the run directory, as a separate argument, which pytest takes for a path."""
    project = make_project()
    layout = LAYOUTS["no ini file, the run directory within another project"]
    _laid_out(project, layout)
    project.write("theirs.py", "def pytest_addoption(parser): parser.addoption('--theirs')\n")
    env = {"PYTHONPATH": os.pathsep.join([str(project.folder), os.environ.get("PYTHONPATH", "")])}
    there = "../other/results/new"
    words = ("-p", "theirs", *FOREIGN, *options, f"--results-dir={there}", "--theirs", there)
    result = project.run(*words, suites=None, folder=layout.folder, results_dir=False, env=env)
    assert result.status in (1, 2), result.tail()
    found = project.folder / "other" / "pytest.ini"
    assert f"the ini file is {found} in this process, but none in the process that began the run" in result.terminal
    run_dir = project.folder / "other" / "results" / "new"
    assert "lost" not in dataclasses.replace(result, run_dir=run_dir).verdicts.values()


#: The harness's options that take paths, each with an existing path outside the project, as prepared below.
PATHS = {
    "results-dir": "../other/empty",
    "from": "../other/run",
    "history": "../other/run",
    "profile": "../other/profile.yaml",
    "hardware": "../other/hardware.yaml",
    "waivers": "../other/waivers.yaml",
    "must-pass": "../other/must.txt",
}
SPELLINGS = ("--{} {}", "PYTEST_ADDOPTS", "--harness-{} {}", "--{}={}")


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project whose folder `other` has an ini file, a run of the folder `mine`, and a path for each option."""
    project = Project(tmp_path_factory.mktemp("elsewhere") / "project")
    files = {
        "mine/test_it.py": "def test_passes(): pass\n",
        "other/pytest.ini": OTHER_INI,
        "other/profile.yaml": "description: all\ncases: ['*']\n",
        "other/hardware.yaml": "description: a CPU\ndevice: {device: cpu}\n",
        "other/waivers.yaml": "waivers: []\n",
    }
    (project.folder / "pytest.ini").unlink()
    for name, text in files.items():
        project.write(name, text)
    (project.folder / "other" / "empty").mkdir()
    mustpass.write_must_pass(project.folder / "other" / "must.txt", ["test_it.py::test_passes"])
    words = (".", *FOREIGN, "-n0", "--device=cpu", "--results-dir=../other/run")
    assert project.run(*words, suites=None, folder="mine", results_dir=False).status == 0
    return project


@pytest.mark.ways(("option", "spelling"), [*zip(PATHS, itertools.cycle(SPELLINGS), strict=False)])
def test_no_value_of_an_option_is_taken_for_an_argument(elsewhere: Project, option: str, spelling: str) -> None:
    variable = "--{} {}" if spelling == "PYTEST_ADDOPTS" else ""
    words = (variable or spelling).format(option, PATHS[option])
    more = (".", *FOREIGN, "-n0", "--device=cpu", *([] if variable else words.split()))
    more += ("--only=passed",) if option == "from" else ()
    own = option == "results-dir"
    env = {"PYTEST_ADDOPTS": words} if variable else {}
    result = elsewhere.run(*more, suites=None, folder="mine", results_dir=not own, env=env)
    if own:
        result = dataclasses.replace(result, run_dir=elsewhere.folder / "other" / "empty")
    assert result.status == 0, result.tail()
    assert result.verdicts == {"test_it.py::test_passes": "passed"}, result.tail()
    assert result.lines[0]["rootdir"] == str(elsewhere.folder / "mine")
    if own:
        shutil.rmtree(result.run_dir)
        result.run_dir.mkdir()


INTERRUPTED = """\
import os, signal, pathlib

def test_first(): pass

def test_second():
    told = pathlib.Path(os.environ["PROBE_DIR"], "told")
    if not told.exists():
        told.touch()
        os.kill(int(os.environ["HARNESS_TEST_CONTROLLER"]), signal.SIGKILL)
        signal.pause()
"""
#: Loaded by the controller first.
CONTROLLER = "import os\nos.environ.setdefault('HARNESS_TEST_CONTROLLER', str(os.getpid()))\n"


@pytest.mark.ways("resume", [("--resume", "../r"), ("--resume=../r",), ("--harness-resume", "../r")])
@pytest.mark.ways("folder", ["mine", "."])
def test_resume_takes_the_root_of_the_run(make_project: MakeProject, resume: tuple[str, ...], folder: str) -> None:
    """This holds with and without an ini file, and from any folder."""
    project = make_project()
    (project.folder / "pytest.ini").unlink()
    project.write("mine/test_it.py", INTERRUPTED)
    project.write("mine/conftest.py", CONTROLLER)
    project.run(".", *FOREIGN, "-n0", "--results-dir", "../r", suites=None, folder="mine", results_dir=False)
    words = resume if folder == "mine" else [word.replace("../r", "r") for word in resume]
    what = "." if folder == "mine" else "mine"
    again = project.run(what, *FOREIGN, "-n0", *words, suites=None, folder=folder, results_dir=False)
    again = dataclasses.replace(again, run_dir=project.folder / "r")
    assert again.verdicts == {"test_it.py::test_first": "passed", "test_it.py::test_second": "passed"}, again.tail()
    assert again.status == 0


DECISIVE = {
    "pytest.ini": INI.format(suites="suites") + "addopts = -m 'not marked'\nmarkers = marked\n slow\n",
    "suites/conftest.py": """\
import pytest

def pytest_addoption(parser):
    parser.addoption("--runslow", action="store_true")
    parser.addoption("--answer", default="42")

def pytest_runtest_setup(item):
    if item.get_closest_marker("slow") and not item.config.getoption("--runslow"):
        pytest.skip("slow")
""",
    "suites/module.py": 'def f():\n    """\n    >>> 1 + 1\n    3\n    """\n',
    "suites/test_it.py": """\
import pytest, sys, time, warnings

@pytest.mark.marked
def test_marked(): assert 0

@pytest.mark.slow
def test_slow(): assert 0

def test_answer(pytestconfig): assert pytestconfig.getoption("--answer") == "42"

def test_warning(): warnings.warn("an error on request")

def test_import_mode(): assert "test_it" in sys.modules, "with importlib, modules have longer names"

def test_time(): time.sleep(60)
""",
}


@pytest.mark.nightly
def test_each_printed_line_gives_the_verdict_again(make_project: MakeProject) -> None:
    """Each of these is red because of a command-line option, and for no other reason."""
    project = make_project()
    for name, text in DECISIVE.items():
        project.write(name, text)
    assert set(project.run("-n0", "--deselect=suites/test_it.py::test_time").verdicts.values()) == {"passed", "skipped"}
    decisive = ("-m", "", "--doctest-modules", "--runslow", "--answer", "43", "-W", "error", "--import-mode=importlib")
    result = project.run(*decisive, "-n2", "--case-timeout", "1", "-v", "--tb", "short")
    assert len(result.verdicts) == 7
    assert set(result.verdicts.values()) == {"failed", "timeout"}
    for verdict in result.ledger.verdicts:
        _, *words = shlex.split(verdict.reproduce or "")
        again = project.run(*words, suites=None)
        assert again.verdicts == {verdict.case: verdict.outcome.value}, f"{verdict.reproduce}\n{again.tail()}"


def test_an_id_that_changes_from_run_to_run(make_project: MakeProject) -> None:
    """A cold executor does not have the id; the verdict names the ids that it has instead, and the file."""
    project = make_project()
    text = "import os, pytest\n@pytest.mark.parametrize('number', [os.getpid()])\ndef test_it(number): pass\n"
    project.write("suites/test_ids.py", text)
    assert set(project.run("-n2").verdicts.values()) == {"passed"}, "one process has collected for all"
    (verdict,) = project.run("-n0", "--start=cold").ledger.verdicts
    assert verdict.outcome is Outcome.LOST
    assert "check that its id is the same in every collection" in verdict.message
    assert "it collected 1 case, for example 'suites/test_ids.py::test_it[" in verdict.message
    assert f"in the root folder {project.folder};" in verdict.message


def test_doctests_outside_of_the_root_folder_have_ids_of_their_own(make_project: MakeProject) -> None:
    """pytest itself calls the test of each text ``::a.txt``."""
    project = make_project()
    for folder, answer in (("one", 2), ("two", 3)):
        project.write(f"docs/{folder}/a.txt", f">>> 1 + 1\n{answer}\n")
    project.write("docs/one/module.py", '"""\n>>> 1 + 1\n2\n"""\n')
    project.write("root/pytest.ini", (project.folder / "pytest.ini").read_text())
    texts = [f"../docs/{name}" for name in ("one/a.txt", "two/a.txt", "one/module.py")]
    result = project.run(
        *(*texts, "--doctest-glob=*.txt", "--doctest-modules", "--rootdir=.", "-p", "harness.plugin", "--device=cpu"),
        "-n2",
        suites=None,
        folder="root",
    )
    assert result.verdicts == {
        "one/a.txt::a.txt": "passed",
        "two/a.txt::a.txt": "failed",
        "one/module.py::module": "passed",
    }, result.tail()
    assert not result.ledger.findings


def test_files_outside_of_the_root_folder_have_ids_of_their_own(make_project: MakeProject) -> None:
    """pytest itself calls the tests of each file ``::test_it``."""
    project = make_project()
    for name in ("first", "second", "sub/second"):
        project.write(f"lib/package/{name}.py", "import os\ndef test_it(): assert os.environ.get('RED') != __name__\n")
    for folder in ("package", "package/sub"):
        project.write(f"lib/{folder}/__init__.py", "")
    project.write("root/pytest.ini", (project.folder / "pytest.ini").read_text())
    modules = [f"package.{name}" for name in ("first", "second", "sub.second")]
    result = project.run(
        *("--pyargs", *modules, "-p", "harness.plugin", "--device=cpu", "-n2"),
        suites=None,
        folder="root",
        env={"PYTHONPATH": str(project.folder / "lib"), "RED": "package.sub.second"},
    )
    outcomes = {"first.py": "passed", "second.py": "passed", "sub/second.py": "failed"}
    assert result.verdicts == {f"{name}::test_it": outcome for name, outcome in outcomes.items()}, result.tail()
    assert not result.ledger.findings
    red = next(verdict for verdict in result.ledger.verdicts if verdict.outcome.is_red)
    assert red.reproduce is not None
    again = project.run(
        *shlex.split(red.reproduce)[1:],
        suites=None,
        folder="root",
        env={"PYTHONPATH": str(project.folder / "lib"), "RED": "package.sub.second"},
    )
    assert again.verdicts == {"sub/second.py::test_it": "failed"}, again.tail()
