"""Cycles of references that hold tensors: seen when they are collected, and shown as a graph."""

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
    """Something that can hold itself."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is collected but on demand."""
    with on_demand():
        yield


@pytest.fixture
def observed(quiet: None) -> Iterator[tuple[Found, Callable[[], None]]]:
    """What was found of cycles so far, a list a collection, each object as its type and what it is called; and what
    ends the observing."""
    found: Found = []
    disarm = private.observe_garbage(
        lambda garbage: found.append([(type(each).__name__, id(each)) for each in garbage])
    )
    yield found, disarm
    assert quiet is None


def cycle(**held: Any) -> int:
    """Leave a cycle behind; the identity of what is in it."""
    holder = Holder(**held)
    holder.me = holder  # type: ignore[attr-defined]
    return id(holder)


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_cycles")
def test_observe_garbage_sees_a_cycle_when_it_is_collected(observed: tuple[Found, Callable[[], None]]) -> None:
    """Contract: the observer is called after the collection that finds a cycle, with all that is in it, the tensor
    that it holds included; nothing is in it that was freed at once."""
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
    """Contract: observing keeps nothing alive: when the observer has returned the cycle is gone, and the collector
    keeps no garbage and is in no debugging mode."""
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


def test_observe_garbage_sees_every_collection_until_it_is_disarmed(observed: tuple[Found, Callable[[], None]]) -> None:
    """Contract: cycles of later collections are seen too, also where only young objects are collected; once disarmed
    nothing is, and cycles are freed as ever."""
    found, disarm = observed
    for generation in (2, 2, 0, 1):
        found.clear()  # a later cycle may be where an earlier one was
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


def test_observe_garbage_goes_on_after_a_failing_observer(quiet: None) -> None:
    """Contract: an error in the observer is raised where the program was, and the next collection is observed."""
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


# What is shown of them


def edges(nodes: list[Any]) -> set[tuple[int, str, int]]:
    """Who refers to whom, by their numbers, and by what."""
    return {(number, label, to) for number, node in enumerate(nodes) for label, to in node.referrents}


def closure_over(x: torch.Tensor) -> Callable[[bool], Any]:
    """A function that needs itself and a tensor: a cycle, as they come about in practice."""

    def again(more: bool) -> Any:
        return again(False) if more else x

    return again


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_cycles")
def test_create_graph_of_a_cycle_has_what_leads_to_a_tensor() -> None:
    """Contract: of all objects the graph has those from which a tensor is reached, with what each refers to the next
    by; the tensor is marked. Bystanders are left out."""
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
    """Contract: an edge says by what: an index, a key, an attribute, a bound method's object."""
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
    """Contract: garbage with no tensor in it has no nodes."""
    holder = Holder()
    holder.me = holder  # type: ignore[attr-defined]

    assert private.cycle_graph([holder, vars(holder)], context=lambda _: None, filter=is_tensor) == []


def test_create_graph_of_a_cycle_passes_over_dead_proxies() -> None:
    """Contract: a weak proxy whose object is gone, which raises when it is looked at, is no part of the graph."""
    holder = Holder()
    proxy = weakref.proxy(holder)
    del holder
    tensor = torch.ones(2)

    assert len(private.cycle_graph([proxy, tensor, [tensor]], context=lambda _: None, filter=is_tensor)) == 2


def test_create_graph_of_a_cycle_keeps_where_a_tensor_comes_from() -> None:
    """Contract: what is known of an object's making is with its node, as it was given."""
    tensor = torch.ones(2)

    nodes = private.cycle_graph([tensor, [tensor]], context=lambda each: "made here" if is_tensor(each) else None,
                                filter=is_tensor)  # fmt: skip

    assert [(node.root, node.context) for node in nodes] == [(True, "made here"), (False, None)]


DOT_NODE = re.compile(r'^(\d+) \[label=("(?:[^"\\]|\\.)*"), color=(\w+)\];$')
DOT_EDGE = re.compile(r'^(\d+) -> (\d+) \[label = ("(?:[^"\\]|\\.)*")\]$')


@pytest.mark.parametrize("text", ["plain", 'a "quote" \\ and\nlines', "größe", "}; evil -> [x]"], ids=ascii)
def test_to_dot_tells_the_graph_of_a_cycle(text: str) -> None:
    """Contract: Graphviz is told of every node with its label, the tensor in another colour, and of every edge with
    its own, and of nothing else, whatever texts the objects hold. Labels are written as JSON writes texts."""
    tensor = torch.ones(2)
    held = {text: tensor}
    nodes = private.cycle_graph([held, tensor, text], context=lambda _: None, filter=is_tensor)

    first, *lines, last = private.cycle_dot(nodes).strip().splitlines()

    assert (first.split()[0], last) == ("digraph", "}")
    told_nodes = [found for line in lines if (found := DOT_NODE.match(line))]
    told_edges = [found for line in lines if (found := DOT_EDGE.match(line))]
    assert [(int(each[1]), json.loads(each[2]), each[3]) for each in told_nodes] == [
        (number, node.label, "red" if node.root else "black") for number, node in enumerate(nodes)
    ]
    assert [(int(each[1]), int(each[2]), json.loads(each[3])) for each in told_edges] == [
        (number, to, label) for number, node in enumerate(nodes) for label, to in node.referrents
    ]
    assert f"[{text!r}]" in {json.loads(each[3]) for each in told_edges}
    assert len(told_nodes) + len(told_edges) + 2 == len(lines)  # two lines say how all are drawn
