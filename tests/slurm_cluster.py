"""A Slurm cluster on this host alone, for tests: two nodes that are pretended, in namespaces of their own.

``python -m tests.slurm_cluster COMMAND...`` runs a command in it, and ends with the exit status of the command. It
needs root, and the packages slurm-wlm and munge of Debian. The daemons see no other network than a loopback of their
own. They end with the namespace of processes, whatever happens to the command.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

NODES = ("n0", "n1")
PARTITION = "all"
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "sinfo", "munged", "unshare", "runuser")
_TIMEOUT = 60.0  # for the nodes to be idle

_SLURM = f"""\
ClusterName=tests
SlurmctldHost=controller(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=/var/spool/slurm/state
SlurmdSpoolDir=/var/spool/slurm/%n
SlurmctldPidFile=/var/spool/slurm/slurmctld.pid
SlurmdPidFile=/var/spool/slurm/%n.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={NODES[0]} NodeHostname=controller NodeAddr=127.0.0.1 Port=17001 CPUs=2
NodeName={NODES[1]} NodeHostname=controller NodeAddr=127.0.0.1 Port=17002 CPUs=2
PartitionName={PARTITION} Nodes={",".join(NODES)} Default=YES MaxTime=60 State=UP
"""


def reason_not_here() -> str:
    """Why no cluster can be made on this machine. Empty if one can."""
    if os.geteuid() != 0:
        return "a pretended Slurm cluster needs root"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"Slurm is not installed: there is no {', '.join(missing)}"
    tried = subprocess.run(_unshare("true"), capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"namespaces cannot be made here: {tried.stderr.strip()}"


def command(*words: str) -> list[str]:
    """The command line that runs `words` in a cluster."""
    return _unshare(sys.executable, "-m", "tests.slurm_cluster", "--inside", *words)


def _unshare(*words: str) -> list[str]:
    return ["unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", *words]


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _inside(words: list[str]) -> int:
    """The first process of the namespace: makes the cluster and runs the command."""
    os.environ["PATH"] = _path()
    _isolate()
    _start_munge()
    _start_slurm()
    _wait_for_nodes()
    return subprocess.run(words, check=False).returncode


def _isolate() -> None:
    """Folders of daemons are empty and this namespace's own, the loopback is up, and the host has another name."""
    _run("mount", "--make-rprivate", "/")
    for folder in ("/etc/slurm", "/var/spool/slurm", "/var/log/slurm", "/etc/munge", "/run/munge"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", folder)
    with socket.socket() as any_socket:
        up = struct.pack("16sH14s", b"lo", 1, b"")
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS
        # Slurm looks for addresses of other interfaces than the loopback, and finds no host without one.
        address = struct.pack("16sH2s4s8s", b"lo:1", socket.AF_INET, b"", socket.inet_aton("192.0.2.1"), b"")
        fcntl.ioctl(any_socket, 0x8916, address)  # SIOCSIFADDR
    socket.sethostname("controller")
    hosts = Path("/etc/slurm/hosts")
    hosts.write_text("127.0.0.1 localhost controller\n")
    _run("mount", "--bind", str(hosts), "/etc/hosts")


def _start_munge() -> None:
    key = Path("/etc/munge/munge.key")
    key.write_bytes(os.urandom(1024))
    for path in (key, key.parent, Path("/run/munge")):
        shutil.chown(path, "munge", "munge")
    key.chmod(0o400)
    Path("/run/munge").chmod(0o755)
    _run("runuser", "-u", "munge", "--", "munged")


def _start_slurm() -> None:
    Path("/etc/slurm/slurm.conf").write_text(_SLURM)
    Path("/var/spool/slurm/state").mkdir()
    _run("slurmctld")
    for node in NODES:
        Path("/var/spool/slurm", node).mkdir()
        _run("slurmd", "-N", node)


def _wait_for_nodes() -> None:
    end = time.monotonic() + _TIMEOUT
    while True:
        found = subprocess.run(
            ["sinfo", "--noheader", "-N", "-t", "idle", "-o", "%N"], capture_output=True, text=True, check=False
        )
        if set(found.stdout.split()) == set(NODES):
            return
        if time.monotonic() > end:
            logs = "".join(path.read_text() for path in sorted(Path("/var/log/slurm").iterdir()))
            raise SystemExit(f"the nodes are not idle after {_TIMEOUT:.0f} s: {found.stdout}{found.stderr}\n{logs}")
        time.sleep(0.1)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(_inside(sys.argv[2:]))
    sys.exit(subprocess.run(command(*sys.argv[1:]), check=False).returncode)
