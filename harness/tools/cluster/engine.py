"""The nodes of a run: lists of hosts, Slurm's requests, and engines, the commands that start a program on each node.

The head talks to the agent over its standard streams.

An engine only builds argument lists. No text of the user goes through a shell on this machine. ssh passes its command
to a shell on the other machine; this command has only quoted words of the harness, and pytest's arguments come over the
connection.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol, Self

from harness.core import linux
from harness.core.errors import HarnessError
from harness.core.text import format_count, format_exit_code, list_first

# Lists of hosts in Slurm's notation: ``gpu[001-064,070],login1``. Pure functions.
#
# Slurm's own reader (``scontrol show hostnames``) needs Slurm, and a fleet over ssh has none.

#: The most hosts of a list, so that a mistake such as ``a[1-1000000000]`` ends at once.
MOST_HOSTS = 65_536
_NAME = re.compile(r"[A-Za-z0-9@:._%/-]{1,200}")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?", re.ASCII)
#: The last number of a name that is read backwards, between what follows and what precedes it.
_LAST_NUMBER = re.compile(r"(\D*)(\d{1,12})(.*)", re.ASCII | re.DOTALL)


class HostlistError(HarnessError):
    """A list of hosts cannot be read."""


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, in order. Raise HostlistError, also for a host that is in it twice.

    >>> expand("a[1-3,08],b")
    ('a1', 'a2', 'a3', 'a08', 'b')
    """
    hosts: list[str] = []
    for part in _parts(text):
        for host in _expanded(part, text):
            if not _NAME.fullmatch(host):
                raise HostlistError(f"{text!r}: {host!r} is no host; expected names such as a[1-64],b7")
            hosts.append(host)
            if len(hosts) > MOST_HOSTS:
                raise HostlistError(f"{text!r} has more than {MOST_HOSTS} hosts; write a shorter list")
    if not hosts:
        raise HostlistError(f"{text!r} has no host; expected names such as a[1-64],b7")
    if len({*hosts}) < len(hosts):
        twice = next(host for host in hosts if hosts.count(host) > 1)
        raise HostlistError(f"{text!r} has {twice!r} twice; write each host once")
    return tuple(hosts)


def _parts(text: str) -> Iterator[str]:
    """Split at commas outside of brackets."""
    depth, part = 0, ""
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if not 0 <= depth <= 1:
            raise HostlistError(f"{text!r} has brackets that do not match; expected names such as a[1-64],b7")
        if character == "," and not depth:
            yield part.strip()
            part = ""
        else:
            part += character
    if depth:
        raise HostlistError(f"{text!r} has a bracket that is not closed; expected names such as a[1-64],b7")
    yield part.strip()


