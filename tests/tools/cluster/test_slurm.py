"""Cluster runs in a simulated Slurm: an allocation, one step per node, and Slurm's actions on them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.journal import journal, reader
from harness.journal.events import Finish
from harness.journal.ledger import Ledger
from harness.tools.evidence import checks
from harness.tools.evidence import record as evidence
from tests import slurm_cluster
from tests.chaos.soundness import each_seed
from tests.reporting import build
from tests.tools.cluster.project import of

ROOT = Path(__file__).parents[3]

MISSING = slurm_cluster.missing()
pytestmark = [pytest.mark.acceptance, pytest.mark.skipif(MISSING != "", reason=MISSING)]


class Ended:
    """The result of a scenario."""

    def __init__(self, folder: Path) -> None:
        self.status = json.loads((folder / "ended.json").read_text())["status"]
        self.output = (folder / "run.out").read_text()
        self.ledger = Ledger.from_journal(reader.read_run_journal(folder / "run" / journal.FILE_NAME))
        self.lines = build.read_lines((folder / "run" / journal.FILE_NAME).read_bytes())

    @property
    def outcomes(self) -> set[str]:
        return {verdict.outcome.value for verdict in self.ledger.verdicts}

    @property
    def findings(self) -> list[str]:
        return [finding.kind for finding in self.ledger.findings]

    def of(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        return of(self.lines, event, **fields)


def played(name: str, folder: Path) -> Ended:
    """Run a scenario of `tests.tools.cluster.slurm_scenarios` in its own cluster."""
    words = [sys.executable, "-m", "tests.tools.cluster.slurm_scenarios", name, str(folder / "project")]
    done = subprocess.run(slurm_cluster.command(*words), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Ended(folder / "project")


def test_one_command_gets_an_allocation_and_runs_on_all_nodes(tmp_path: Path) -> None:
    ended = played("plain", tmp_path)
    assert ended.status == 0, ended.output
    assert ended.outcomes == {"passed"}
    nodes = {line["host"]: (line["gres"], [*line["features"]]) for line in ended.of("node", state="ready")}
    assert nodes == {
        "h0": ("gpu:h200:8", ["hopper", "nvlink"]),
        "h1": ("gpu:h200:8", ["hopper"]),
        "a0": ("gpu:a100:4", []),
        "a1": ("gpu:a100:4", []),
    }
    assert {line["host"] for line in ended.of("finish")} == {*nodes}


def test_what_no_node_has_is_refused_at_once(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.tools.cluster.slurm_scenarios", "refused", str(tmp_path / "project")]
    subprocess.run(slurm_cluster.command(*words), cwd=ROOT, capture_output=True, check=True)
    assert json.loads((tmp_path / "project" / "ended.json").read_text()) == {"status": 4}
    assert (tmp_path / "project" / "run.out").read_text() == (
        "harness: --gres=gpu:b200:1: no node of partition 'all' can meet that, and 2 nodes are wanted: "
        "a0, a1 (gpu:a100:4); h0 (gpu:h200:8, hopper, nvlink); h1 (gpu:h200:8, hopper)\n"
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["killed_agent", "killed_node"])
def test_a_lost_node(name: str, tmp_path: Path) -> None:
    """Its running cases are lost once, and run elsewhere."""
    ended = played(name, tmp_path)
    assert ended.status == 1, ended.output
    assert ended.outcomes == {"passed"}
    assert ended.findings == ["node_lost"]
    (lost,) = ended.of("finish", outcome="lost")
    assert not lost["final"]
    (again,) = [line for line in ended.of("finish", outcome="passed") if line["case"] == lost["case"]]
    assert again["host"] != lost["host"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["killed_daemon", "drained_node"])
def test_what_does_not_end_a_step(name: str, tmp_path: Path) -> None:
    ended = played(name, tmp_path)
    assert ended.status == 0, ended.output
    assert ended.outcomes == {"passed"}
    assert not ended.findings


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["cancelled", "warned", "timed_out"])
def test_the_end_of_the_allocation(name: str, tmp_path: Path) -> None:
    """Running cases finish, and the report names the remaining ones."""
    ended = played(name, tmp_path)
    assert ended.status in (1, 2), ended.output
    assert ended.outcomes == {"passed", "not_run"}
    assert ended.of("end")
    assert "NOT_RUN" in ended.output


@pytest.mark.nightly
@each_seed
def test_a_run_that_is_hit_twice(seed: int, tmp_path: Path) -> None:
    """Each case has a verdict or a cause. After a resume, each passes exactly once, and the run is evidence."""
    folder = tmp_path / "project"
    words = [sys.executable, "-m", "tests.tools.cluster.slurm_chaos", str(seed), str(folder)]
    done = subprocess.run(slurm_cluster.command(*words), cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = json.loads((folder / "ended.json").read_text())
    output = (folder / "run.out").read_text() + (folder / "resumed.out").read_text()
    before = Ledger.from_journal(reader.read_run_journal(folder / "first.ndjson"))
    if before.end is not None:
        assert ended["first"] in (0, 1, 2), output
        left = [verdict for verdict in before.verdicts if verdict.outcome.value != "passed"]
        assert {verdict.outcome.value for verdict in left} <= {"not_run", "lost"}, output
        assert all(verdict.message for verdict in left), output
    record = evidence.read_evidence_record(
        {path.name: path.read_bytes() for path in (folder / "run").iterdir() if path.is_file()}, folder
    )
    assert ended["status"] == record.ledger.exit_status(), output
    assert {verdict.outcome.value for verdict in record.ledger.verdicts} == {"passed"}, output
    assert {finding.kind for finding in record.ledger.findings} <= {"node_lost", "session", "worker"}, output
    passed = [event.case for event in record.contents.events if isinstance(event, Finish) and event.outcome == "passed"]
    assert len(passed) == len({*passed}), output
    assert [problem.text for problem in checks.run_problems(record)] == [], output


@pytest.mark.nightly
def test_a_killed_head(tmp_path: Path) -> None:
    """Its status is not 0, the allocation is released, and the run is resumed in another one."""
    ended = played("killed_head", tmp_path)
    assert ended.status == 0, ended.output
    assert ended.outcomes == {"passed"}
    assert json.loads((tmp_path / "project" / "killed.json").read_text()) not in (0, 1)
    ends = [line["case"] for line in ended.of("finish", final=True)]
    assert len(ends) == len({*ends})


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["sigterm", "sigint", "sighup"])
def test_a_signal_to_the_process_that_the_user_started(name: str, tmp_path: Path) -> None:
    """Running cases get the grace, the report is written, and nothing is left on the nodes."""
    ended = played(f"stopped_by_{name}", tmp_path)
    assert ended.status == 2, ended.output
    assert ended.outcomes == {"passed", "not_run"}
    assert [line["by"] for line in ended.of("stopped")] == [name.upper()]
    assert not ended.findings


@pytest.mark.nightly
def test_a_signal_while_the_request_waits(tmp_path: Path) -> None:
    """The request is withdrawn."""
    words = [sys.executable, "-m", "tests.tools.cluster.slurm_scenarios", "stopped_while_waiting", str(tmp_path)]
    subprocess.run(slurm_cluster.command(*words), cwd=ROOT, capture_output=True, check=True)
    assert json.loads((tmp_path / "ended.json").read_text()) == {"status": 2}
    assert "stopped by SIGTERM while it waited for an allocation" in (tmp_path / "run.out").read_text()
    assert not (tmp_path / "run" / journal.FILE_NAME).exists()


@pytest.mark.nightly
def test_a_kill_while_the_request_waits(tmp_path: Path) -> None:
    """The request does not outlive the process that the user started."""
    words = [sys.executable, "-m", "tests.tools.cluster.slurm_scenarios", "killed_while_waiting", str(tmp_path)]
    subprocess.run(slurm_cluster.command(*words), cwd=ROOT, capture_output=True, check=True)
    assert json.loads((tmp_path / "ended.json").read_text()) == {"status": -signal.SIGKILL}
    assert not (tmp_path / "run" / journal.FILE_NAME).exists()
