"""``harness ready --fabric``: finds the node or link that breaks a collective of all nodes, by `harness.ready.halving`.

Each group of nodes is tested for real: a process per node, a rank per GPU, and values that are checked. The groups of a
round have no node in common and are tested at the same time. A group has failed if it fails twice, with another port:
the first may have been taken by others.
"""

from __future__ import annotations

import contextlib
import random
import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from harness.core.disposable import run_disposable
from harness.core.errors import HarnessError
from harness.ready.halving import Blame, Search
from harness.ready.orders import Fabric
from harness.tools.cluster.engine import Host
from harness.tools.cluster.link import last_words

#: Stands for the order in the commands of an engine.
PLACEHOLDER = "ORDER-OF-THE-FABRIC"
PROGRAM = ("-m", "harness.ready.fabric", PLACEHOLDER)
#: Nodes of a search: each has a thread and a process here.
MOST_NODES = 1024
#: Ports for rank 0: above those of services, below those that Linux gives to clients.
_PORTS = (20_000, 32_000)
_TRIES = 2
#: Seconds for the start of Python and torch on a node, beyond the limits of the test.
_START = 60.0


class FabricSearchError(HarnessError):
    """The nodes cannot be tested together."""


@dataclass(frozen=True, slots=True)
class FabricNode:
    """A node of the search: its command with `PLACEHOLDER`, its address for others, and the number of its GPUs."""

    name: str
    command: tuple[str, ...]
    address: str
    gpus: int


def nodes_of(hosts: Sequence[Host], gpus: Mapping[str, int], *, local: bool) -> list[FabricNode]:
    """Return the nodes to search, of those that have `gpus`. `local`: all are this machine. Raise FabricSearchError."""
    nodes = [
        FabricNode(host.name, host.command, "127.0.0.1" if local else address_of(host.name), gpus[host.name])
        for host in hosts
        if gpus.get(host.name)
    ]
    if len(nodes) > MOST_NODES:
        raise FabricSearchError(f"{len(nodes)} nodes: --fabric tests at most {MOST_NODES}; name fewer")
    return nodes


def address_of(node: str) -> str:
    """Return the address of a node for other nodes: without the user and the port of ssh.

    >>> address_of("me@n1:22"), address_of("n1"), address_of("[fd00::1]:22")
    ('n1', 'n1', 'fd00::1')
    """
    host = node.rpartition("@")[2]
    if bracketed := re.match(r"\[([^\]]+)\]", host):
        return bracketed[1]
    return host.partition(":")[0] if host.count(":") == 1 else host


def search_fabric(
    nodes: Sequence[FabricNode],
    kind: str,
    limit: int,
    *,
    tell: Callable[[str], object] = lambda _: None,
    source: random.Random | None = None,
) -> tuple[Blame, dict[str, str]]:
    """Test all nodes together, and fewer and fewer if they fail. Return what is to blame, and the words of each node.

    `limit`: seconds for each place of a test. `tell` gets a line per round.
    """
    by_name = {node.name: node for node in nodes}
    search = Search([node.name for node in nodes])
    words: dict[str, str] = {}
    source = source or random.Random()
    stop = threading.Event()
    with (
        ThreadPoolExecutor(max(1, len(nodes)), thread_name_prefix="fabric") as pool,
        contextlib.ExitStack() as at_end,
    ):
        at_end.callback(stop.set)  # if the wait is interrupted, no node is waited for
        while groups := search.next_groups():
            sizes = ", ".join(str(len(group)) for group in groups[:8])
            tell(f"round {search.rounds + 1}: testing groups of {sizes} nodes")
            failed = dict.fromkeys(groups, True)
            for _ in range(_TRIES):
                left = [group for group, is_bad in failed.items() if is_bad]
                asked = {
                    group: _start(pool, [by_name[name] for name in group], kind, limit, source, stop) for group in left
                }
                for group, runs in asked.items():
                    ends = {name: run.result() for name, run in runs.items()}
                    failed[group] = any(ends.values())
                    words |= {name: text for name, text in ends.items() if text}
            search.record(failed)
    return search.blame, words


def _start(
    pool: ThreadPoolExecutor,
    nodes: Sequence[FabricNode],
    kind: str,
    limit: int,
    source: random.Random,
    stop: threading.Event,
) -> dict[str, Future[str]]:
    """Start the test of a group. Return its results by node, which come later: what is wrong, or nothing."""
    port = source.randrange(*_PORTS)
    order = Fabric(
        kind=kind,
        first=0,
        world=sum(each.gpus for each in nodes),
        gpus=0,
        address=nodes[0].address,
        port=port,
        limit=limit,
    )
    first, started = 0, {}
    for node in nodes:
        own = msgspec.structs.replace(order, first=first, gpus=node.gpus)
        first += node.gpus
        started[node.name] = pool.submit(_run, with_order(node.command, own), 3.0 * limit + _START, stop)
    return started


def with_order(command: Sequence[str], order: Fabric) -> list[str]:
    """Return a command with its order. ssh has the words of the other machine in one."""
    return [word.replace(PLACEHOLDER, shlex.quote(order.word) if " " in word else order.word) for word in command]


def _run(command: Sequence[str], limit: float, stop: threading.Event) -> str:
    try:
        run = run_disposable(command, limit, stopped=stop.is_set)
    except OSError as error:
        return f"{command[0]!r} does not start here: {error.strerror}"
    if not run.in_time:
        return f"no end within {limit:.0f} s"
    said = last_words(run.errors[-4096:].decode("utf-8", "backslashreplace")).removeprefix("harness: ")
    return "" if run.status == 0 else said or f"ended with status {run.status}"
