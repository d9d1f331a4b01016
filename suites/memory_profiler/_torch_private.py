"""The undocumented torch names that this suite uses, converted to plain values. No other module of the suite uses one.

A case that needs a name that the torch release lacks is skipped, with the name in the reason, because the cases test
the memory profiler's results and not where torch keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from suites.reaching import below, reach

from ..profiler._torch_private import event_roots, event_tag
from .values import Action, Category, Event, Finder, FoundGradient, Key, Match, Node, State

MODULE = "torch.profiler._memory_profiler"

_CATEGORIES = {
    "INPUT": Category.INPUT,
    "TEMPORARY": Category.TEMPORARY,
    "ACTIVATION": Category.ACTIVATION,
    "GRADIENT": Category.GRADIENT,
    "AUTOGRAD_DETAIL": Category.AUTOGRAD_DETAIL,
    "PARAMETER": Category.PARAMETER,
    "OPTIMIZER_STATE": Category.OPTIMIZER_STATE,
}
_ACTIONS = {
    "PREEXISTING": Action.PREEXISTING,
    "CREATE": Action.CREATE,
    "INCREMENT_VERSION": Action.INCREMENT_VERSION,
    "DESTROY": Action.DESTROY,
}


# The profile


def memory_profile(prof: torch.profiler.profile) -> Any:
    """Return the memory profile of a finished profile. Raise ValueError if the profile lacks the required options."""
    return below(prof, "_memory_profile")()


def is_memory_profile(value: object) -> bool:
    """Return whether this is an object of the type that `memory_profile` should return."""
    return isinstance(value, reach(f"{MODULE}.MemoryProfile"))


def events(prof: torch.profiler.profile) -> Iterator[Any]:
    """Yield every event of a finished profile, parents before children, siblings in order."""
    waiting = list(reversed(event_roots(prof)))
    while waiting:
        event = waiting.pop()
        yield event
        waiting.extend(reversed(below(event, "children")))


# Allocations


def key(value: Any) -> Key:
    """Return the allocation of a key. torch has different types for keys with and without a tensor."""
    device = str(below(value, "device"))
    if not isinstance(value, reach(f"{MODULE}.TensorKey")):
        return Key(None, None, device)
    storage = below(value, "storage")
    return Key(below(value, "id"), below(storage, "allocation_id"), device, below(storage, "ptr"))


# Extracted from the record


def found_gradients(prof: torch.profiler.profile) -> list[FoundGradient]:
    """Return each gradient found in each event of a profile, in order."""
    extract = reach(f"{MODULE}.extract_gradients")
    found = []
    for event in events(prof):
        for parameter, gradient in extract(event):
            by = Finder.PYTHON if event_tag(event) == "PyCall" else Finder.OPERATOR
            found.append(FoundGradient(by, None if parameter is None else key(parameter), key(gradient)))
    return found


def matches(prof: torch.profiler.profile) -> list[Match]:
    """Return the schema matches of each operator, autograd node and scope in a profile, in order."""
    matcher = reach(f"{MODULE}.SchemaMatcher")
    found = []
    for event in events(prof):
        if event_tag(event) == "TorchOp":
            fields = below(event, "extra_fields")
            schemas = below(matcher, "match_schemas")(fields)
            writes = below(matcher, "inputs_are_mutable")(fields)
            inputs = below(fields, "inputs")
            assert len(writes) == len(inputs), f"{event.name}: {len(inputs)} inputs, but write flags for {len(writes)}"
            written = None
            if schemas:
                names = [argument.name for argument in schemas[0].arguments]
                written = frozenset(name for name, is_written in zip(names, writes, strict=True) if is_written)
            else:
                assert set(writes) <= {None}, f"{event.name} has no schema, but the write flags {writes}"
            overloads = tuple(schema.overload_name for schema in schemas)
            found.append(Match(event.name, overloads, written, len(inputs)))
    return found


def schema_count(name: str) -> int | None:
    """Return the number of schemas with this name; None if it cannot be an operator's name."""
    found = below(reach(f"{MODULE}.SchemaMatcher"), "lookup_schemas")(name)
    return None if found is None else len(found)


# Derived from the record


def nodes(profile: Any) -> tuple[Node, ...]:
    """Return the data flow, in chronological order."""
    return tuple(_node(node) for node in below(profile, "_data_flow_graph.flow_nodes"))


def _node(node: Any) -> Node:
    edges = below(node, "_edges")
    reads = below(node, "inputs")
    return Node(
        name=below(node, "_event.name"),
        reads=tuple(State(key(k), version) for k, (_, version) in reads.items()),
        makes=tuple(State(key(k), version) for k, version in below(node, "outputs").items()),
        writes=frozenset(key(k) for k, (written, _) in reads.items() if written),
        frees=frozenset(key(k) for k, edge in edges.items() if below(edge, "is_deletion") and k in reads),
        temporary=tuple(key(k) for k in below(node, "intermediates")),
    )


def categories(profile: Any) -> dict[State, Category | None]:
    """Return the category of each version of each tensor."""
    known = {reach(f"{MODULE}.Category.{name}"): category for name, category in _CATEGORIES.items()}
    known[None] = None
    snapshot = below(profile, "_category_snapshot")()
    return {State(key(k), version): known[category] for (k, version), category in snapshot.items()}


def timeline(profile: Any) -> list[Event]:
    """Return the memory events, in chronological order."""
    known = {reach(f"{MODULE}.Action.{name}"): action for name, action in _ACTIONS.items()}
    return [
        Event(time, known[action], key(k), version, size)
        for time, action, (k, version), size in below(profile, "timeline")
    ]


# Numbering in exported files


def category_columns() -> list[Category | None]:
    """Return the categories in the order in which exported timelines number them."""
    order = reach(f"{MODULE}._CATEGORY_TO_INDEX")
    known = {reach(f"{MODULE}.Category.{name}"): category for name, category in _CATEGORIES.items()}
    known[None] = None
    return [known[category] for category, _ in sorted(order.items(), key=lambda item: item[1])]


def action_numbers() -> dict[int, Action]:
    """Return the actions by their numbers in exported timelines."""
    order = reach(f"{MODULE}._ACTION_TO_INDEX")
    return {order[reach(f"{MODULE}.Action.{name}")]: action for name, action in _ACTIONS.items()}


def plot(prof: torch.profiler.profile) -> str:
    """Return the HTML page of a profile's memory over time."""
    return str(reach("torch.cuda._memory_viz.profile_plot")(prof))
