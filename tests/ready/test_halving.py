"""The search for bad nodes and links: simulated fleets of up to 4,096 nodes."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.ready.halving import Blame, Group, Search


class Fleet:
    """Nodes of which some are dead in their fabric, broken alone, or have a broken link to another."""

    def __init__(
        self,
        count: int,
        broken: Collection[int] = (),
        cut_off: Collection[int] = (),
        links: Collection[Group] = (),
    ) -> None:
        self.nodes = [f"n{number}" for number in range(count)]
        self.broken = {f"n{number}" for number in broken}
        self.cut_off = {f"n{number}" for number in cut_off}
        self.links = links

    def fails(self, group: Group) -> bool:
        nodes = {*group}
        return (
            bool(nodes & self.broken)
            or (len(nodes) > 1 and bool(nodes & self.cut_off))
            or any({*link} <= nodes for link in self.links)
        )


def searched(fleet: Fleet) -> Search:
    search = Search(fleet.nodes)
    while groups := search.next_groups():
        nodes = [node for group in groups for node in group]
        assert len(nodes) == len({*nodes}), "two tests at the same time share a node"
        search.record({group: fleet.fails(group) for group in groups})
    return search


def test_a_good_fleet_takes_one_test() -> None:
    search = searched(Fleet(4096))

    assert (search.blame, search.tests) == (Blame(), 1)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000, 4096])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.999])
def test_one_broken_node_is_found_in_a_logarithm_of_rounds(count: int, place: float) -> None:
    bad = int(place * count)
    search = searched(Fleet(count, broken={bad}))

    assert search.blame == Blame(nodes=(f"n{bad}",))
    assert search.rounds <= math.ceil(math.log2(count)) + 2


@pytest.mark.parametrize("count", [3, 4, 5, 64, 1000, 4096])
@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_one_node_that_fails_with_all_others_is_found(count: int, place: float) -> None:
    """Its own test passes, as that of a node whose network card is dead."""
    bad = int(place * count)
    search = searched(Fleet(count, cut_off={bad}))

    assert search.blame == Blame(nodes=(f"n{bad}",))
    assert search.rounds <= 4 * math.ceil(math.log2(count)) + 10


@pytest.mark.parametrize(("count", "link"), [(2, (0, 1)), (3, (0, 2)), (8, (3, 4)), (4096, (0, 4095)), (4096, (7, 8))])
def test_one_broken_link_is_found(count: int, link: tuple[int, int]) -> None:
    names = {f"n{number}" for number in link}
    search = searched(Fleet(count, links={tuple(sorted(names))}))

    assert [{*found} for found in search.blame.links] == [names]
    assert (search.blame.nodes, search.blame.unclear) == ((), ())
    assert search.rounds <= 4 * math.ceil(math.log2(count)) + 10


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=8))
def test_all_broken_nodes_are_found_and_no_other(count: int, bad: set[int]) -> None:
    bad = {number for number in bad if number < count}
    search = searched(Fleet(count, broken=bad))

    assert {*search.blame.nodes} == {f"n{number}" for number in bad}
    assert (search.blame.links, search.blame.unclear) == ((), ())


@given(st.integers(20, 200), st.sets(st.integers(0, 199), max_size=3), st.integers(0, 199), st.integers(1, 199))
def test_nodes_that_fail_with_all_others_are_found_beside_a_link(
    count: int, cut_off: set[int], one: int, step: int
) -> None:
    cut_off = {number for number in cut_off if number < count}
    ends = {one % count, (one + step) % count}
    links = {tuple(f"n{number}" for number in sorted(ends))} if len(ends) == 2 and not ends & cut_off else set()
    search = searched(Fleet(count, cut_off=cut_off, links=links))

    assert {*search.blame.nodes} == {f"n{number}" for number in cut_off}
    assert {frozenset(link) for link in search.blame.links} == {frozenset(link) for link in links}


@given(st.integers(1, 200), st.data())
def test_any_answers_end_the_search(count: int, data: st.DataObject) -> None:
    """A fault that comes and goes, or nodes that lie, end in a bounded number of rounds."""
    search = Search([f"n{number}" for number in range(count)], most_rounds=60)
    while groups := search.next_groups():
        nodes = [node for group in groups for node in group]
        assert len(nodes) == len({*nodes})
        search.record({group: data.draw(st.booleans()) for group in groups})

    assert search.rounds <= 60


def test_a_fault_that_does_not_come_again_is_unclear() -> None:
    search = Search(["a", "b", "c", "d"])
    for failed in (True, False, False, False):
        search.record(dict.fromkeys(search.next_groups(), failed))

    assert search.next_groups() == []
    assert search.blame == Blame(unclear=(("a", "b", "c", "d"),))
