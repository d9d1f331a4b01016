"""Cluster runs by ssh, to daemons on this machine with their own keys."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.cluster.project import SLOW, Project

_SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def _missing() -> str:
    absent = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    absent += [] if Path(_SSHD).exists() else ["sshd"]
    if absent:
        return f"no {', '.join(absent)}: install openssh-server and openssh-client"
    return "" if os.geteuid() == 0 else "sshd needs root here"


pytestmark = [pytest.mark.acceptance, pytest.mark.skipif(bool(_missing()), reason=_missing())]


@pytest.fixture
def ssh_config(tmp_path: Path) -> Iterator[Path]:
    """Return an ssh configuration in which n0 and n1 are this machine."""
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "banner").write_text("Welcome! {}\n")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"PidFile {folder}/pid\nBanner {folder}/banner\nPasswordAuthentication no\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    daemon = subprocess.Popen([_SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL)
    user = pwd.getpwuid(os.geteuid()).pw_name
    config = folder / "config"
    config.write_text(
        f"Host n0 n1 n2\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {folder}/user\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known\n  StrictHostKeyChecking accept-new\n"
        "Host nowhere\n  HostName 127.0.0.1\n  Port 1\n"
    )
    deadline = time.monotonic() + 60
    while subprocess.run(["ssh", "-F", str(config), "n0", "true"], check=False, capture_output=True).returncode:
        assert daemon.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield config
    daemon.terminate()
    daemon.wait()


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
