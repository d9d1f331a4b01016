"""Reference cycles that hold tensors: reported when they are collected, and shown as a graph."""

from __future__ import annotations

import gc
import json
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from . import _torch_private as private
from .collecting import Watched, collect, on_demand

Found = list[list[Any]]


class Holder:
    """An object that can refer to itself."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Disable automatic collections."""
    with on_demand():
        yield


@pytest.fixture
def observed(quiet: None) -> Iterator[tuple[Found, Callable[[], None]]]:
    """Yield the garbage found so far, and a function that stops observing.

    The garbage is one list per collection, of pairs of type name and id.
    """
    found: Found = []
    disarm = private.observe_garbage(
        lambda garbage: found.append([(type(each).__name__, id(each)) for each in garbage])
    )
    yield found, disarm
    assert quiet is None


def cycle(**held: Any) -> int:
    """Leave a cycle behind and return the id of its object."""
    holder = Holder(**held)
    holder.me = holder  # type: ignore[attr-defined]
    return id(holder)


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_cycles")
def test_observe_garbage_sees_a_cycle_when_it_is_collected(observed: tuple[Found, Callable[[], None]]) -> None:
    """The observer is called after a collection that finds a cycle, with all objects in it, including its tensor.

    Objects freed by reference counting are not among them.
    """
    found, _ = observed
    tensor = torch.ones(3)
    expected = {cycle(tensor=tensor), id(tensor)}
    Holder(tensor=torch.ones(4))  # no cycle
    del tensor

    collect()

    seen = {identity for garbage in found for _, identity in garbage}
    assert expected <= seen
    kinds = Counter(kind for garbage in found for kind, _ in garbage)
    assert (kinds["Holder"], kinds["Tensor"]) == (1, 1)


def test_observe_garbage_frees_what_was_seen(observed: tuple[Found, Callable[[], None]]) -> None:
    """Observation keeps no objects alive: afterwards the cycle is freed, and the collector is not in debug mode."""
    found, _ = observed
    watched = Watched()
    assert not watched.is_held()
    cycle(tensor=watched.tensor())
    assert watched.is_held()

    collect()

    assert any(found)
    assert not watched.is_held()
    assert gc.garbage == []
    assert gc.get_debug() == 0


def test_observe_garbage_sees_every_collection_until_it_is_removed(observed: tuple[Found, Callable[[], None]]) -> None:
    """Later collections are observed too, also of young generations only.

    After the observer is removed, nothing is observed, and cycles are freed as usual.
    """
    found, disarm = observed
    for generation in (2, 2, 0, 1):
        found.clear()  # a later cycle may have the address of an earlier one
        name = cycle()
        collect(generation)
        assert name in {identity for garbage in found for _, identity in garbage}, f"generation {generation}"

    disarm()
    collect()
    before = len(found)
    watched = Watched()
    cycle(tensor=watched.tensor())
    assert watched.is_held()
    collect()

    assert len(found) == before
    assert not watched.is_held()


def test_observe_garbage_continues_after_a_failing_observer(quiet: None) -> None:
    """An exception in the observer propagates to the program, and the next collection is observed."""
    assert quiet is None
    calls: list[set[int]] = []

    def observer(garbage: list[Any]) -> None:
        calls.append({id(each) for each in garbage})
        if len(calls) == 1:
            raise LookupError("of the observer's own")

    private.observe_garbage(observer)
    cycle()
    with pytest.raises(LookupError, match="of the observer's own"):
        collect()
    gc.set_debug(0)
    gc.garbage.clear()
    name = cycle()
    collect()

    assert any(name in call for call in calls[1:])


# The graph


def edges(nodes: list[Any]) -> set[tuple[int, str, int]]:
    """Return the edges as (from, label, to), by node number."""
    return {(number, label, to) for number, node in enumerate(nodes) for label, to in node.referrents}


