"""The memory profiler suite's pure helpers: sums over a timeline, listings, and the effect of a missing name."""

from __future__ import annotations

import pytest

from suites.memory_profiler.values import (
    MEMORY,
    Action,
    Category,
    Event,
    Key,
    Names,
    Node,
    Sizes,
    State,
    flow_listing,
    sizes_over_time,
    timeline_listing,
)

A, B, C = (Key(number, number, "cpu") for number in (1, 2, 3))
UNTOLD = Key(None, None, "cpu")

CATEGORIES: dict[State, Category | None] = {
    State(A, 0): Category.INPUT,
    State(A, 1): Category.ACTIVATION,
    State(B, 0): Category.GRADIENT,
    State(C, 0): None,
}


@pytest.mark.parametrize(
    ("events", "moments"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param(
            [Event(-1, Action.PREEXISTING, A, 0, 8), Event(-1, Action.PREEXISTING, B, 0, 4)],
            [(-1, {Category.INPUT: 8, Category.GRADIENT: 4})],
            id="one_moment_before",
        ),
        pytest.param(
            [Event(5, Action.CREATE, B, 0, 4), Event(7, Action.DESTROY, B, 0, 4)],
            [(5, {Category.GRADIENT: 4}), (7, {Category.GRADIENT: 0})],
            id="comes_and_goes",
        ),
        pytest.param(
            [Event(-1, Action.PREEXISTING, A, 0, 8), Event(3, Action.INCREMENT_VERSION, A, 0, 8)],
            [(-1, {Category.INPUT: 8}), (3, {Category.INPUT: 0, Category.ACTIVATION: 8})],
            id="a_write_moves_the_bytes",
        ),
        pytest.param(
            [Event(1, Action.CREATE, UNTOLD, 0, 2), Event(1, Action.CREATE, C, 0, 3)],
            [(1, {None: 5})],
            id="unknown",
        ),
    ],
)
def test_sizes_over_time(events: list[Event], moments: list[tuple[int, Sizes]]) -> None:
    assert sizes_over_time(events, CATEGORIES) == moments


def test_moments_are_not_changed_by_later_ones() -> None:
    events = [Event(1, Action.CREATE, A, 0, 8), Event(2, Action.CREATE, B, 0, 4)]

    assert sizes_over_time(events, CATEGORIES)[0] == (1, {Category.INPUT: 8})


@pytest.mark.parametrize(
    ("node", "line"),
    [
        (Node("aten::f"), ""),
        (Node("aten::f", reads=(State(A, 0), State(B, 0))), "aten::f(x.0, t1.0)"),
        (Node("aten::f", reads=(State(A, 0),), makes=(State(A, 1), State(B, 0))), "aten::f(x.0) -> x.1, t1.0"),
        (Node("aten::f", temporary=(B, C)), "aten::f() using t1, t2"),
        (Node("aten::f", reads=(State(A, 2),), frees=frozenset({A})), "aten::f(x.2 freed)"),
        (Node(MEMORY, makes=(State(B, 0),)), "take() -> t1.0"),
        (Node(MEMORY, reads=(State(A, 2),), frees=frozenset({A})), "free(x.2)"),
        (Node(MEMORY), ""),
    ],
)
def test_flow_listing(node: Node, line: str) -> None:
    assert flow_listing([node], Names({A: "x"})) == line


def test_flow_listing_with_categories() -> None:
    node = Node("aten::f", reads=(State(A, 0), State(C, 0)), makes=(State(B, 0),))

    assert flow_listing([node], Names({A: "x"}), CATEGORIES) == "aten::f(x.0:input, t1.0:unknown) -> t2.0:gradient"


def test_names_are_numbered_as_they_come_up_and_kept() -> None:
    names = Names({B: "b"})

    assert [names(key) for key in (C, B, A, C, UNTOLD)] == ["t1", "b", "t2", "t1", "untold"]


def test_timeline_listing_tells_what_a_write_leads_to() -> None:
    events = [
        Event(-1, Action.PREEXISTING, A, 0, 8),
        Event(3, Action.INCREMENT_VERSION, A, 0, 8),
        Event(4, Action.DESTROY, UNTOLD, 0, 16),
    ]

    assert timeline_listing(events, Names({A: "x"}), CATEGORIES).splitlines() == [
        "preexisting x.0:input 8 B",
        "increment version x.1:activation 8 B",
        "destroy untold.0:unknown 16 B",
    ]