def _expanded(part: str, text: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        if part:
            yield part
        return
    inside, _, tail = rest.partition("]")
    for words in inside.split(","):
        match = _RANGE.fullmatch(words.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first or last - first >= MOST_HOSTS:
            raise HostlistError(f"{text!r}: {words!r} is no range; expected numbers such as 1-64 or 001-064")
        width = len(match[1])
        for number in range(first, last + 1):
            for end in _expanded(tail, text) if tail else [""]:
                yield f"{head}{number:0{width}}{end}"


def fold(hosts: Iterable[str]) -> str:
    """Return the hosts as a list, in order of name and number; `expand` is the inverse but for the order.

    >>> fold(["a3", "b", "a1", "a2", "a08"])
    'a[1-3,08],b'
    """
    numbered: dict[tuple[str, str], list[str]] = {}
    plain: list[str] = []
    for host in {*hosts}:
        match = _LAST_NUMBER.fullmatch(host[::-1])
        tail, digits, head = (part[::-1] for part in match.groups()) if match else ("", "", host)
        if not digits or any(character in head for character in ":@/"):
            plain.append(host)
        else:
            numbered.setdefault((head, tail), []).append(digits)
    merged = {key: _folded_numbers(digits) for key, digits in sorted(numbered.items())}
    texts = [
        f"{head}[{','.join(ranges)}]{tail}" if len(ranges) > 1 or "-" in ranges[0] else f"{head}{ranges[0]}{tail}"
        for (head, tail), ranges in merged.items()
    ]
    return ",".join(sorted([*texts, *plain]))


def _folded_numbers(numbers: Sequence[str]) -> list[str]:
    """Return the ranges of numbers. ``010`` and ``9`` are in different ones; ``10`` may follow ``09``."""
    padded = {len(number) for number in numbers if number.startswith("0") and len(number) > 1}
    widths: dict[int, list[int]] = {}
    for number in numbers:
        widths.setdefault(len(number) if len(number) in padded else 0, []).append(int(number))
    return [text for width, values in sorted(widths.items()) for text in _ranges(sorted(values), width)]


def _ranges(numbers: list[int], width: int) -> Iterator[str]:
    begin = before = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == before + 1:
            before = number
            continue
        yield f"{begin:0{width}}" if begin == before else f"{begin:0{width}}-{before:0{width}}"
        if number is not None:
            begin = before = number


# Check whether Slurm can grant a new allocation: the request against the nodes of the partition.
#
# Slurm also refuses such a request, but names neither the nodes nor their resources. If these functions do not
# understand a request, they have no objection, and Slurm decides.

_GRES = re.compile(r"(?:gres/)?([a-z_][a-z0-9_]*)(?::([A-Za-z_][A-Za-z0-9_.-]*))?(?:[:=](\d+))?")
_FEATURES = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*(?:&[A-Za-z_][A-Za-z0-9_.-]*)*")


@dataclass(frozen=True, slots=True)
class Resource:
    """A generic resource. `type`: empty for any."""

    name: str
    type: str = ""
    count: int = 1

    def __str__(self) -> str:
        return ":".join(filter(None, [self.name, self.type, str(self.count)]))

    def is_met_by(self, others: Iterable[Resource]) -> bool:
        """Return whether a node with these resources has this one."""
        same = [other for other in others if other.name == self.name and self.type in ("", other.type)]
        return sum(resource.count for resource in same) >= self.count


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """Slurm's facts about a node."""

    name: str
    partitions: tuple[str, ...] = ()
    gres: tuple[Resource, ...] = ()
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> SlurmNode:
        """Return a node from the fields of ``scontrol show node``."""
        return cls(
            fields.get("NodeName", ""),
            _words(fields.get("Partitions", "")),
            parse_resources(fields.get("Gres", "")) or (),
            _words(fields.get("AvailableFeatures", "")),
        )

    @property
    def has(self) -> str:
        """The node's resources and features as text."""
        return ", ".join([*map(str, self.gres), *self.features]) or "nothing"


@dataclass(frozen=True, slots=True)
class Request:
    """The per-node request of salloc options. None where it is not understood."""

    nodes: int
    partitions: tuple[str, ...] = ()
    gres: tuple[Resource, ...] | None = ()
    features: tuple[str, ...] | None = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: int, options: Sequence[str]) -> Request:
        given = _given(options)
        features = given.get("--constraint", "")
        return cls(
            nodes,
            _words(given.get("--partition", "")),
            parse_resources(given.get("--gres", "")),
            tuple(features.split("&")) if _FEATURES.fullmatch(features) else None if features else (),
            given,
        )


def parse_resources(text: str) -> tuple[Resource, ...] | None:
    """Return the resources in a Slurm text such as ``gpu:h200:8(S:0-1),shard:4``. None if it is not understood."""
    resources = []
    for word in _words(re.sub(r"\([^)]*\)", "", text)) if text != "none" else ():
        match = _GRES.fullmatch(word)
        if match is None:
            return None
        resources.append(Resource(match[1], match[2] or "", 1 if match[3] is None else int(match[3])))
    return tuple(resources)


def request_objection(request: Request, nodes: Sequence[SlurmNode], default: str = "") -> str:
    """Return why no nodes can satisfy a request; empty if there is no known reason.

    `default`: the default partition.
    """
    partitions = request.partitions or ((default,) if default else ())
    here = [node for node in nodes if not partitions or {*node.partitions} & {*partitions}]
    where = f"partition {', '.join(map(repr, partitions))}" if partitions else "the cluster"
    if not here:
        existing = sorted({name for node in nodes for name in node.partitions})
        return f"no node is in {where}; there {'is' if len(existing) == 1 else 'are'} {list_first(existing) or 'none'}"
    gres, features = request.gres, request.features
    for option, able in (
        ("--gres", [node for node in here if gres is None or all(resource.is_met_by(node.gres) for resource in gres)]),
        ("--constraint", [node for node in here if features is None or {*features} <= {*node.features}]),
    ):
        understood = (gres if option == "--gres" else features) is not None
        if len(able) < request.nodes and understood and option in request.options:
            asked = f"{option}={request.options[option]}"
            have = f"only {list_first([node.name for node in able])} of {where}" if able else f"no node of {where}"
            there = "; ".join(_there(here))
            wanted = format_count(request.nodes, "node")
            return (
                f"{asked}: {have} can meet that, and {wanted} {'is' if request.nodes == 1 else 'are'} wanted: {there}"
            )
    return ""


def _there(nodes: Iterable[SlurmNode]) -> Iterator[str]:
    """Yield the available resources, and their nodes."""
    names: dict[str, list[str]] = {}
    for node in nodes:
        names.setdefault(node.has, []).append(node.name)
    yield from (f"{list_first(node_names, 8)} ({has})" for has, node_names in names.items())


def _given(options: Sequence[str]) -> dict[str, str]:
    """Return long options with their values, and the relevant short options."""
    values: dict[str, str] = {}
    for word in options:
        name, _, value = word.partition("=")
        if name[:2] in ("-p", "-C") and not word.startswith("--"):
            name, value = {"-p": "--partition", "-C": "--constraint"}[word[:2]], word[2:].lstrip("= ")
        values[name] = value
    return values


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip() not in ("", "(null)", "N/A"))