def closure_over(x: torch.Tensor) -> Callable[[bool], Any]:
    """Return a function that refers to itself and to a tensor, a typical cycle."""

    def again(more: bool) -> Any:
        return again(False) if more else x

    return again


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_cycles")
def test_create_graph_of_a_cycle_has_the_objects_that_lead_to_a_tensor() -> None:
    """The graph contains the objects that lead to a tensor, with labelled references, and marks the tensor.

    Other objects are omitted.
    """
    tensor = torch.ones(3)
    function = closure_over(tensor)
    assert function.__closure__ is not None
    bystander = ["a list"]

    objects = [tensor, function, function.__closure__, *function.__closure__, bystander]
    nodes = private.cycle_graph(objects, context=lambda _: None, filter=is_tensor)

    assert [node.root for node in nodes] == [True, *[False] * 4]
    assert not any("a list" in node.label for node in nodes)
    assert "again" in nodes[1].label
    assert function.__code__.co_freevars == ("again", "x")
    assert edges(nodes) == {
        (1, "__closure__", 2), (2, "[0]", 3), (2, "[1]", 4), (3, "cell_contents", 1), (4, "cell_contents", 0),
    }  # fmt: skip


def test_create_graph_of_a_cycle_names_references() -> None:
    """An edge names the reference: an index, a key, an attribute, or a bound method's object."""
    tensor = torch.ones(2)
    row = [0, tensor]
    table = {"key": row}
    holder = Holder(table=table)
    method = Holder.__init__.__get__(holder)

    nodes = private.cycle_graph(
        [tensor, row, table, holder, vars(holder), method], context=lambda _: None, filter=is_tensor
    )

    assert edges(nodes) >= {
        (1, "[1]", 0), (2, "['key']", 1), (3, "__dict__", 4), (4, "['table']", 2), (5, "__self__", 3),
    }  # fmt: skip


def test_create_graph_of_a_cycle_without_a_tensor_is_empty() -> None:
    """Garbage without a tensor has no nodes."""
    holder = Holder()
    holder.me = holder  # type: ignore[attr-defined]

    assert private.cycle_graph([holder, vars(holder)], context=lambda _: None, filter=is_tensor) == []


def test_create_graph_of_a_cycle_skips_dead_proxies() -> None:
    """A dead weak proxy, which raises on access, is not part of the graph."""
    holder = Holder()
    proxy = weakref.proxy(holder)
    del holder
    tensor = torch.ones(2)

    assert len(private.cycle_graph([proxy, tensor, [tensor]], context=lambda _: None, filter=is_tensor)) == 2


def test_create_graph_of_a_cycle_keeps_the_context_of_a_tensor() -> None:
    """A node has the context of its object as given."""
    tensor = torch.ones(2)

    nodes = private.cycle_graph([tensor, [tensor]], context=lambda each: "made here" if is_tensor(each) else None,
                                filter=is_tensor)  # fmt: skip

    assert [(node.root, node.context) for node in nodes] == [(True, "made here"), (False, None)]


DOT_NODE = re.compile(r'^(\d+) \[label=("(?:[^"\\]|\\.)*"), color=(\w+)\];$')
DOT_EDGE = re.compile(r'^(\d+) -> (\d+) \[label = ("(?:[^"\\]|\\.)*")\]$')


@pytest.mark.parametrize("text", ["plain", 'a "quote" \\ and\nlines', "größe", "}; evil -> [x]"], ids=ascii)
def test_to_dot_has_the_graph_of_a_cycle(text: str) -> None:
    """The Graphviz output has every node and edge with its label, the tensor in another color, and nothing else.

    Labels are JSON strings, so any text in the objects is safe.
    """
    tensor = torch.ones(2)
    held = {text: tensor}
    nodes = private.cycle_graph([held, tensor, text], context=lambda _: None, filter=is_tensor)

    first, *lines, last = private.cycle_dot(nodes).strip().splitlines()

    assert (first.split()[0], last) == ("digraph", "}")
    reported_nodes = [found for line in lines if (found := DOT_NODE.match(line))]
    reported_edges = [found for line in lines if (found := DOT_EDGE.match(line))]
    assert [(int(each[1]), json.loads(each[2]), each[3]) for each in reported_nodes] == [
        (number, node.label, "red" if node.root else "black") for number, node in enumerate(nodes)
    ]
    assert [(int(each[1]), int(each[2]), json.loads(each[3])) for each in reported_edges] == [
        (number, to, label) for number, node in enumerate(nodes) for label, to in node.referrents
    ]
    assert f"[{text!r}]" in {json.loads(each[3]) for each in reported_edges}
    assert len(reported_nodes) + len(reported_edges) + 2 == len(lines)  # two lines set the drawing style
