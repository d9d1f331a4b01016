"""Engines: the command that starts an agent on each node. The head talks to the agent over its standard streams.

An engine only builds argument lists. No text of the user goes through a shell on this machine. ssh passes its command
to a shell on the other machine; this command has only quoted words of the harness, and pytest's arguments come over the
connection.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.core.errors import HarnessError
from harness.tools.cluster import allocation

AGENT = ("-m", "harness.tools.cluster.agent")
#: The name of a local node.
NODE = "CONFORMANCE_LOCAL_NODE"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:\[\]-]{0,200}")
#: Time limit, in seconds, for Slurm commands that only query.
_ASK_LIMIT = 60.0
_SHOW = ("scontrol", "--oneliner", "show")


class EngineError(HarnessError):
    """The engine cannot be used as requested."""


@dataclass(frozen=True, slots=True)
class Host:
    """A node as the engine knows it. `gres`, `features`: in Slurm's notation."""

    name: str
    command: tuple[str, ...]
    gres: str = ""
    features: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The name, and the engine's facts about the node."""
        facts = ", ".join(filter(None, [self.gres, *self.features]))
        return f"{self.name} ({facts})" if facts else self.name


class Engine(Protocol):
    """The source of the nodes."""

    def hosts(self) -> Sequence[Host]:
        """Return the nodes, each with the command that starts its agent. Raise EngineError."""


@dataclass(frozen=True, slots=True)
class Local:
    """Several agents on this machine, for trials. Each has its name in a variable."""

    nodes: int = 2
    python: str = sys.executable
    launcher: tuple[str, ...] = ()

    def hosts(self) -> Sequence[Host]:
        names = [f"local{number}" for number in range(self.nodes)]
        return [Host(name, ("env", f"{NODE}={name}", *self.launcher, self.python, *AGENT)) for name in names]


@dataclass(frozen=True, slots=True)
class Ssh:
    """Hosts that this user can log in to without a password. `config`: an ssh configuration file."""

    destinations: tuple[str, ...]
    python: str = sys.executable
    launcher: tuple[str, ...] = ()
    config: Path | None = None

    def hosts(self) -> Sequence[Host]:
        remote = shlex.join([*self.launcher, self.python, *AGENT])
        options = ["-T", "-a", "-x", "-oBatchMode=yes", "-oServerAliveInterval=5", "-oServerAliveCountMax=3"]
        options += ["-F", str(self.config)] if self.config is not None else []
        return [Host(name, ("ssh", *options, "--", name, remote)) for name in self.destinations]


def read_hosts(path: Path) -> tuple[str, ...]:
    """Return the hosts in a file, one per line; ``#`` begins a comment. Raise EngineError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"cannot read the hosts file {str(path)!r}: {error}") from None
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    for name in names:
        if not _NAME.fullmatch(name):
            raise EngineError(f"{str(path)!r}: {name!r} is not a host: write one ssh destination per line")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not names:
        raise EngineError(
            f"{str(path)!r} {f'names {twice!r} twice' if twice else 'names no host'}: write one host per line"
        )
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Slurm:
    """The nodes of a Slurm allocation. `options`: further options for srun, such as those of a container."""

    job: str
    python: str = sys.executable
    launcher: tuple[str, ...] = ()
    options: tuple[str, ...] = field(default=())

    def hosts(self) -> Sequence[Host]:
        job = scontrol_fields(_query("scontrol", "show", "job", self.job, "--oneliner"))
        if job.get("JobState") != "RUNNING":
            raise EngineError(f"job {self.job} is {job.get('JobState', 'unknown').lower()}, expected a running one")
        names = _query("scontrol", "show", "hostnames", job.get("NodeList", "")).split()
        processors = processors_by_node(os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""), len(names))
        return [self._host(name, cpus) for name, cpus in zip(names, processors, strict=True)]

    def _host(self, name: str, cpus: int) -> Host:
        fields = scontrol_fields(_query("scontrol", "show", "node", name, "--oneliner"))
        command = [
            "srun",
            f"--jobid={self.job}",
            f"--nodelist={name}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={cpus}",
            "--exact",
            "--kill-on-bad-exit=0",
            "--no-kill",
            "--quiet",
            *self.options,
            *self.launcher,
            self.python,
            *AGENT,
        ]
        features = fields.get("ActiveFeatures", "")
        return Host(
            name,
            tuple(command),
            _value(fields.get("Gres", "")),
            tuple(feature for feature in _value(features).split(",") if feature),
        )


def check_request(nodes: int, options: Sequence[str]) -> None:
    """Reject a request that no node of the partition can meet, before Slurm queues it. Raise EngineError."""
    slurm_nodes = [
        allocation.SlurmNode.of(scontrol_fields(line)) for line in _query(*_SHOW, "nodes").splitlines() if line.strip()
    ]
    partitions = [scontrol_fields(line) for line in _query(*_SHOW, "partitions").splitlines()]
    usual = next(
        (partition.get("PartitionName", "") for partition in partitions if partition.get("Default") == "YES"), ""
    )
    if why := allocation.request_objection(allocation.Request.of(nodes, options), slurm_nodes, usual):
        raise EngineError(why)


def allocate(nodes: int, options: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return the command that gets an allocation and runs `command` in it. The allocation ends with `command`."""
    return ["salloc", "--no-kill", f"--nodes={nodes}", *options, *command]


def scontrol_fields(text: str) -> dict[str, str]:
    """Return the fields of a line of ``scontrol --oneliner``. Values may contain spaces; names begin with a capital
    letter.
    """
    pairs = re.findall(r"(?:^|\s)([A-Z][A-Za-z0-9_:./*&-]*)=(.*?)(?=\s+[A-Z][A-Za-z0-9_:./*&-]*=|\s*$)", text.strip())
    return {name: value.strip() for name, value in pairs}


def processors_by_node(text: str, nodes: int) -> list[int]:
    """Return the processors of each node, from SLURM_JOB_CPUS_PER_NODE: ``8(x2),4``; 1 per node if unknown."""
    counts: list[int] = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return [1] * nodes
        counts += [int(match[1])] * int(match[2] or 1)
    return counts if len(counts) == nodes else [1] * nodes


def _value(text: str) -> str:
    return "" if text in ("(null)", "N/A") else text


def _query(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="backslashreplace", timeout=_ASK_LIMIT, check=False
        )
    except FileNotFoundError:
        raise EngineError(f"there is no {command[0]!r} here: run this where Slurm is installed") from None
    except subprocess.TimeoutExpired:
        raise EngineError(f"{shlex.join(command)} did not answer for {_ASK_LIMIT:.0f} s") from None
    if done.returncode != 0:
        raise EngineError(f"{shlex.join(command)} failed: {' '.join(done.stderr.split())}")
    return done.stdout
