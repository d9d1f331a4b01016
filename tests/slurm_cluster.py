"""A Slurm of four simulated nodes with GPUs in its own namespaces, for tests that run as root with Slurm installed.

``python -m tests.slurm_cluster WORD...`` runs a command inside. Nodes h0 and h1 have 8 GPUs of one type, a0 and a1 have
4 of another. They are daemons on this machine, so their processes see its processors and files. The partition `short`
gives a job one minute, and the default partition, `all`, an hour. Further lines of slurm.conf may be in the variable
`SLURM_CLUSTER_CONF`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = ("unshare", "munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol", "sinfo", "runuser")
NODES = ("h0", "h1", "a0", "a1")
#: A variable with further lines of slurm.conf.
CONF = "SLURM_CLUSTER_CONF"
_INSIDE = "--inside"
_FIRST_PORT = 17001
_PATIENCE = 60.0
_SIOCSIFADDR, _SIOCSIFFLAGS, _IFF_UP = 0x8916, 0x8914, 1

_CONF = """\
ClusterName=pretended
SlurmctldHost=pretended(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=/var/spool/slurm/state
SlurmdSpoolDir=/var/spool/slurm/%n
SlurmdPidFile=/var/spool/slurm/%n.pid
SlurmctldPidFile=/var/spool/slurm/slurmctld.pid
SlurmdLogFile=/var/log/slurm/%n.log
SlurmctldLogFile=/var/log/slurm/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
KillWait=5
SlurmdTimeout=10
SchedulerParameters=sched_interval=1,batch_sched_delay=0
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
"""


def missing() -> str:
    """Return the reason why such a cluster is impossible here; empty if it is possible."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"no {', '.join(absent)}: install slurm-wlm and munge"
    if os.geteuid() != 0:
        return "namespaces and daemons need root"
    tried = subprocess.run(["unshare", "--mount", "--uts", "--net", "--pid", "--fork", "true"], check=False)
    return "" if tried.returncode == 0 else "this machine allows no namespaces"


def command(*words: str) -> list[str]:
    """Return the command that runs `words` in a new cluster."""
    spaces = ["--mount", "--uts", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *spaces, sys.executable, "-m", "tests.slurm_cluster", _INSIDE, *words]


def _path() -> str:
    """Return a PATH that includes the daemons' folders, which not every user has."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _configuration(folder: Path) -> None:
    lines, gres = [_CONF], ["AutoDetect=off"]
    for number, (name, kind, gpus, features) in enumerate(
        [("h0", "h200", 8, "hopper,nvlink"), ("h1", "h200", 8, "hopper"), ("a0", "a100", 4, ""), ("a1", "a100", 4, "")]
    ):
        known = f" Feature={features}" if features else ""
        lines.append(
            f"NodeName={name} NodeHostname=pretended NodeAddr=127.0.0.1 Port={_FIRST_PORT + number} CPUs=8 "
            f"Gres=gpu:{kind}:{gpus}{known}"
        )
        # Slurm only sets CUDA_VISIBLE_DEVICES in steps for character devices with such names.
        gres.append(f"NodeName={name} Name=gpu Type={kind} File={folder}/nvidia[0-{gpus - 1}]")
    lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP")
    lines.append("PartitionName=short Nodes=a0 MaxTime=1 State=UP")
    lines.append(os.environ.get(CONF, ""))
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "gres.conf").write_text("\n".join(gres) + "\n")
    for number in range(8):
        os.mknod(folder / f"nvidia{number}", 0o020666, os.makedev(1, 3))


def _network() -> None:
    """Bring up the loopback interface, with a second address: look-ups fail if 127.0.0.1 is the only one."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", _IFF_UP, b""))
        address = struct.pack("16sH2s4s8s", b"lo:1", socket.AF_INET, b"", socket.inet_aton("192.0.2.1"), b"")
        fcntl.ioctl(any_socket, _SIOCSIFADDR, address)


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def _start(folder: Path) -> None:
    _run("mount", "--make-rprivate", "/")
    for place in ("/etc/slurm", "/var/spool/slurm", "/var/log/slurm", "/run/munge", "/etc/munge"):
        Path(place).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", place)
    _network()
    socket.sethostname("pretended")
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost pretended\n")
    _run("mount", "--bind", str(hosts), "/etc/hosts")
    key = Path("/etc/munge/munge.key")
    key.write_bytes(os.urandom(1024))
    _run("chown", "-R", "munge:", "/etc/munge", "/run/munge")
    key.chmod(0o400)
    Path("/run/munge").chmod(0o755)
    _run("runuser", "-u", "munge", "--", "munged")
    Path("/var/spool/slurm/state").mkdir()
    _configuration(Path("/etc/slurm"))
    _run("slurmctld")
    for name in NODES:
        Path(f"/var/spool/slurm/{name}").mkdir()
        _run("slurmd", "-N", name)
    deadline = time.monotonic() + _PATIENCE
    while len(_idle()) < len(NODES):
        if time.monotonic() > deadline:
            logs = "".join(path.read_text() for path in sorted(Path("/var/log/slurm").iterdir()))
            raise SystemExit(f"the cluster does not come up: {_run('sinfo', '-N')}\n{logs}")
        time.sleep(0.1)


def _idle() -> set[str]:
    found = subprocess.run(["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"], capture_output=True, text=True, check=False)
    return {*found.stdout.split()}


def main(words: Sequence[str]) -> int:
    """Run a command in a new cluster; return its exit status."""
    if words[:1] != [_INSIDE]:
        return subprocess.run(command(*words), check=False).returncode
    os.environ["PATH"] = _path()
    with tempfile.TemporaryDirectory() as folder:
        _start(Path(folder))
        try:
            return subprocess.run(words[1:], check=False).returncode
        finally:
            subprocess.run(["scontrol", "shutdown"], check=False, capture_output=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
