"""Test files that were not written for the harness, run with ``-p harness.plugin``; executors that start cold."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected
from tests.acceptance.project import Project, Result

#: A waiver for a failure of the fixture suite.
KNOWN = """\
waivers:
  - case: "*::test_wrong_cpu"
    expect: failed
    reason: it compares ones with zeros
    link: https://example.org/issues/1
    owner: nobody
    expires: 2999-12-31
"""
#: Kills the first cold executor that imports it before it is ready, or all of them.
CONFTEST = """\
import os, pathlib, signal, sys

if sys.modules["__main__"].__spec__.name == "harness.zygote.cold":
    told = pathlib.Path(os.environ["PROBE_DIR"], "killed")
    if {always} or not told.exists():
        told.touch()
        print("about to be killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def _foreign(project: Project, *arguments: str) -> Result:
    return project.run("-p", "harness.plugin", "--device=cpu", *arguments)


def _started(result: Result) -> list[dict[str, Any]]:
    return [line for line in result.lines if line["event"] == "executor" and line["state"] == "started"]


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "workers"), [("batch", 2), ("case", 0)])
def test_a_file_that_starts_a_pool_when_imported(make_project: MakeProject, mode: str, workers: int) -> None:
    """A fork would lose the pool's threads, so each process imports the file instead; all else is unchanged."""
    project = make_project("foreign")
    result = _foreign(project, f"--isolation={mode}", f"-n{workers}", "--case-timeout=10")
    compare(result, expected(project, mode), alone=mode == "case")
    assert all("other threads than the main thread" in line["reason"] for line in _started(result))
    crash = next(verdict for verdict in result.ledger.verdicts if verdict.case.endswith("test_crash"))
    assert "-p harness.plugin" in (crash.reproduce or "")
    # Each process sets the class up once, and tears it down unless one of its tests killed it.
    set_up, torn_down = project.probe("set-up"), project.probe("torn-down")
    assert len(set_up) == len(set(set_up)) >= 3
    deaths = [line for line in result.lines if line["event"] == "finish" and line["outcome"] in ("crashed", "timeout")]
    assert len(deaths) == len(set_up) - len(torn_down)
    assert set(torn_down) < set(set_up)


def test_asked_to_fork_it_is_refused(make_project: MakeProject) -> None:
    project = make_project("foreign")
    result = _foreign(project, "--start=fork", "-n0")
    assert result.status == 2, result.tail()
    assert "must not be forked" in result.terminal
    assert "--start=cold" in result.terminal
    assert set(result.verdicts.values()) == {"not_run"}


@pytest.mark.nightly
@pytest.mark.parametrize(("topic", "workers"), [("deaths", 2), ("verdicts", 0), ("leftovers", 0)])
def test_cold_executors_come_to_the_same_verdicts(make_project: MakeProject, topic: str, workers: int) -> None:
    project = make_project(topic)
    result = project.run("--start=cold", f"-n{workers}")
    compare(result, expected(project, "batch"), alone=False)
    assert {line["reason"] for line in _started(result)} == {"--start=cold"}


def test_a_cold_executor_that_dies_before_it_is_ready_is_started_again(make_project: MakeProject) -> None:
    project = make_project("plain")
    project.write("suites/conftest.py", CONFTEST.format(always=False))
    result = project.run("--start=cold", "-n0")
    compare(result, expected(project, "batch"))
    assert project.probe_names() == ["killed"]


def test_one_that_always_dies_ends_the_run_with_what_it_said(make_project: MakeProject) -> None:
    project = make_project("plain")
    project.write("suites/conftest.py", CONFTEST.format(always=True))
    result = project.run("--start=cold", "-n0")
    assert result.status == 2, result.tail()
    assert "started cold, ended before it was ready" in result.terminal
    assert "about to be killed" in result.terminal
    assert "crashed" not in result.verdicts.values()


def test_classes_made_for_a_device(make_project: MakeProject) -> None:
    project = make_project("foreign_devices")
    result = _foreign(project, "-n0")
    compare(result, expected(project, "batch"))
    assert {line["reason"] for line in _started(result)} == {""}  # nothing prevents a fork


@pytest.mark.ways("isolation", ["batch", "none"])
def test_a_wrapper_round_each_test(make_project: MakeProject, isolation: str) -> None:
    """With the wrapper each backward pass is captured, and without it none. Known failures may be waived."""
    project = make_project("foreign_devices")
    project.write("known.yaml", KNOWN)
    waived = [] if isolation == "none" else ["--waivers=known.yaml"]
    result = _foreign(project, "-n0", f"--isolation={isolation}", "--under=compiled_autograd", *waived)
    wanted = dict.fromkeys(expected(project, "batch").outcomes, "passed")
    (wrong,) = (case for case in wanted if "wrong" in case)
    assert result.verdicts == wanted | {wrong: "waived" if waived else "failed"}
    assert result.status == (0 if waived else 1), result.tail()
    assert "called under compiled_autograd" in result.terminal
    assert json.loads((result.run_dir / "environment.json").read_text())["under"] == "compiled_autograd"
    assert result.lines[0]["settings"]["under"] == "compiled_autograd"
    if not waived:
        assert "--under=compiled_autograd" in (result.ledger.verdicts[-1].reproduce or "")


