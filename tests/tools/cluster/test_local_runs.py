"""Whole cluster runs with agents on this machine: the user's view, and the effects of dying processes."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from harness.cli.main import app
from harness.core.outcome import Outcome
from harness.sim.softdevice import build
from tests.tools.cluster.project import SLOW, Project, Running, ran_twice, stop

pytestmark = pytest.mark.acceptance

MIXED = """
import os, signal
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(number): pass

def test_red(): assert 1 == 2
def test_crash(): os.kill(os.getpid(), signal.SIGSEGV)

@pytest.mark.requires(device="cuda")
def test_gpu(): pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def test_one_run_directory_and_one_verdict(project: Project) -> None:
    project.write("suites/some/test_some.py", MIXED)
    running = project.run("--engine=local", "--nodes=2")
    assert running.wait() == 1, running.output
    assert running.verdicts == {
        **{f"test_it[{number}]": "passed" for number in range(6)},
        "test_red": "failed",
        "test_crash": "crashed",
        "test_gpu": "gated",
    }
    assert not running.ledger.findings
    assert {line["host"] for line in running.of("finish")} == {"local0", "local1"}
    junit = ElementTree.parse(running.run_dir / "junit.xml").getroot()
    assert len(junit.findall(".//testcase")) == 9
    assert (running.run_dir / "report.html").exists()
    assert "9 cases: 1 gated, 6 passed, 1 failed, 1 crashed" in running.output
    assert running.of("node", state="ended")


def slow(project: Project, cases: int = 12, seconds: float = 0.6, **more: str) -> Running:
    project.write("suites/some/test_some.py", SLOW.format(cases=cases, seconds=seconds))
    return project.start("--engine=local", "--nodes=2", **more)  # type: ignore[arg-type]


def at_work(running: Running, node: str) -> None:
    running.wait_for(lambda: bool(running.of("finish", host=node)), f"a case on {node}")
    running.wait_for(
        lambda: len(running.of("start", host=node)) > len(running.of("finish", host=node)),
        f"a case that runs on {node}",
    )


def is_evidence(running: Running) -> None:
    """Pack a run, and verify it."""
    archive = str(running.run_dir.with_suffix(".zip"))
    packed = CliRunner().invoke(app, ["package", str(running.run_dir), "-o", archive], catch_exceptions=False)
    assert packed.exit_code == 0, packed.output
    verified = CliRunner().invoke(app, ["verify", archive], catch_exceptions=False)
    assert verified.exit_code == 0, verified.output


def test_a_killed_agent(project: Project) -> None:
    """Its running case is lost once; all cases pass on the other node."""
    running = slow(project)
    at_work(running, "local1")
    running.agent("local1").kill()
    assert running.wait() == 1, running.output
    assert {*running.verdicts.values()} == {"passed"}
    lost = running.of("finish", outcome="lost")
    assert [line["host"] for line in lost] == ["local1"]
    assert not any(line["final"] for line in lost)
    assert [finding.kind for finding in running.ledger.findings] == ["node_lost"]
    assert not ran_twice(running)
    is_evidence(running)


DEADLY = """
import os, time
from pathlib import Path
import pytest
from tests.tools.cluster.project import agent_of

@pytest.mark.parametrize("number", range(12))
def test_it(number):
    time.sleep(0.2)

def test_deadly():
    agent_of(Path(__file__).parents[2] / "run", os.environ["CONFORMANCE_LOCAL_NODE"]).kill()
"""


def test_a_case_that_takes_its_node_down(project: Project) -> None:
    """Its agent dies before it sends that the case has begun. One more node is lost, and a resumed run loses one."""
    project.write("suites/some/test_some.py", DEADLY)
    for part, options in enumerate((["--nodes=3"], ["--nodes=3", "--resume=run"]), 1):
        running = project.run("--engine=local", *options, environ={"PYTHONPATH": str(Path(__file__).parents[3])})
        assert running.wait() == 1, running.output
        assert running.verdicts == {**{f"test_it[{number}]": "passed" for number in range(12)}, "test_deadly": "lost"}
        assert len(running.of("node", state="lost")) == 1 + part, running.output
    deadly = next(verdict for verdict in running.ledger.verdicts if verdict.case.endswith("test_deadly"))
    assert re.search(
        "node local. was lost: .* while only this case ran there; it was in flight when local. ended", deadly.message
    )
    assert {case.rpartition("::")[2] for case in ran_twice(running)} == {"test_deadly"}  # once per part


