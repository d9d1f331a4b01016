"""Runs leave nothing in the folder for temporary files."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from harness.supervisor import executor_files
from tests.acceptance.conftest import MakeProject
from tests.acceptance.project import Project

GREEN = "def test_green(tmp_path): (tmp_path / 'file').touch()\n"
RED = "def test_red(tmp_path):\n    (tmp_path / 'evidence').write_text('here')\n    raise AssertionError('red')\n"
CRASH = "import os\ndef test_crash(tmp_path):\n    (tmp_path / 'evidence').write_text('here')\n    os.abort()\n"
LARGE = """
def test_large(tmp_path):
    (tmp_path / "small").write_text("here")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(200 << 20)
    raise AssertionError("red")
"""
#: The second case requests its folder after the first case has written to its own.
SHARED_BASETEMP_FIRST = """
import os, pathlib, time

PROBE = pathlib.Path(os.environ["PROBE_DIR"])

def test_first(tmp_path):
    (tmp_path / "mine").write_text("here")
    (PROBE / "written").touch()
    while not (PROBE / "asked").exists():
        time.sleep(0.01)
    assert (tmp_path / "mine").read_text() == "here"
"""
SHARED_BASETEMP_SECOND = """
import os, pathlib, time

PROBE = pathlib.Path(os.environ["PROBE_DIR"])

def test_second(request):
    while not (PROBE / "written").exists():
        time.sleep(0.01)
    request.getfixturevalue("tmp_path")
    (PROBE / "asked").touch()
"""
SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    return make_project()


def left(project: Project) -> list[str]:
    """Return the contents of the folder with runs' temporary folders, without pytest's own."""
    return sorted(name for name in os.listdir(project.temp) if not name.startswith("pytest-of-"))


@SPREADS
def test_nothing_is_left_and_the_files_of_red_cases_are_kept(project: Project, spread: str) -> None:
    for name, text in (("green", GREEN), ("red", RED), ("crash", CRASH)):
        project.write(f"suites/test_{name}.py", text)
    result = project.run(spread, "--dist=loadfile", "--isolation=case")
    assert left(project) == []
    files = result.run_dir / executor_files.KEPT
    kept = [path.relative_to(files) for path in files.rglob("evidence") if path.is_file()]
    assert [(files / path).read_text() for path in kept] == ["here", "here"]
    noted = [f"temporary files are kept in {files / path.parts[0]}" for path in kept]
    finals = {line["case"].partition("::")[2]: line for line in result.lines if line["event"] == "finish"}
    assert sorted(noted) == sorted(note for line in finals.values() for note in line.get("notes", ()) if "kept" in note)
    assert {name for name, line in finals.items() if "notes" in line} == {"test_red", "test_crash"}


LINKED = """
import pathlib, tempfile

def test_has_none():
    assert 0

def test_has_an_empty_folder():
    tempfile.mkdtemp()
    assert 0

def test_removes_its_own_at_the_end():
    global folder
    folder = tempfile.TemporaryDirectory()
    pathlib.Path(folder.name, "file").touch()
    assert 0

def test_leaves_one(tmp_path):
    (tmp_path / "file").touch()
    assert 0
"""


def test_only_files_that_are_there_are_linked(project: Project) -> None:
    project.write("suites/test_it.py", LINKED)
    result = project.run("-n0", "--isolation=case")
    noted = {
        verdict.case.partition("::test_")[2]: "kept in" in " ".join(verdict.decided.notes)
        for verdict in result.ledger.verdicts
        if verdict.decided is not None
    }
    assert noted == {
        "has_none": False,
        "has_an_empty_folder": False,
        "removes_its_own_at_the_end": False,
        "leaves_one": True,
    }
    links = re.findall(r'href="(files/[^"]*)"', (result.run_dir / "report.html").read_text())
    (link,) = links
    assert [path.name for path in (result.run_dir / link).rglob("file")] == ["file"]


def test_files_that_their_process_removed_at_its_end_are_not_linked(project: Project) -> None:
    """The files existed when the case ended, and the process continued."""
    project.write("suites/test_it.py", LINKED.partition("def test_leaves_one")[0] + "def test_green(): pass\n")
    result = project.run("-n0", "--isolation=batch")
    noted = [verdict.case for verdict in result.ledger.red if "kept in" in " ".join(verdict.finishes[-1].notes)]
    assert [case.partition("::")[2] for case in noted] == ["test_removes_its_own_at_the_end"]
    assert "files/main-e1/" not in (result.run_dir / "report.html").read_text()
    assert not (result.run_dir / "files" / "main-e1").exists()


def test_a_file_that_is_too_large_is_left_out_and_named(project: Project) -> None:
    project.write("suites/test_it.py", LARGE)
    result = project.run("-n0", "--leak-check=off")
    kept = result.run_dir / executor_files.KEPT
    assert [path.name for path in kept.rglob("*") if path.name in ("small", "large")] == ["small"]
    (listed,) = kept.glob("*.left-out.txt")
    assert "large: 200.0MiB, more than may be kept" in listed.read_text()
    assert left(project) == []


@SPREADS
def test_the_folder_of_a_killed_run_is_removed_by_the_next(make_project: MakeProject, spread: str) -> None:
    project = make_project("waiting")
    running = project.start(spread)
    running.started("::test_waits")
    running.process.send_signal(signal.SIGKILL)
    running.result()
    (abandoned,) = left(project)
    project.write("suites/waiting/test_waiting.py", GREEN)
    other = project.start("-n0")
    assert other.result().status == 0
    assert left(project) == [], abandoned


def test_the_folder_of_a_living_run_stays(make_project: MakeProject) -> None:
    project = make_project("waiting")
    running = project.start("-n0")
    try:
        running.started("::test_waits")
        (own,) = left(project)
        project.write("other/test_it.py", GREEN)
        assert project.run("-n0", "--seed=1", suites="other").status == 0
        assert left(project) == [own]
        executor = psutil.Process(running.started("::test_waits")["pid"])
        assert executor.is_running()
    finally:
        running.kill_all()


def test_nothing_is_left_of_a_run_that_could_not_begin(project: Project) -> None:
    """Devices are probed before there is a run directory, by code that may fail."""
    project.write("suites/test_it.py", GREEN)
    project.write(
        "conftest.py",
        "from harness.devices import capabilities\n"
        "def fail(*_):\n"
        "    raise RuntimeError('the probe fails')\n"
        "capabilities.detect_capabilities = fail\n",
    )
    running = project.start("-n0")
    running.process.wait()
    assert running.process.returncode not in (0, 1)
    assert "the probe fails" in running.terminal()
    assert left(project) == []


def test_basetemp_is_not_emptied_under_a_case_that_runs(project: Project) -> None:
    project.write("suites/test_first.py", SHARED_BASETEMP_FIRST)
    project.write("suites/test_second.py", SHARED_BASETEMP_SECOND)
    result = project.run("-n2", "--dist=loadfile", f"--basetemp={project.folder / 'base'}")
    assert result.status == 0, result.tail()


def test_long_temporary_folder(make_project: MakeProject, tmp_path: Path) -> None:
    """The temporary folder may have a long path, although a socket's path must be short."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    result = make_project("plain").run("-n0", env={"TMPDIR": str(folder)})
    assert result.status == 1, result.tail()
    assert result.counts["passed"] == 2
