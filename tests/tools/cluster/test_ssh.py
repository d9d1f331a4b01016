"""Cluster runs by ssh, to daemons on this machine with their own keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ssh_daemon
from tests.tools.cluster.project import SLOW, Project

pytestmark = [pytest.mark.acceptance, pytest.mark.skipif(bool(ssh_daemon.missing()), reason=ssh_daemon.missing())]


@pytest.fixture
def ssh_config(tmp_path: Path) -> Iterator[Path]:
    with ssh_daemon.ssh_daemon(tmp_path / "ssh") as config:
        yield config


def test_a_run_by_ssh(ssh_config: Path, tmp_path: Path) -> None:
    """Reachable hosts run all cases; an unreachable one is a finding."""
    project = Project(tmp_path / "project")
    project.write("suites/some/test_some.py", SLOW.format(cases=8, seconds=0.2))
    project.write("hosts", "n0  # the first\nn1\nnowhere\n")
    running = project.run("--engine=ssh", "--hosts=hosts", f"--ssh-config={ssh_config}")
    assert running.wait() == 1, running.output
    assert {*running.verdicts.values()} == {"passed"}
    assert {line["host"] for line in running.of("finish")} == {"n0", "n1"}
    (finding,) = running.ledger.findings
    assert finding.kind == "node_lost"
    assert "nowhere was lost: ssh ended with exit status 255" in finding.message
    assert "Connection refused" in finding.message


@pytest.mark.nightly
def test_a_cut_connection(ssh_config: Path, tmp_path: Path) -> None:
    """The agent at its other end stops, and the cases run elsewhere."""
    project = Project(tmp_path / "project")
    project.write("suites/some/test_some.py", SLOW.format(cases=12, seconds=0.6))
    project.write("hosts", "n0\nn1\n")
    running = project.start("--engine=ssh", "--hosts=hosts", f"--ssh-config={ssh_config}")
    running.wait_for(lambda: bool(running.of("start", host="n1")), "a case on n1")
    agent = running.agent("n1")
    daemons = [each for each in agent.parents() if each.name().startswith("sshd")]
    daemons[0].kill()
    assert running.wait() == 1, running.output
    assert {*running.verdicts.values()} == {"passed"}
    assert [finding.kind for finding in running.ledger.findings] == ["node_lost"]
    agent.wait(60)


def test_hosts_files(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("hosts", "-oProxyCommand=evil\n")
    running = project.run("--engine=ssh", "--hosts=hosts")
    assert running.wait() == 4
    assert "'-oProxyCommand=evil' is not a host" in running.output
