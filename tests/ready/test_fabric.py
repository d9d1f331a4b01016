"""Collectives of several nodes: the order of a node, its ranks, and the search for what breaks them, for real."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Collection, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.ready import fabric_search
from harness.ready.fabric import judge_ranks
from harness.ready.fabric_search import (
    PLACEHOLDER,
    PROGRAM,
    Blame,
    FabricNode,
    FabricSearchError,
    Group,
    Search,
    address_of,
    nodes_of,
    search_fabric,
    with_order,
)
from harness.ready.fleet import Fabric, compare, table
from harness.ready.quick_tests import Fabric as Part
from harness.ready.quick_tests import Line
from harness.tools.cluster.engine import Host, Local, Ssh
from tests.ready.test_fleet import answer, report
from tests.sim.simcuda.cuda_builds import needs_cuda_build

ORDER = Part(kind="cuda", first=8, world=16, gpus=8, address="n1", port=29511, limit=60)
WORD = "kind=cuda,first=8,world=16,gpus=8,address=n1,port=29511,limit=60"


def test_an_order_is_one_word_for_any_shell() -> None:
    assert ORDER.word == WORD
    assert Part.parse(WORD) == ORDER


@pytest.mark.parametrize(
    "word",
    [
        "",
        "x",
        WORD + ",more=1",
        WORD.replace("world=16,", ""),
        WORD.replace("16", "many"),
        WORD.replace("29511", "99999999"),
        WORD.replace("n1", "$(reboot)"),
    ],
)
def test_a_wrong_order_is_an_error(word: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        Part.parse(word)


@given(st.text(max_size=80))
def test_any_word_is_an_order_or_an_error(word: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        Part.parse(word)


def test_the_order_reaches_the_program_on_its_node() -> None:
    (ssh,) = Ssh(("n1",), "/p y/python", program=PROGRAM).hosts()
    (local,) = Local(1, program=PROGRAM).hosts()

    assert with_order(ssh.command, ORDER)[-1] == f"'/p y/python' -m harness.ready.fabric {WORD}"
    assert with_order(local.command, ORDER)[-1] == WORD


@pytest.mark.parametrize(
    ("node", "address"),
    [("n1", "n1"), ("me@n1", "n1"), ("n1:22", "n1"), ("[fd00::1]:22", "fd00::1"), ("fd00::1", "fd00::1")],
)
def test_the_address_of_a_node(node: str, address: str) -> None:
    assert address_of(node) == address


def test_only_nodes_with_gpus_are_searched_and_not_too_many() -> None:
    hosts = [Host(f"n{number}", ("x",)) for number in range(3000)]

    assert [node.name for node in nodes_of(hosts, {"n1": 8, "n2": 0}, local=False)] == ["n1"]
    with pytest.raises(FabricSearchError, match="tests at most 1024"):
        nodes_of(hosts, {host.name: 8 for host in hosts}, local=False)


def done(gpu: str, state: str = "ok", text: str = "") -> Line:
    return Line(what="done", phase="group", gpu=gpu, name="collectives", state=state, text=text)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([done("a"), done("b")], ""),
        ([done("a"), done("b", "wrong", "sum")], "GPU 1: sum"),
        ([done("a"), Line(what="place", gpu="b", text="all_reduce", phase="group")], "GPU 1: no end at all_reduce"),
        ([], "GPU 0, GPU 1: no end at its start"),
        ([Line(what="failed", text="no torch")], "no torch"),
    ],
    ids=["fine", "wrong", "hangs", "nothing", "no torch"],
)
def test_what_the_ranks_of_a_node_say(lines: Sequence[Line], said: str) -> None:
    assert judge_ranks(lines, {"a": "GPU 0", "b": "GPU 1"}) == said


def nodes(count: int, **commands: tuple[str, ...]) -> list[FabricNode]:
    """Return nodes that are this machine, with a rank on the CPU each."""
    usual = (sys.executable, *PROGRAM)
    return [FabricNode(f"n{number}", commands.get(f"n{number}", usual), "127.0.0.1", 1) for number in range(count)]


@pytest.mark.acceptance
def test_good_nodes_pass_a_collective_together() -> None:
    told: list[str] = []
    blame, words = search_fabric(nodes(3), "cpu", 60, tell=told.append)

    assert (blame, words) == (Blame(), {})
    assert told == ["round 1: testing groups of 3 nodes"]


@needs_cuda_build
@pytest.mark.acceptance
def test_simulated_gpus_of_two_nodes_pass_a_collective_of_nccl_together() -> None:
    """The nodes are this machine, with two of its four devices each."""
    made = [
        FabricNode(
            f"n{number}",
            ("env", "SIMCUDA_DEVICE_COUNT=4", f"CUDA_VISIBLE_DEVICES={devices}", sys.executable, *PROGRAM),
            "127.0.0.1",
            2,
        )
        for number, devices in enumerate(("0,1", "2,3"))
    ]

    assert search_fabric(made, "simcuda", 60) == (Blame(), {})


@pytest.mark.acceptance
@pytest.mark.nightly
def test_a_node_whose_program_ends_at_once_is_found() -> None:
    """The others wait for it, and end with an error of the group; alone and with each other they pass."""
    dead = (sys.executable, "-c", "import sys; sys.exit('no network')", PLACEHOLDER)
    blame, words = search_fabric(nodes(3, n1=dead), "cpu", 6, source=random.Random(0))

    assert blame == Blame(nodes=("n1",))
    assert words["n1"] == "no network"


def test_a_group_that_fails_once_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port of rank 0 may be taken by another program."""
    ports: list[str] = []

    def run(command: Sequence[str], limit: float, _: object) -> str:
        assert limit > 0
        ports.append(command[-1].partition("port=")[2].partition(",")[0])
        return "address in use" if len({*ports}) == 1 else ""

    monkeypatch.setattr(fabric_search, "_run", run)
    blame, _ = search_fabric(nodes(2), "cpu", 6)

    assert blame == Blame()
    assert len(ports) == 4


def test_each_rank_of_each_node_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Part] = []

    def run(command: Sequence[str], *_: object) -> str:
        seen.append(Part.parse(command[-1]))
        return ""

    monkeypatch.setattr(fabric_search, "_run", run)
    search_fabric(
        [FabricNode("a", (PLACEHOLDER,), "a", 8), FabricNode("b", (PLACEHOLDER,), "b", 4)],
        "cuda",
        6,
        source=random.Random(1),
    )

    assert sorted((order.first, order.gpus, order.world, order.address) for order in seen) == [
        (0, 8, 12, "a"),
        (8, 4, 12, "a"),
    ]
    assert len({order.port for order in seen}) == 1


def test_a_node_that_breaks_the_fabric_gets_no_work_and_the_ends_of_a_link_do() -> None:
    answers = [answer(f"n{number}", report()) for number in range(4)]
    blame = Blame(nodes=("n1",), links=(("n2", "n3"),))
    made = compare(answers)
    made = type(made)(made.answers, fabric=Fabric(("n0", "n1", "n2", "n3"), blame, {"n1": "timeout"}))

    assert made.nodes(ready=False) == ("n1",)
    assert [line for line, _ in table(made)][1:] == [
        "fabric: n1 breaks collectives: timeout; next step: look at its network",
        "fabric: the link between n2 and n3 breaks collectives: no words",
    ]


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
