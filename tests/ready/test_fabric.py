"""Collectives of several nodes: the order of a node, its ranks, and the search for what breaks them, for real."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.ready import fabric_search
from harness.ready.fabric import judge_ranks
from harness.ready.fabric_search import (
    PLACEHOLDER,
    PROGRAM,
    FabricNode,
    FabricSearchError,
    address_of,
    nodes_of,
    search_fabric,
    with_order,
)
from harness.ready.fleet import Fabric, compare, table
from harness.ready.halving import Blame
from harness.ready.orders import Fabric as Part
from harness.ready.orders import Line
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
