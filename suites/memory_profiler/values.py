"""What the memory profiler says of a run, as plain values: pieces of memory, what was done to them, what they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

MEMORY = "[memory]"  # the name of a step that takes memory or gives it back outside any operator


class Category(StrEnum):
    """What a tensor is for. A tensor of which nothing can be said has none."""

    INPUT = "input"
    TEMPORARY = "temporary"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    AUTOGRAD_DETAIL = "autograd detail"
    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer state"


class Action(StrEnum):
    """What the timeline says happened to a piece of memory."""

    PREEXISTING = "preexisting"
    CREATE = "create"
    INCREMENT_VERSION = "increment version"
    DESTROY = "destroy"


class Finder(StrEnum):
    """How a gradient was found."""

    OPERATOR = "operator"  # by the operator with which autograd accumulates it
    PYTHON = "python"  # in a module that was called, or an optimiser that took a step


@dataclass(frozen=True, slots=True)
class Key:
    """A piece of memory. `tensor` and `allocation` are None where the profiler never saw a tensor in it.

    Pieces that held the same tensor one after the other share `tensor`; each has its own `allocation`, which grows
    with time. An address, in contrast, is used again.
    """

    tensor: int | None
    allocation: int | None
    device: str
    address: int = field(default=0, compare=False)


class State(NamedTuple):
    """A tensor between two writes: version 0 is what it was made with, or had when the profile began."""

    key: Key
    version: int


@dataclass(frozen=True, slots=True)
class Node:
    """One step of the data flow: an operator that the program, or autograd, called, or memory taken or given back.

    `temporary` lived and died within the step.
    """

    name: str
    reads: tuple[State, ...] = ()
    makes: tuple[State, ...] = ()
    writes: frozenset[Key] = frozenset()
    frees: frozenset[Key] = frozenset()
    temporary: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the timeline. `size` is in bytes and positive; `time_ns` is -1 for what was there before."""

    time_ns: int
    action: Action
    key: Key
    version: int
    size: int


@dataclass(frozen=True, slots=True)
class FoundGradient:
    """A gradient in the record of a run, and the parameter it belongs to where its finder knows."""

    by: Finder
    parameter: Key | None
    gradient: Key


@dataclass(frozen=True, slots=True)
class Match:
    """An operator in the record and the schemas that fit it.

    `writes` are the arguments that it may write to; None where no schema fits and so nothing is known.
    """

    name: str
    overloads: tuple[str, ...]
    writes: frozenset[str] | None
    inputs: int


Sizes = dict[Category | None, int]


def sizes_over_time(events: Iterable[Event], categories: dict[State, Category | None]) -> list[tuple[int, Sizes]]:
    """The bytes of each category after each moment at which something happened, in order of time.

    A write moves a tensor's bytes from the category of the version before to that of the next. What was there before
    is in from the first moment on, at time -1.
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
    """Names for pieces of memory: those given, and `t1`, `t2`, … for others in the order in which they are asked for.

    The profiler's own numbers differ with what ran before, so a listing cannot use them.
    """

    def __init__(self, given: dict[Key, str]) -> None:
        self._names = dict(given)
        self._numbered = 0

    def __call__(self, key: Key) -> str:
        """The name of `key`, the same each time; memory that held no tensor is `untold`."""
        if key.tensor is None:
            return "untold"
        if key not in self._names:
            self._numbered += 1
            self._names[key] = f"t{self._numbered}"
        return self._names[key]


def flow_listing(nodes: Sequence[Node], names: Names, categories: dict[State, Category | None] | None = None) -> str:
    """The data flow as text, a line a node: `operator(what.version, …) -> what.version, … using what, …`.

    Memory taken and given back outside operators reads `take() -> …` and `free(…)`; what an operator frees of what
    it did not make is marked `freed`. With `categories`, each is followed by its own. Nodes that touch no tensor are
    left out.
    """
    lines = []
    for node in nodes:
        if not (node.reads or node.makes or node.temporary):
            continue
        name = node.name if node.name != MEMORY else "free" if node.frees else "take"
        line = f"{name}({', '.join(_told(state, node, names, categories) for state in node.reads)})"
        if node.makes:
            line += f" -> {', '.join(_told(state, node, names, categories) for state in node.makes)}"
        if node.temporary:
            line += f" using {', '.join(map(names, node.temporary))}"
        lines.append(line)
    return "\n".join(lines)


def _told(state: State, node: Node, names: Names, categories: dict[State, Category | None] | None) -> str:
    text = f"{names(state.key)}.{state.version}"
    if categories is not None:
        text += f":{categories.get(state) or 'unknown'}"
    if state.key in node.frees and node.name != MEMORY:
        text += " freed"
    return text


def timeline_listing(events: Iterable[Event], names: Names, categories: dict[State, Category | None]) -> str:
    """The timeline as text, a line an entry without its time: `action what.version:category size B`."""
    lines = []
    for event in events:
        after = event.version + 1 if event.action is Action.INCREMENT_VERSION else event.version
        category = categories.get(State(event.key, after)) or "unknown"
        lines.append(f"{event.action} {names(event.key)}.{after}:{category} {event.size} B")
    return "\n".join(lines)
