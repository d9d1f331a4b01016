"""The nodes of a fleet: by ssh, in a Slurm allocation, and several times this machine; the lists that are left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.ready.fleet import compare
from harness.ready.fleet_run import FleetError, FleetRequest, engine_of, write_lists
from harness.tools.cluster import engine as engines
from harness.tools.cluster.engine import EngineError
from tests import slurm_cluster, ssh_daemon
from tests.ready.test_fleet import answer, report

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (FleetRequest(), "no nodes: expected exactly one of --hosts, --hostfile, --slurm, --local"),
        (FleetRequest(hosts="a", local=2), "--hosts and --local: expected exactly one of"),
    ],
    ids=["none", "two"],
)
def test_one_option_names_the_nodes(request_: FleetRequest, why: str) -> None:
    with pytest.raises(FleetError) as raised:
        engine_of(request_)

    assert str(raised.value).startswith(why)


def test_each_engine_runs_the_command_on_its_nodes(tmp_path: Path) -> None:
    program = ("-m", "harness", "ready", "--json", "--budget=20s")
    (tmp_path / "hosts").write_text("u@b1  # a comment\nb2\n")
    made = [
        engine_of(FleetRequest(hosts="a[1-2]", options=("--budget=20s",))),
        engine_of(FleetRequest(hostfile=tmp_path / "hosts", options=("--budget=20s",), python="/p y/python")),
        engine_of(FleetRequest(slurm=True, options=("--budget=20s",))),
        engine_of(FleetRequest(local=2, options=("--budget=20s",))),
    ]

    assert [type(engine) for engine in made] == [engines.Ssh, engines.Ssh, engines.Slurm, engines.Local]
    assert all(engine.program == program for engine in made)  # type: ignore[attr-defined]
    assert [host.name for host in made[0].hosts()] == ["a1", "a2"]
    assert [host.command[-1] for host in made[1].hosts()] == ["'/p y/python' " + " ".join(program)] * 2
    assert made[3].hosts()[1].command == ("env", "CONFORMANCE_LOCAL_NODE=local1", sys.executable, *program)


def test_a_wrong_hostfile_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a b\n")
    with pytest.raises(EngineError, match=r"'a b' is not a host: write one ssh destination per line"):
        engine_of(FleetRequest(hostfile=tmp_path / "hosts"))


def test_the_lists_have_every_node_once(tmp_path: Path) -> None:
    made = compare([answer(f"n{number}", report() if number % 2 else None) for number in range(1, 6)])
    good, bad = write_lists(made, tmp_path / "new" / "folder")

    assert (good.name, good.read_text()) == ("ready.txt", "n[1,3,5]\n")
    assert (bad.name, bad.read_text()) == ("not_ready.txt", "n[2,4]\n")


def test_a_list_of_no_nodes_is_an_empty_file(tmp_path: Path) -> None:
    _, bad = write_lists(compare([answer("a", report())]), tmp_path)

    assert bad.read_text() == ""


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "harness", "ready", *options]


def test_nodes_without_a_gpu_are_not_ready_and_have_their_reason(tmp_path: Path) -> None:
    """The real command on this machine, twice; without a driver it says so of each node."""
    done = subprocess.run(
        command("--local=2", "--passive", f"--lists={tmp_path}", "--json"),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    said = json.loads(done.stdout)

    assert [node["node"] for node in said["nodes"]] == ["local0", "local1"]
    assert all(node["report"] is not None for node in said["nodes"]), said
    ready = {node["node"] for node in said["nodes"] if node["verdict"] in ("ready", "degraded")}
    assert done.returncode == (0 if len(ready) == 2 else 1)
    assert bool((tmp_path / "ready.txt").read_text()) == bool(ready)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hosts=a[1-"], "no verdict: 'a[1-' has a bracket that is not closed"),
        (["--hosts=a", "--local=2"], "no verdict: --hosts and --local: expected exactly one of"),
        (["--hostfile=/no/such/file"], "no verdict: cannot read the hosts file '/no/such/file'"),
        (["--local=1", "--nagios"], "are about one node: leave them out"),
        (["--fabric"], "--fabric tests nodes together: expected --hosts"),
        (["--local=1", "--answer-limit=soon"], "'soon': expected 5s to 24h"),
    ],
    ids=lambda value: value[0].partition("=")[0] if isinstance(value, list) else "",
)
def test_a_wrong_option_is_one_sentence(options: list[str], words: str, tmp_path: Path) -> None:
    done = subprocess.run(command(*options), capture_output=True, text=True, cwd=tmp_path, check=False)

    assert done.returncode != 0
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert [*tmp_path.iterdir()] == []


_MISSING = slurm_cluster.missing()


@pytest.mark.acceptance
@pytest.mark.skipif(_MISSING != "", reason=_MISSING)
def test_the_nodes_of_a_slurm_allocation(tmp_path: Path) -> None:
    """An allocation of three nodes; one step per node asks it."""
    words = ["salloc", "--nodes=3", "--quiet", *command("--slurm", "--passive", "--json", f"--lists={tmp_path}")]
    done = subprocess.run(slurm_cluster.command(*words), cwd=ROOT, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)

    assert len(said["nodes"]) == 3, done.stderr
    assert all(node["report"] is not None for node in said["nodes"]), said


@pytest.mark.acceptance
@pytest.mark.skipif(bool(ssh_daemon.missing()), reason=ssh_daemon.missing())
def test_the_nodes_behind_ssh(tmp_path: Path) -> None:
    """Two nodes answer beside the banner of their login; a third refuses the connection and is in the table too."""
    with ssh_daemon.ssh_daemon(tmp_path / "ssh") as config:
        words = command("--hosts=n[0-1],nowhere", "--passive", f"--ssh-config={config}", f"--lists={tmp_path}")
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)

    assert done.returncode == 1
    assert "nowhere  unknown    ssh ended with exit status 255; it said: " in done.stderr
    assert "Connection refused; next step: look by hand" in done.stderr
    assert "without a report: 1 node: nowhere" in done.stderr
    assert done.stdout.startswith("3 nodes: ")
    assert "nowhere" in (tmp_path / "not_ready.txt").read_text()
