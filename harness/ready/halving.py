"""Names the nodes and links that break a test of many nodes, by tests of fewer and fewer. Pure decisions.

A test of a group of nodes, such as an all-reduce, fails if a node of the group is bad, or a link between two of them.
`Search` says which groups to test next; they have no node in common, so they can be tested at the same time. The caller
runs them and gives back which failed, and so on until the search is over:

1. All nodes together. If they pass, nothing is wrong.
2. A group that fails is halved, and both halves are tested. A half that fails is halved again.
3. If both halves pass, something between them is wrong. One half is halved while the other stays, until one node of
   each half is left: the pair.
4. A pair fails by its link or by a node that fails with everybody. Each of the two is tested with other nodes, one
   after the other: who passes once is good, and who fails with all of up to three is bad. If both are good, the link
   is bad.
5. What was found is set aside, and all others are tested together once more, until they pass.

A fault that comes and goes may pass in both halves and in all parts across: the search then says `unclear`, with the
smallest group that has failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Group = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blame:
    """What the search has found: bad nodes, bad links, and groups that failed and could not be narrowed down."""

    nodes: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    unclear: tuple[Group, ...] = ()


@dataclass(slots=True)
class _Whole:
    """A group to be tested as it is. `failed`: it has failed before, as a part of the search."""

    group: Group


@dataclass(slots=True)
class _Halves:
    """A group that has failed. Its halves are tested."""

    group: Group


@dataclass(slots=True)
class _Across:
    """Two groups that pass alone and fail together. Parts of `moving` are tested with all of `fixed`."""

    moving: Group
    fixed: Group
    tried: int = 0


@dataclass(slots=True)
class _Pair:
    """Two nodes that fail together. Each is tested with others, one after the other.

    `now`: the one that is tested. `with_`: those with which it has failed. `helper`: the one of this round. `bad`: who
    has failed with all.
    """

    first: str
    second: str
    now: str
    with_: tuple[str, ...] = ()
    helper: str = ""
    bad: tuple[str, ...] = ()


#: A node that fails with so many others is bad.
_HELPERS = 3

_Task = _Whole | _Halves | _Across | _Pair


class Search:
    """A search over these nodes. Call `next_groups` and `record` in turn, until `next_groups` is empty."""

    def __init__(self, nodes: Sequence[str], most_rounds: int = 200) -> None:
        """`most_rounds`: after so many rounds the search gives up, and what is open is unclear."""
        if len({*nodes}) < len(nodes):
            raise ValueError("a node is named twice, expected each once")
        self._alive = list(nodes)
        self._tasks: list[_Task] = [_Whole(tuple(nodes))] if nodes else []
        self._asked: list[tuple[_Task, list[Group]]] = []
        self._nodes: list[str] = []
        self._links: list[tuple[str, str]] = []
        self._unclear: list[Group] = []
        self._suspects: set[str] = set()
        self.rounds = self.tests = 0
        self._most_rounds = most_rounds

    @property
    def blame(self) -> Blame:
        """What was found until now."""
        return Blame(tuple(self._nodes), tuple(self._links), tuple(self._unclear))

    def next_groups(self) -> list[Group]:
        """Return the groups to test now; empty at the end. No two of them have a node in common."""
        if self.rounds >= self._most_rounds and self._tasks:
            self._unclear += [_nodes_of(task) for task in self._tasks]
            self._tasks = []
        self._asked, taken = [], set[str]()
        for task in self._tasks:
            groups = self._groups(task, taken)
            nodes = {node for group in groups for node in group}
            if groups and not nodes & taken:
                self._asked.append((task, groups))
                taken |= nodes
        if self._tasks and not self._asked:  # pairs without anybody to test them with
            self._unclear += [_nodes_of(task) for task in self._tasks]
            self._tasks = []
        return [group for _, groups in self._asked for group in groups]

    def record(self, failed: Mapping[Group, bool]) -> None:
        """Record whether each of the groups of `next_groups` has failed."""
        self.rounds += 1
        for task, groups in self._asked:
            self.tests += len(groups)
            self._tasks.remove(task)
            self._tasks += self._decide(task, groups, [failed[group] for group in groups])
        self._asked = []
        if not self._tasks and self._suspects:
            # What was found is set aside: something else may be wrong among the others.
            self._suspects.clear()
            if len(self._alive) > 1:
                self._tasks = [_Whole(tuple(self._alive))]

    def _groups(self, task: _Task, taken: set[str]) -> list[Group]:
        match task:
            case _Whole(group):
                return [group]
            case _Halves(group):
                return list(_halved(group))
            case _Across(moving, fixed, tried):
                return [(*_halved(moving)[tried], *fixed)]
            case _Pair():
                task.helper = self._helper(task, taken)
                return [(task.now, task.helper)] if task.helper else []

    def _helper(self, pair: _Pair, taken: set[str]) -> str:
        """Return a node to test a node of the pair with: if possible one that no task is about. Empty for none."""
        free = [node for node in self._left(pair) if node not in taken]
        busy = {node for task in self._tasks for node in _nodes_of(task)}
        return next((node for node in free if node not in busy), free[0] if free else "")

    def _left(self, pair: _Pair) -> list[str]:
        """Return the nodes with which the node of a pair was not tested yet."""
        done = {pair.first, pair.second, *pair.with_}
        return [node for node in self._alive if node not in done]

    def _decide(self, task: _Task, groups: Sequence[Group], failed: Sequence[bool]) -> list[_Task]:
        match task:
            case _Whole(group):
                return self._narrow(group) if failed[0] else []
            case _Halves(group):
                bad = [half for half, is_bad in zip(groups, failed, strict=True) if is_bad]
                if bad:
                    return [next_task for half in bad for next_task in self._narrow(half)]
                return self._across(*_halved(group))
            case _Across(moving, fixed, tried):
                if failed[0]:
                    return self._across(_halved(moving)[tried], fixed)
                if tried == 0:
                    return [_Across(moving, fixed, 1)]
                return self._give_up((*moving, *fixed))
            case _Pair():
                return self._decide_pair(task, failed=failed[0])

    def _narrow(self, group: Group) -> list[_Task]:
        if len(group) > 1:
            return [_Halves(group)]
        self._set_aside(group[0])
        return []

    def _across(self, one: Group, other: Group) -> list[_Task]:
        if len(one) == 1 and len(other) == 1:
            pair = _Pair(one[0], other[0], one[0])
            return [pair] if self._left(pair) else self._link(pair)
        moving, fixed = (one, other) if len(one) >= len(other) else (other, one)
        return [_Across(moving, fixed)]

    def _decide_pair(self, pair: _Pair, *, failed: bool) -> list[_Task]:
        tried = _Pair(pair.first, pair.second, pair.now, (*pair.with_, pair.helper), bad=pair.bad)
        if failed and len(tried.with_) < _HELPERS and self._left(tried):
            return [tried]
        bad = (*pair.bad, pair.now) if failed else pair.bad
        if pair.now == pair.first:
            return [_Pair(pair.first, pair.second, pair.second, bad=bad)]
        if not bad:
            return self._link(pair)
        for node in bad:
            self._set_aside(node)
        return []

    def _link(self, pair: _Pair) -> list[_Task]:
        self._links.append((pair.first, pair.second))
        # One end is set aside, so that the link is no longer in any group. It is not blamed.
        self._forget(pair.second)
        return []

    def _set_aside(self, node: str) -> None:
        self._nodes.append(node)
        self._forget(node)

    def _forget(self, node: str) -> None:
        self._suspects.add(node)
        if node in self._alive:
            self._alive.remove(node)

    def _give_up(self, group: Group) -> list[_Task]:
        self._unclear.append(group)
        for node in group:
            self._forget(node)
        return []


def _halved(group: Group) -> tuple[Group, Group]:
    """Return the two halves of a group; of one node, the node and nothing."""
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]


def _nodes_of(task: _Task) -> Group:
    match task:
        case _Whole(group) | _Halves(group):
            return group
        case _Across(moving, fixed, _):
            return (*moving, *fixed)
        case _Pair(first, second):
            return first, second