@pytest.mark.nightly
def test_a_silent_agent(project: Project) -> None:
    """It counts as lost; when it wakes up, its messages have no effect."""
    running = slow(project, cases=30)
    at_work(running, "local1")
    agent = running.agent("local1")
    stop(agent)
    running.wait_for(lambda: bool(running.of("node", state="lost")), "the loss of local1")
    agent.resume()
    assert running.wait() == 1, running.output
    assert {*running.verdicts.values()} == {"passed"}
    assert running.of("late", host="local1")
    assert not ran_twice(running)
    is_evidence(running)


@pytest.mark.nightly
def test_a_killed_head_is_resumed(project: Project) -> None:
    running = slow(project)
    at_work(running, "local1")
    running.process.kill()
    running.wait()
    before = {line["case"] for line in running.of("finish", outcome="passed")}
    resumed = project.run("--engine=local", "--nodes=2", "--resume=run")
    assert resumed.wait() == 0, resumed.output
    assert {*resumed.verdicts.values()} == {"passed"}
    again = [line for line in resumed.of("start") if line["case"] in before]
    assert len(again) == len(before)
    assert not ran_twice(resumed)
    assert len(resumed.of("run")) == 2
    is_evidence(resumed)


def test_a_stopped_run(project: Project) -> None:
    """Running cases finish; the others are not run; the status is that of a stopped run."""
    running = slow(project, cases=40)
    at_work(running, "local1")
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 2, running.output
    found = [*running.verdicts.values()]
    assert {*found} == {"passed", "not_run"}
    assert running.of("stopped", by="SIGTERM")
    assert "NOT_RUN" in running.output


@pytest.mark.nightly
def test_a_stopped_agent(project: Project) -> None:
    """A stopped agent returns its cases. Slurm stops agents, too, before the time limit."""
    running = slow(project)
    at_work(running, "local1")
    running.agent("local1").terminate()
    assert running.wait() == 0, running.output
    assert {*running.verdicts.values()} == {"passed"}
    assert running.of("node", host="local1", state="stopping")
    is_evidence(running)


@pytest.mark.nightly
def test_a_killed_session(project: Project) -> None:
    """The pytest of a node dies, its agent lives: the running case is lost once, and the run is red because of that."""
    running = slow(project)
    at_work(running, "local1")
    running.agent("local1").children()[0].kill()
    assert running.wait() == 1, running.output
    assert {*running.verdicts.values()} == {"passed"}
    assert [finding.kind for finding in running.ledger.findings] == ["session"]
    assert len(running.of("finish", outcome="lost")) == 1
    assert not ran_twice(running)
    is_evidence(running)


def test_all_nodes_are_lost(project: Project) -> None:
    """The remaining cases are not run, with the cause in the report."""
    running = slow(project)
    at_work(running, "local1")
    for node in ("local0", "local1"):
        running.agent(node).kill()
    assert running.wait() == 1, running.output
    assert {*running.verdicts.values()} == {"passed", "not_run"}
    left = [verdict for verdict in running.ledger.verdicts if verdict.outcome is Outcome.NOT_RUN]
    assert all("no node is left that could run it (local0: " in verdict.message for verdict in left)


@pytest.mark.nightly
def test_a_run_under_other_conditions_is_not_resumed(project: Project) -> None:
    running = slow(project, cases=40)
    at_work(running, "local1")
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == 2
    before = (running.run_dir / "journal.ndjson").read_bytes()
    project.write("suites/some/test_some.py", SLOW.format(cases=39, seconds=0.1))
    resumed = project.run("--engine=local", "--nodes=2", "--resume=run")
    assert resumed.wait() == 4, resumed.output
    assert "the run was started under other conditions: suite files was" in resumed.output
    assert (running.run_dir / "journal.ndjson").read_bytes() == before


