"""The memory profiler's results as plain values: allocations, actions, and categories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

MEMORY = "[memory]"  # the name of a node for an allocation or free outside of any operator


class Category(StrEnum):
    """The category of a tensor, None if unknown."""

    INPUT = "input"
    TEMPORARY = "temporary"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    AUTOGRAD_DETAIL = "autograd detail"
    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer state"


class Action(StrEnum):
    """The action of a timeline entry."""

    PREEXISTING = "preexisting"
    CREATE = "create"
    INCREMENT_VERSION = "increment version"
    DESTROY = "destroy"


class Finder(StrEnum):
    """The source from which a gradient was extracted."""

    OPERATOR = "operator"  # the operator with which autograd accumulates it
    PYTHON = "python"  # a module call or an optimizer step


@dataclass(frozen=True, slots=True)
class Key:
    """An allocation. `tensor` and `allocation` are None if the profiler recorded no tensor in it.

    Successive allocations of one tensor share `tensor`. Each has its own `allocation`, which increases over time, while
    an address is reused.
    """

    tensor: int | None
    allocation: int | None
    device: str
    address: int = field(default=0, compare=False)


class State(NamedTuple):
    """A version of a tensor: version 0 is the one at its creation, or at the start of the profile."""

    key: Key
    version: int


@dataclass(frozen=True, slots=True)
class Node:
    """One step of the data flow: an operator called by the program or by autograd, or an allocation or free.

    `temporary` are allocations that are created and freed within the step.
    """

    name: str
    reads: tuple[State, ...] = ()
    makes: tuple[State, ...] = ()
    writes: frozenset[Key] = frozenset()
    frees: frozenset[Key] = frozenset()
    temporary: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One timeline entry. `size` is in bytes and positive; `time_ns` is -1 for preexisting memory."""

    time_ns: int
    action: Action
    key: Key
    version: int
    size: int


@dataclass(frozen=True, slots=True)
class FoundGradient:
    """A gradient extracted from a run, and its parameter if the source knows it."""

    by: Finder
    parameter: Key | None
    gradient: Key


@dataclass(frozen=True, slots=True)
class Match:
    """A recorded operator and the schemas that match it.

    `writes` are the arguments that it may write to; None if no schema matches.
    """

    name: str
    overloads: tuple[str, ...]
    writes: frozenset[str] | None
    inputs: int


Sizes = dict[Category | None, int]


def sizes_over_time(events: Iterable[Event], categories: dict[State, Category | None]) -> list[tuple[int, Sizes]]:
    """Return the bytes of each category after each point in time with an event, in chronological order.

    A write moves a tensor's bytes from the category of the old version to that of the new one. Preexisting memory is
    included from the start, at time -1.
    """
    moments: list[tuple[int, Sizes]] = []
    now: Sizes = {}

    def add(key: Key, version: int, size: int) -> None:
        category = categories.get(State(key, version))
        now[category] = now.get(category, 0) + size

    for event in events:
        if event.action in (Action.PREEXISTING, Action.CREATE):
            add(event.key, event.version, event.size)
        elif event.action is Action.DESTROY:
            add(event.key, event.version, -event.size)
        else:
            add(event.key, event.version, -event.size)
            add(event.key, event.version + 1, event.size)
        moment = (event.time_ns, dict(now))
        if moments and moments[-1][0] == event.time_ns:
            moments[-1] = moment
        else:
            moments.append(moment)
    return moments


class Names:
    """Names for allocations: the given ones, and `t1`, `t2`, … for others in the order of their first use.

    The profiler's own numbers depend on earlier work, so a listing cannot use them.
    """

    def __init__(self, given: dict[Key, str]) -> None:
        self._names = dict(given)
        self._numbered = 0

    def __call__(self, key: Key) -> str:
        """Return the name of `key`, the same each time; memory without a tensor is `untold`."""
        if key.tensor is None:
            return "untold"
        if key not in self._names:
            self._numbered += 1
            self._names[key] = f"t{self._numbered}"
        return self._names[key]


def flow_listing(nodes: Sequence[Node], names: Names, categories: dict[State, Category | None] | None = None) -> str:
    """Return the data flow as text, one node per line: `operator(name.version, …) -> name.version, … using name, …`.

    Allocations and frees outside of operators are `take() -> …` and `free(…)`; memory that an operator frees without
    having created it is marked `freed`. With `categories`, each version is followed by its category. Nodes that touch
    no tensor are omitted.
    """
    lines = []
    for node in nodes:
        if not (node.reads or node.makes or node.temporary):
            continue
        name = node.name if node.name != MEMORY else "free" if node.frees else "take"
        line = f"{name}({', '.join(_reported(state, node, names, categories) for state in node.reads)})"
        if node.makes:
            line += f" -> {', '.join(_reported(state, node, names, categories) for state in node.makes)}"
        if node.temporary:
            line += f" using {', '.join(map(names, node.temporary))}"
        lines.append(line)
    return "\n".join(lines)


def _reported(state: State, node: Node, names: Names, categories: dict[State, Category | None] | None) -> str:
    text = f"{names(state.key)}.{state.version}"
    if categories is not None:
        text += f":{categories.get(state) or 'unknown'}"
    if state.key in node.frees and node.name != MEMORY:
        text += " freed"
    return text


def timeline_listing(events: Iterable[Event], names: Names, categories: dict[State, Category | None]) -> str:
    """Return the timeline as text, one entry per line without its time: `action name.version:category size B`."""
    lines = []
    for event in events:
        after = event.version + 1 if event.action is Action.INCREMENT_VERSION else event.version
        category = categories.get(State(event.key, after)) or "unknown"
        lines.append(f"{event.action} {names(event.key)}.{after}:{category} {event.size} B")
    return "\n".join(lines)