_HOLDER = ("-m", "harness.tools.cluster.engine")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
AGENT = ("-m", "harness.tools.cluster.agent")
#: The variable with the number of the allocation that this process is in.
JOB_ID = "SLURM_JOB_ID"
#: The name of a local node.
NODE = "CONFORMANCE_LOCAL_NODE"
#: A destination as in `ssh(1)`: HOST, USER@HOST or ssh://USER@HOST:PORT; an IPv6 address may have a scope.
_DESTINATION = re.compile(r"(?:ssh://)?([A-Za-z0-9\[:][A-Za-z0-9_.@:%\[\]-]{0,200})/?")
#: Time limit, in seconds, for Slurm commands that only query.
_ASK_LIMIT = 60.0
_SHOW = ("scontrol", "--oneliner", "show")


class EngineError(HarnessError):
    """The engine cannot be used as requested."""


class StoppedError(HarnessError):
    """A signal ended the wait for an allocation."""


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
    """The source of the nodes. Each kind has the field `program`: the arguments of Python on a node."""

    def hosts(self) -> Sequence[Host]:
        """Return the nodes, each with the command that starts its agent. Raise EngineError."""


@dataclass(frozen=True, slots=True)
class Local:
    """Several agents on this machine, for trials. Each has its name in a variable."""

    nodes: int = 2
    python: str = sys.executable
    launcher: tuple[str, ...] = ()
    program: tuple[str, ...] = AGENT

    def hosts(self) -> Sequence[Host]:
        names = [f"local{number}" for number in range(self.nodes)]
        return [Host(name, ("env", f"{NODE}={name}", *self.launcher, self.python, *self.program)) for name in names]


@dataclass(frozen=True, slots=True)
class Ssh:
    """Hosts that this user can log in to without a password. `config`: an ssh configuration file."""

    destinations: tuple[str, ...]
    python: str = sys.executable
    launcher: tuple[str, ...] = ()
    config: Path | None = None
    program: tuple[str, ...] = AGENT

    def hosts(self) -> Sequence[Host]:
        remote = shlex.join([*self.launcher, self.python, *self.program])
        options = ["-T", "-a", "-x", "-oBatchMode=yes", "-oServerAliveInterval=5", "-oServerAliveCountMax=3"]
        options += ["-F", str(self.config)] if self.config is not None else []
        return [
            Host(node_name(destination), ("ssh", *options, "--", destination, remote))
            for destination in self.destinations
        ]


def node_name(destination: str) -> str:
    """Return the name of the node at an ssh destination, which is also the name of its log."""
    match = _DESTINATION.fullmatch(destination)
    return match[1] if match else destination


