"""The queue of a cluster run: tables of single decisions, and any events in any order."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.outcome import Outcome
from harness.tools.cluster import queue
from harness.tools.cluster.jobs import (
    Action,
    Drop,
    GiveJobs,
    Job,
    LostAttempt,
    NodeState,
    NotRun,
    ReopenedCase,
    Tell,
)
from harness.tools.cluster.link import End, Open, Quit
from harness.tools.cluster.queue import CaseQueue

KIND = "H200"


def made(nodes: Sequence[str] = ("a", "b"), cases: int = 4, looks: int = 0) -> CaseQueue:
    made = CaseQueue(nodes, silence=10, start_limit=60, now=0, second_looks=looks)
    made.load([1.0] * cases)
    return made


def ready(found: CaseQueue, name: str, gated: Sequence[int] = (), workers: int = 1, kind: str = KIND) -> list[Action]:
    kinds = {f"{name}-0": kind}
    return found.ready(name, 1, workers=workers, gated=dict.fromkeys(gated, "no"), kinds=kinds)


def jobs(actions: Sequence[Action], name: str) -> list[int]:
    return [job for each in actions if isinstance(each, GiveJobs) and each.node == name for job in each.jobs]


def finish(found: CaseQueue, name: str, case: int, outcome: Outcome = Outcome.PASSED) -> list[Action]:
    job = found.job_of(name, case)
    assert job is not None
    found.began(name, job)
    found.judged(job, outcome)
    return found.done(name, case, f"{name}-0")


def test_nothing_is_given_out_before_all_nodes_are_there() -> None:
    found = made()
    assert ready(found, "a") == []
    assert found.wants("a", 4) == []
    assert found.wants("b", 4) == []
    actions = ready(found, "b")
    assert (jobs(actions, "a"), jobs(actions, "b")) == ([0, 1], [2, 3])
    assert Tell("a", End()) in actions  # none is left, so workers begin their last cases
    assert Tell("b", End()) in actions


def test_a_node_that_does_not_come_is_waited_for_only_so_long() -> None:
    found = made()
    ready(found, "a")
    found.wants("a", 4)
    found.seen("b", 20)
    found.seen("a", 20)
    assert jobs(found.tick(1 + queue.SETTLE), "a") == [0, 1, 2, 3]


def both(found: CaseQueue, gated_a: Sequence[int] = (), gated_b: Sequence[int] = ()) -> list[Action]:
    actions = [*ready(found, "a", gated_a), *ready(found, "b", gated_b)]
    return [*actions, *found.wants("a", 2), *found.wants("b", 2)]


def test_a_case_goes_to_a_node_that_can_run_it() -> None:
    found = made(cases=3)
    actions = both(found, gated_a=[0], gated_b=[2])
    assert 0 in jobs(actions, "b")
    assert 2 in jobs(actions, "a")


def test_a_case_that_no_node_can_run_goes_to_any() -> None:
    found = made(cases=1)
    actions = both(found, gated_a=[0], gated_b=[0])
    assert [*jobs(actions, "a"), *jobs(actions, "b")] == [0]


def test_a_case_whose_only_nodes_are_lost_is_not_run_with_the_cause() -> None:
    found = made(cases=4)
    both(found, gated_a=[2, 3])
    actions = found.lost("b", "its host is down")
    assert {each.case for each in actions if isinstance(each, NotRun)} == {2, 3}
    assert "b: its host is down" in next(each.why for each in actions if isinstance(each, NotRun))


def test_a_lost_node_loses_only_what_ran() -> None:
    found = made()
    actions = both(found)
    first, second = jobs(actions, "b")
    found.began("b", first)
    actions = found.lost("b", "silent")
    assert [each for each in actions if isinstance(each, LostAttempt)] == [
        LostAttempt(first, "b", "node b was lost: silent", final=False)
    ]
    assert Drop("b", "silent") in actions
    for case in (0, 1):
        finish(found, "a", case)
    actions = found.session_over("a", "it ended", 3)
    assert Tell("a", Open(alone=True)) in actions
    ready(found, "a")
    actions = found.wants("a", 2)
    assert jobs(actions, "a") == [second, first]  # the one that is known to have begun is the last one
    assert Tell("a", End()) not in actions
    assert Tell("a", End()) in finish(found, "a", second)


def test_a_node_that_gave_a_case_back_does_not_get_it_again() -> None:
    found = made(cases=2)
    actions = both(found)
    (case,) = jobs(actions, "b")
    actions = finish(found, "b", case, Outcome.NOT_RUN)
    assert ReopenedCase(case) in actions
    found.session_over("a", "", 3)
    ready(found, "a")
    assert case in [*jobs(found.wants("a", 3), "a"), *found.nodes["a"].leased]


def test_a_red_case_is_tried_on_another_device_once() -> None:
    found = made(cases=2, looks=1)
    actions = both(found)
    (case,) = jobs(actions, "b")
    (other,) = jobs(actions, "a")
    finish(found, "b", case, Outcome.FAILED)
    finish(found, "a", other)
    actions = found.session_over("a", "", 3)
    assert Tell("a", Open()) in actions
    ready(found, "a")
    (look,) = jobs(found.wants("a", 1), "a")
    assert found.jobs[look] == Job(case, look=True, first="b-0", first_on="b", kind=KIND, shunned={"b"})
    assert found.left == 0
    found.judged(look, Outcome.PASSED)
    actions = found.done("a", case, "a-0")
    assert {each.node for each in actions if isinstance(each, Tell) and isinstance(each.message, Quit)} == {"a", "b"}


def test_a_second_look_opens_one_session() -> None:
    """The sessions of 16 nodes have ended when a case turns out to be red: one of the others collects again."""
    names = [f"n{number}" for number in range(16)]
    found = made(names, cases=16, looks=1)
    for name in names:
        ready(found, name)
    for name in names:
        found.wants(name, 2)
    (red,) = found.nodes["n3"].leased
    for name in (name for name in names if name != "n3"):
        (case,) = found.nodes[name].leased
        finish(found, name, case)
        assert found.session_over(name, "", 3) == []
    opened = [
        each.node
        for each in finish(found, "n3", red, Outcome.FAILED)
        if isinstance(each, Tell) and isinstance(each.message, Open)
    ]
    (other,) = opened
    for now in (4, 5):
        assert not [each for each in found.tick(now) if isinstance(each, Tell) and isinstance(each.message, Open)]
    ready(found, other)
    assert len(jobs(found.wants(other, 2), other)) == 1


def test_returned_cases_open_as_many_sessions_as_they_need() -> None:
    """Idle nodes have two workers each, and two cases come back."""
    found = made(tuple("abcdefg"), cases=11)
    for name in "abcdefg":
        ready(found, name, workers=2)
    for name in "abcdefg":
        found.wants(name, 2)
    held = [*found.nodes["a"].leased]
    for name in "bcdefg":
        for case in [*found.nodes[name].leased]:
            finish(found, name, case)
        found.session_over(name, "", 3)
    actions = [each for case in held for each in finish(found, "a", case, Outcome.NOT_RUN)]
    opened = [each for each in actions if isinstance(each, Tell) and isinstance(each.message, Open)]
    assert len(held) == 2
    assert opened == [Tell("b", Open())]


def test_sessions_that_only_fail_are_not_opened_for_ever() -> None:
    found = made(("a",), cases=1)
    for _ in range(queue.MOST_FAILURES):
        ready(found, "a")
        found.wants("a", 2)
        found.nodes["a"].state = NodeState.OPEN
        actions = found.session_over("a", "status 3", 2)
    assert [each.why for each in actions if isinstance(each, NotRun)] == [
        "no node is left that could run it (a: status 3)"
    ]
    assert Tell("a", Quit()) in actions


def test_a_node_that_is_stuck_is_lost() -> None:
    """It sends heartbeats, but no messages about its cases."""
    found = CaseQueue(("a",), silence=10, start_limit=60, now=0, stuck=100)
    found.load([1.0])
    ready(found, "a")
    found.wants("a", 2)
    for now in range(5, 200, 5):
        found.seen("a", now)
        actions = found.tick(now)
        if actions:
            break
    assert now == 105
    assert Drop("a", "it sent nothing about its cases for 104 s") in actions


NODES = ("a", "b", "c")
EVENTS = st.sampled_from(
    [
        "begin",
        "judge",
        "judge",
        "done",
        "done",
        "done",
        "over",
        "lost",
        "late",
        "refuse",
        "tick",
        "silent",
        "stop",
        "bye",
    ]
)


@settings(max_examples=400)
@given(
    st.integers(0, 12),
    st.lists(st.tuples(EVENTS, st.sampled_from(NODES), st.integers(0, 30)), max_size=80),
    st.dictionaries(st.sampled_from(NODES), st.sets(st.integers(0, 12))),
)
def test_every_case_ends_once(cases: int, events: list[tuple[str, str, int]], gates: dict[str, set[int]]) -> None:
    """Whatever happens, each case ends once, never runs on two nodes simultaneously, and never again after its end."""
    found = CaseQueue(NODES, silence=10, start_limit=60, now=0, second_looks=3)
    found.load([1.0] * cases)
    ends: dict[int, str] = {}
    now = 0.0

    def act(actions: Sequence[Action]) -> None:
        for each in actions:
            if isinstance(each, GiveJobs):
                for job in each.jobs:
                    if not found.jobs[job].look:
                        assert found.jobs[job].case not in ends, "a case that has ended was given out"
            elif isinstance(each, NotRun) or (isinstance(each, LostAttempt) and each.final):
                assert each.case not in ends, "a case has two ends"
                ends[each.case] = "not run"
        held = [case for node in found.nodes.values() for case in node.leased]
        assert len(held) == len({*held}) or found.nodes, held
        main = [job for node in found.nodes.values() for job in node.leased.values()]
        assert len(main) == len({*main}), "two nodes have the same job"
        for node in found.nodes.values():
            suspects = [bool(found.jobs[job].lost_on) for job in node.leased.values()]
            assert all(suspects) if node.alone else not any(suspects), "a suspect is not alone"
            assert not node.alone or len(suspects) <= 2
        for case in [case for case, entry in enumerate(found.jobs) if entry.over and not entry.look]:
            ends.setdefault(case, "verdict")

    def start() -> None:
        for name, node in found.nodes.items():
            if node.state is NodeState.STARTING:
                gated = dict.fromkeys(gates.get(name, ()), "no")
                workers = 1 if node.alone else 2
                act(found.ready(name, now, workers=workers, gated=gated, kinds={f"{name}-0": KIND}))
                act(found.wants(name, 2 * workers))

    def step(kind: str, name: str, number: int) -> None:
        node = found.nodes[name]
        held = list(node.leased)
        case = held[number % len(held)] if held else number
        job = found.job_of(name, case)
        gone = node.state is NodeState.GONE
        match kind:
            case "begin" | "judge" if job is not None and held:
                found.began(name, job)
                if kind == "judge":
                    found.judged(job, [Outcome.PASSED, Outcome.FAILED, Outcome.NOT_RUN, Outcome.LOST][number % 4])
            case "done":
                act(found.done(name, case, f"{name}-0"))
                act(found.wants(name, 1))
            case "late":
                assert not gone or found.job_of(name, number) is None
                act(found.done(name, number))
            case "over":
                act(found.session_over(name, "over", now))
            case "lost":
                act(found.lost(name, "lost"))
            case "refuse":
                act(found.refuse(name, "refused"))
            case "bye":
                act(found.ended(name))
            case "stop":
                act(found.stop("stopped"))

    for kind, name, number in events:
        now += 1
        for each in found.nodes:
            if not (kind == "silent" and each == name):
                found.seen(each, now)
        if kind == "silent":
            now += 9
        act(found.tick(now))
        start()
        step(kind, name, number)
    for _ in range(40 * (cases + 2)):  # from here on there are no more failures
        if found.is_over:
            break
        start()
        for name, node in found.nodes.items():
            found.seen(name, now)
            for case in list(node.leased):
                job = node.leased[case]
                found.began(name, job)
                found.judged(job, Outcome.PASSED)
                act(found.done(name, case, f"{name}-0"))
                act(found.wants(name, 1))
            if node.state is NodeState.CLOSING:
                act(found.session_over(name, "", now))
            if node.state is NodeState.QUITTING:
                act(found.ended(name))
        now += 1
        act(found.tick(now))
    if cases:
        assert found.is_over
        assert found.left == 0
        assert {*ends} == {*range(cases)}