def test_a_wrapper_that_this_torch_does_not_have_is_said_once(make_project: MakeProject) -> None:
    """A fake torch stands in for a release in which the private function has moved."""
    project = make_project("plain")
    project.write("torch/__init__.py", "")
    project.write("torch/_dynamo/__init__.py", "")
    project.write("torch/_dynamo/compiled_autograd.py", "")
    env = {"PYTHONPATH": os.pathsep.join([str(project.folder), os.environ.get("PYTHONPATH", "")])}
    for isolation in ("batch", "none"):
        result = project.run("--under=compiled_autograd", f"--isolation={isolation}", "-n0", "--device=cpu", env=env)
        assert result.status in (2, 4), result.tail()
        assert "this torch has no torch._dynamo.compiled_autograd._enable" in result.terminal
        assert "Traceback" not in result.terminal


CACHES = """\
import os, pathlib, pytest

NAMES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")

@pytest.mark.parametrize("number", range(2))
def test_case(number):
    for name in NAMES:
        folder = pathlib.Path(os.environ[name])
        folder.mkdir(parents=True, exist_ok=True)
        assert len(list(folder.iterdir())) == number, "what another process of the run has compiled"
        (folder / str(number)).touch()
        with open(os.environ["PROBE_DIR"] + "/folders", "a") as file:
            print(folder, file=file)
"""


def test_processes_of_a_run_share_compiler_caches_and_runs_do_not(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/test_caches.py", CACHES)
    mine = project.folder / "mine"
    first = project.run("--isolation=case", "-n0", env={"TRITON_CACHE_DIR": str(mine)})
    second = project.run("--isolation=case", "-n0")
    assert (first.status, second.status) == (0, 0), first.tail() + second.tail()
    folders = project.probe("folders")
    assert folders[:3] == folders[3:6]
    assert folders[1] == str(mine)
    assert sorted(path.name for path in mine.iterdir()) == ["0", "1"]  # the user's own runs stay
    assert all(folder.startswith((f"{first.run_dir}/", f"{second.run_dir}/")) for folder in {*folders} - {str(mine)})
    assert not (first.run_dir / "compiler-caches").exists()
    assert not (second.run_dir / "compiler-caches").exists()


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_the_name_of_the_entry_point_activates_the_harness_too(make_project: MakeProject, spread: str) -> None:
    project = make_project()
    project.write("pytest.ini", "[pytest]\n")
    project.write("suites/test_it.py", "def test_it(): assert 0\n")
    result = project.run("-p", "harness", "--device=cpu", spread)
    assert result.verdicts == {"suites/test_it.py::test_it": "failed"}, result.tail()
    assert "-p harness.plugin" in (result.ledger.verdicts[0].reproduce or "")
    assert (result.ledger.verdicts[0].reproduce or "").count("harness") == 1


STARTED = """
import subprocess, sys

CHILD = subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(3)"], stdin=subprocess.PIPE)

def test_it():
    assert CHILD.poll() is None
    CHILD.communicate(b"\\n")
    assert CHILD.returncode == 3
"""


def test_a_process_that_a_file_starts_when_it_is_imported(make_project: MakeProject) -> None:
    """It is no child of a fork. Each executor starts its own instead; suites of this project must not do so."""
    project = make_project()
    project.write("suites/test_started.py", STARTED)
    result = project.run("-p", "harness.plugin", "--device=cpu", "-n0")
    assert (result.status, [*result.verdicts.values()]) == (0, ["passed"]), result.tail()
    assert "which would be no children of a fork" in result.contents.path.read_text()
    refused = project.run("-n0")
    assert refused.status == 2
    assert "it has started processes" in refused.terminal


def test_a_mark_of_another_plugin_stays_unknown_to_a_foreign_suite(make_project: MakeProject) -> None:
    """Plain pytest refuses it too, where pytest-timeout is not installed."""
    project = make_project()
    project.write("pytest.ini", "[pytest]\nstrict_markers = true\n")
    project.write("suites/test_marked.py", "import pytest\n@pytest.mark.timeout(5)\ndef test_it(): pass\n")
    result = project.run("-p", "harness.plugin", "--device=cpu", "-n0")
    assert result.status == 2, result.tail()
    assert "'timeout' not found in `markers` configuration option" in result.terminal
