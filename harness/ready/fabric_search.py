"""``harness ready --fabric``: finds the node or link that breaks a collective of all nodes.

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
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from harness.core.disposable import run_disposable
from harness.core.errors import HarnessError
from harness.ready.quick_tests import Fabric
from harness.tools.cluster.engine import Host
from harness.tools.cluster.link import last_words

# Names the nodes and links that break a test of many nodes, by tests of fewer and fewer. Pure decisions.
#
# A test of a group of nodes, such as an all-reduce, fails if a node of the group is bad, or a link between two of them.
# `Search` says which groups to test next; they have no node in common, so they can be tested at the same time. The
# caller runs them and gives back which failed, and so on until the search is over:
#
# 1. All nodes together. If they pass, nothing is wrong.
# 2. A group that fails is halved, and both halves are tested. A half that fails is halved again.
# 3. If both halves pass, something between them is wrong. One half is halved while the other stays, until one node of
#    each half is left: the pair.
# 4. A pair fails by its link or by a node that fails with everybody. Each of the two is tested with other nodes, one
#    after the other: who passes once is good, and who fails with all of up to three is bad. If both are good, the link
#    is bad.
# 5. What was found is set aside, and all others are tested together once more, until they pass.
#
# A fault that comes and goes may pass in both halves and in all parts across: the search then says `unclear`, with the
# smallest group that has failed.

Group = tuple[str, ...]
#: A node that fails with so many others is bad.
_HELPERS = 3


@dataclass(frozen=True, slots=True)
class Blame:
    """What the search has found: bad nodes, bad links, and groups that failed and could not be narrowed down."""

    nodes: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    unclear: tuple[Group, ...] = ()


@dataclass(slots=True)
class _Ask:
    """What a part of the search wants to know, about these nodes: which of the groups fail.

    With `one`, the group is that node and another one, which must not be in `tried`. It is chosen before the test.
    """

    nodes: Group
    groups: list[Group]
    one: str = ""
    tried: Group = ()


#: A part of the search: it asks, gets for each group whether it has failed, and so on.
_Part = Generator[_Ask, list[bool], None]


class Search:
    """A search over these nodes. Call `next_groups` and `record` in turn, until `next_groups` is empty."""

    def __init__(self, nodes: Sequence[str], most_rounds: int = 200) -> None:
        """`most_rounds`: after so many rounds the search gives up, and what is open is unclear."""
        if len({*nodes}) < len(nodes):
            raise ValueError("a node is named twice, expected each once")
        self._alive = list(nodes)
        self._parts: list[tuple[_Part, _Ask]] = []
        self._asked: list[tuple[_Part, _Ask]] = []
        self._nodes: list[str] = []
        self._links: list[tuple[str, str]] = []
        self._unclear: list[Group] = []
        self._news = False
        self.rounds = self.tests = 0
        self._most_rounds = most_rounds
        if nodes:
            self._go_on(self._whole(tuple(nodes)))

    @property
    def blame(self) -> Blame:
        """What was found until now."""
        return Blame(tuple(self._nodes), tuple(self._links), tuple(self._unclear))

    def next_groups(self) -> list[Group]:
        """Return the groups to test now; empty at the end. No two of them have a node in common."""
        self._asked, taken = [], set[str]()
        for part, ask in self._parts if self.rounds < self._most_rounds else ():
            if ask.one:
                helper = self._helper(ask, taken)
                ask.groups = [(ask.one, helper)] if helper else []
            nodes = {node for group in ask.groups for node in group}
            if nodes and not nodes & taken:
                self._asked.append((part, ask))
                taken |= nodes
        if not self._asked:  # too many rounds, or pairs without anybody to test them with
            self._unclear += [ask.nodes for _, ask in self._parts]
            self._parts = []
        return [group for _, ask in self._asked for group in ask.groups]

    def record(self, failed: Mapping[Group, bool]) -> None:
        """Record whether each of the groups of `next_groups` has failed."""
        self.rounds += 1
        for part, ask in self._asked:
            self.tests += len(ask.groups)
            self._parts.remove((part, ask))
            self._go_on(part, [failed[group] for group in ask.groups])
        self._asked = []
        if not self._parts and self._news:
            # What was found is set aside: something else may be wrong among the others.
            self._news = False
            if len(self._alive) > 1:
                self._go_on(self._whole(tuple(self._alive)))

    def _go_on(self, part: _Part, failed: list[bool] | None = None) -> None:
        """Begin or continue a part of the search, until it asks again or ends."""
        try:
            ask = next(part) if failed is None else part.send(failed)
        except StopIteration:
            return
        self._parts.append((part, ask))

    def _whole(self, group: Group) -> _Part:
        (failed,) = yield _Ask(group, [group])
        if failed:
            yield from self._narrow(group)

    def _narrow(self, group: Group) -> _Part:
        """Find what is bad in a group that has failed."""
        if len(group) == 1:
            self._nodes.append(group[0])
            self._forget(group[0])
            return
        halves = _halved(group)
        failed = yield _Ask(group, [*halves])
        if not any(failed):
            yield from self._across(*halves)
        for half, is_bad in zip(halves, failed, strict=True):
            if is_bad:
                self._go_on(self._narrow(half))

    def _across(self, one: Group, other: Group) -> _Part:
        """Find the pair of nodes of two groups that pass alone and fail together."""
        while len(one) > 1 or len(other) > 1:
            moving, fixed = (one, other) if len(one) >= len(other) else (other, one)
            for half in _halved(moving):
                (failed,) = yield _Ask((*moving, *fixed), [(*half, *fixed)])
                if failed:
                    one, other = half, fixed
                    break
            else:
                self._unclear.append((*moving, *fixed))
                self._forget(*moving, *fixed)
                return
        yield from self._pair(one[0], other[0])

    def _pair(self, first: str, second: str) -> _Part:
        """Find out whether one of two nodes that fail together fails with all others, or their link."""
        bad = []
        for now in (first, second) if self._others((first, second)) else ():
            failed = True
            tried: Group = (first, second)
            while failed and len(tried) < 2 + _HELPERS and (len(tried) == 2 or self._others(tried)):
                ask = _Ask((first, second), [], now, tried)
                (failed,) = yield ask
                tried = (*tried, ask.groups[0][1])
            if failed:
                bad.append(now)
        if bad:
            self._nodes += bad
            self._forget(*bad)
        else:
            # One end is set aside, so that the link is no longer in any group. It is not blamed.
            self._links.append((first, second))
            self._forget(second)

    def _others(self, nodes: Group) -> list[str]:
        return [node for node in self._alive if node not in nodes]

    def _helper(self, ask: _Ask, taken: set[str]) -> str:
        """Return a node to test a node of a pair with: if possible one that no part is about. Empty for none."""
        free = [node for node in self._others(ask.tried) if node not in taken]
        busy = {node for _, other in self._parts for node in other.nodes}
        return next((node for node in free if node not in busy), free[0] if free else "")

    def _forget(self, *nodes: str) -> None:
        """Leave these nodes out of all later tests."""
        self._news = True
        self._alive = [node for node in self._alive if node not in nodes]


def _halved(group: Group) -> tuple[Group, Group]:
    """Return the two halves of a group; of one node, the node and nothing."""
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]


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
