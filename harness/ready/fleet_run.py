"""Which nodes ``harness ready`` asks, by which program, and the two lists that it leaves for a scheduler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core.atomic import write_atomically
from harness.core.errors import HarnessError, convert_to_write_error
from harness.ready import fabric_search
from harness.ready.fleet import MARGIN, PARALLEL, Fabric, FleetReport, NodeAnswer, ask_fleet
from harness.tools.cluster import engine as engines
from harness.tools.cluster import hostlist
from harness.tools.cluster.engine import Engine

#: Seconds for each place of a collective of many nodes, the first of which makes all connections.
FABRIC_LIMIT = 60
READY_FILE, NOT_READY_FILE = "ready.txt", "not_ready.txt"


class FleetError(HarnessError):
    """A fleet cannot be asked as requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest:
    """The nodes, and what each is asked. One of these names the nodes:

    `hosts`: a list as ``a[1-64]``, and `hostfile`: a file with one host per line; both by ssh. `slurm`: the nodes of
    the allocation that this process is in. `local`: so many times this machine, for a trial.

    `options`: those of ``harness ready`` on each node. `budget`: seconds that each node gets; `limit`: seconds until
    its answer must be there, by default the budget and `MARGIN`.
    """

    hosts: str = ""
    hostfile: Path | None = None
    slurm: bool = False
    local: int = 0
    options: tuple[str, ...] = ()
    budget: float = 60.0
    limit: float | None = None
    parallel: int = PARALLEL
    python: str = sys.executable
    launcher: tuple[str, ...] = ()
    ssh_config: Path | None = None

    @property
    def answer_limit(self) -> float:
        """Seconds until the answer of a node must be there."""
        return self.budget + MARGIN if self.limit is None else self.limit


def engine_of(request: FleetRequest, program: tuple[str, ...] = ()) -> Engine:
    """Return the engine that knows the nodes. `program`: what it runs there, instead of the check of a node.

    Raise FleetError, HostlistError, EngineError.
    """
    given = {
        "--hosts": bool(request.hosts),
        "--hostfile": request.hostfile is not None,
        "--slurm": request.slurm,
        "--local": bool(request.local),
    }
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) != 1:
        raise FleetError(f"{' and '.join(chosen) or 'no nodes'}: expected exactly one of {', '.join(given)}")
    program = program or ("-m", "harness", "ready", "--json", *request.options)
    python, launcher = request.python, request.launcher
    if request.slurm:
        return engines.Slurm(None, python, launcher, program=program)
    if request.local:
        return engines.Local(request.local, python, launcher, program)
    if request.hostfile is not None:
        destinations = engines.read_hosts(request.hostfile)
    else:
        destinations = hostlist.expand(request.hosts)
    return engines.Ssh(destinations, python, launcher, request.ssh_config, program)


def check_fleet(
    request: FleetRequest, tell: Callable[[NodeAnswer, int], object] = lambda _answer, _left: None
) -> FleetReport:
    """Ask all nodes. `tell` gets each answer, and how many are missing. Raise HarnessError if none can be asked."""
    hosts = engine_of(request).hosts()
    return ask_fleet(hosts, request.answer_limit, parallel=request.parallel, tell=tell)


def check_fabric(request: FleetRequest, report: FleetReport, kind: str, tell: Callable[[str], object]) -> FleetReport:
    """Test the good nodes of a fleet together; return the report with what breaks them. Raise HarnessError."""
    good = {*report.nodes(ready=True)}
    gpus = {
        answer.node: len(answer.report.gpus)
        for answer in report.answers
        if answer.node in good and answer.report is not None
    }
    hosts = engine_of(request, fabric_search.PROGRAM).hosts()
    nodes = fabric_search.nodes_of(hosts, gpus, local=bool(request.local))
    if len(nodes) < 2:
        note = "the fabric was not tested: it needs two nodes that may get work"
        return replace(report, notes=(*report.notes, note))
    blame, words = fabric_search.search_fabric(nodes, kind, FABRIC_LIMIT, tell=tell)
    return replace(report, fabric=Fabric(tuple(node.name for node in nodes), blame, words))


def write_lists(report: FleetReport, folder: Path, *, strict: bool = False) -> tuple[Path, Path]:
    """Write the nodes that may get work, and all others, each as one line in Slurm's notation. Raise WriteError.

    ``srun --exclude=$(cat not_ready.txt)`` takes such a list.
    """
    written = []
    for name, ready in ((READY_FILE, True), (NOT_READY_FILE, False)):
        path = folder / name
        with convert_to_write_error(str(path)):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _line(report.nodes(ready=ready, strict=strict)).encode())
        written.append(path)
    return written[0], written[1]


def _line(nodes: Sequence[str]) -> str:
    return hostlist.fold(nodes) + "\n" if nodes else ""