def read_hosts(path: Path) -> tuple[str, ...]:
    """Return the hosts in a file, one per line; ``#`` begins a comment. Raise EngineError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"cannot read the hosts file {str(path)!r}: {error}") from None
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    for name in names:
        if not _DESTINATION.fullmatch(name):
            raise EngineError(f"{str(path)!r}: {name!r} is not a host: write one ssh destination per line")
    nodes = [node_name(name) for name in names]
    twice = next((name for name in nodes if nodes.count(name) > 1), None)
    if twice is not None or not names:
        raise EngineError(
            f"{str(path)!r} {f'names {twice!r} twice' if twice else 'names no host'}: write one host per line"
        )
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Slurm:
    """The nodes of a Slurm allocation: of this process, or a new one.

    `options`: further options for srun, such as those of a container.
    """

    allocation: Allocation | None = None
    python: str = sys.executable
    launcher: tuple[str, ...] = ()
    options: tuple[str, ...] = field(default=())
    program: tuple[str, ...] = AGENT

    def hosts(self) -> Sequence[Host]:
        if self.allocation is not None:
            os.environ.update(self.allocation.obtain())
        number = os.environ[JOB_ID]
        job = scontrol_fields(_query("scontrol", "show", "job", number, "--oneliner"))
        if job.get("JobState") != "RUNNING":
            raise EngineError(f"job {number} is {job.get('JobState', 'unknown').lower()}, expected a running one")
        names = _query("scontrol", "show", "hostnames", job.get("NodeList", "")).split()
        processors = processors_by_node(os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""), len(names))
        return [self._host(number, name, cpus) for name, cpus in zip(names, processors, strict=True)]

    def _host(self, job: str, name: str, cpus: int) -> Host:
        fields = scontrol_fields(_query("scontrol", "show", "node", name, "--oneliner"))
        command = [
            "srun",
            f"--jobid={job}",
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
            *self.program,
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
    slurm_nodes = [SlurmNode.of(scontrol_fields(line)) for line in _query(*_SHOW, "nodes").splitlines() if line.strip()]
    partitions = [scontrol_fields(line) for line in _query(*_SHOW, "partitions").splitlines()]
    usual = next(
        (partition.get("PartitionName", "") for partition in partitions if partition.get("Default") == "YES"), ""
    )
    if why := request_objection(Request.of(nodes, options), slurm_nodes, usual):
        raise EngineError(why)


class Allocation:
    """An allocation of Slurm that lasts as long as this context, and no longer than this process.

    salloc is a child of the head, so signals to the head and its exit status are the head's own: salloc would change a
    command that a signal killed into exit status 0.
    """

    def __init__(self, nodes: int, options: Sequence[str]) -> None:
        """`options`: those of salloc. `obtain` starts it."""
        self._salloc = ["salloc", "--no-kill", f"--nodes={nodes}", *options, sys.executable, *_HOLDER]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()

    def obtain(self) -> dict[str, str]:
        """Wait for the allocation. Return its variables. Raise EngineError, or StoppedError on a signal."""
        if shutil.which(self._salloc[0]) is None:
            raise EngineError(f"there is no {self._salloc[0]!r} here: run this where Slurm is installed")
        handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores one
        before = {number: signal.signal(number, _stop_waiting) for number in handled}
        try:
            self._process = subprocess.Popen(
                [sys.executable, *_HOLDER, str(os.getpid()), *self._salloc],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                start_new_session=True,
            )
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            if not line:
                status = format_exit_code(self._process.wait())
                raise EngineError(f"there is no allocation: salloc ended with {status}; its message is above")
            variables: dict[str, str] = json.loads(line)
        except StoppedError:
            if self._process is not None:
                self._process.terminate()  # it withdraws its request
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return variables


def _stop_waiting(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise StoppedError(f"stopped by {signal.Signals(number).name} while it waited for an allocation")


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


# Hold a Slurm allocation: ``python -m harness.tools.cluster.engine HEAD salloc …``, started by the head.
#
# The process becomes salloc, which gets SIGTERM if the head ends in any way: it then withdraws a request that waits,
# and ends an allocation. salloc gives the allocation back when its command ends. That is this module again, without
# arguments: it prints the variables of the allocation, and ends with its standard input.


def main(arguments: Sequence[str]) -> None:
    """Become salloc; without arguments, print one line of JSON, and wait."""
    if arguments:
        head, *command = arguments
        linux.die_with_parent(int(head), signal.SIGTERM)
        os.execvp(command[0], command)
    variables = {name: value for name, value in os.environ.items() if name.startswith(("SLURM", "SALLOC"))}
    print(json.dumps(variables), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