def test_what_cannot_be_collected(project: Project) -> None:
    project.write("suites/some/test_some.py", "import nothing_of_that_name\n")
    running = project.run("--engine=local", "--nodes=2")
    assert running.wait() == 3
    assert "the tests could not be collected: " in running.output
    assert "nothing_of_that_name" in running.output


def test_a_green_run_is_evidence(project: Project) -> None:
    """Its environment.json matches its journal: the command and the host are the head's."""
    project.write("suites/some/test_some.py", SLOW.format(cases=4, seconds=0.1))
    running = project.run("--engine=local", "--nodes=2")
    assert running.wait() == 0, running.output
    is_evidence(running)


def test_a_launcher_that_no_shell_could_read_is_refused(project: Project) -> None:
    running = project.run("--engine=local", "--launcher=a 'b")
    assert running.wait() == 4
    assert running.output == ('harness: --launcher="a \'b": expected words as in a shell (No closing quotation)\n')


def test_a_mistake_is_one_sentence(project: Project) -> None:
    project.write("suites/some/test_some.py", MIXED)
    running = project.run("--engine=local", arguments=("suites", "-x"))
    assert running.wait() == 4
    assert running.output == (
        "harness: '-x' cannot be an argument of pytest in a cluster run: a node cannot stop the others\n"
    )


ROUTED = """
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.requires(device="soft")

@pytest.mark.parametrize("number", range(4))
def test_it(number): pass

@pytest.mark.parametrize("number", range(3))
@pytest.mark.requires(memory=">=1500MiB")
def test_big(number): pass

@pytest.mark.requires(memory=">=100GiB")
def test_too_big(): pass

def test_of_the_first_node():
    node, first = os.environ["CONFORMANCE_LOCAL_NODE"], Path("first")
    if not first.exists():
        first.write_text(node)
    assert first.read_text() != node

def test_of_both():
    assert 1 == 2
"""

LARGER = """\
#!/bin/sh
if [ "$CONFORMANCE_LOCAL_NODE" = local1 ]; then export SOFT_DEVICE_MEMORY=2GiB; fi
exec "$@"
"""


@pytest.mark.nightly
def test_cases_find_their_device_and_red_ones_another(project: Project) -> None:
    """A case goes to a node that can run it; otherwise it is gated. A red case is tried on a second device."""
    build.build_softdevice()  # otherwise the nodes would build it within the run's time
    project.write("suites/some/test_some.py", ROUTED)
    project.write("node.sh", LARGER)
    (project.folder / "node.sh").chmod(0o755)
    running = project.run(
        "--engine=local",
        "--nodes=2",
        f"--launcher={project.folder / 'node.sh'}",
        arguments=("suites", "-n1", "--leak-check=off", "--device=soft"),
    )
    assert running.wait() == 1, running.output
    found = running.verdicts
    assert [name for name, outcome in found.items() if outcome == "gated"] == ["test_too_big"]
    assert {line["host"] for line in running.of("finish") if "test_big" in line["case"]} == {"local1"}
    (gated,) = [line for line in running.of("finish") if line["case"].endswith("test_too_big")]
    assert [note.partition(": ")[0] for note in gated["notes"]] == ["on local0", "on local1"]
    assert found["test_of_both"] == "failed"
    looks = {line["case"].rpartition("::")[2]: line for line in running.of("second_device")}
    assert looks["test_of_both"]["finding"] == "red on both"
    first = next(line["host"] for line in running.of("finish") if "test_of_both" in line["case"])
    assert looks["test_of_both"]["host"] != first
    assert "SECOND DEVICE suites/some/test_some.py::test_of_both - red on both" in running.output
    assert found["test_of_the_first_node"] == "failed"
    assert looks["test_of_the_first_node"]["finding"] == "red on this device only"
    assert looks["test_of_the_first_node"]["outcome"] == "passed"
    assert not ran_twice(running)
    assert {line["host"] for line in running.of("second_start")} == {line["host"] for line in looks.values()}
    report = (running.run_dir / "junit.xml").read_text()
    for case, line in looks.items():
        first, second = line["first"], f"{line['second']} of {line['host']}: {line['outcome']}"
        assert f"second device: {line['finding']} ({first}; on {second})" in report, case
    is_evidence(running)
