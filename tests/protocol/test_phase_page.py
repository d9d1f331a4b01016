"""The page of phases: a supervisor reads what an executor writes, only for the right case, and refuses damage."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from harness.protocol import phase_page
from harness.protocol.phase_page import MOST_PHASES, PassedPhase, PhasePage
from harness.protocol.wire import Message, ProtocolError, decode_message, encode_message

SETUP = PassedPhase(0, 0.25, 10.0, 10.25, 3, 4)
CALL = PassedPhase(1, 1e-7, 10.25, 10.5, 5, 6, 1 << 20)
TEARDOWN = PassedPhase(2, 0.5, 10.5, 11.0, 1 << 40, 7, 1 << 33, 1 << 41)


@contextmanager
def pages() -> Iterator[tuple[PhasePage, PhasePage, int]]:
    """Yield the executor's page, the supervisor's page, and the descriptor."""
    descriptor = PhasePage.create()
    ours, theirs = PhasePage(descriptor), PhasePage(descriptor)
    try:
        yield theirs, ours, descriptor
    finally:
        ours.close()
        theirs.close()
        os.close(descriptor)


def test_phases_are_read_as_they_were_written() -> None:
    with pages() as (executor, supervisor, _):
        executor.begin(1)
        for count, phase in enumerate((SETUP, CALL, TEARDOWN), start=1):
            assert executor.add(phase)
            assert supervisor.read(1) == [SETUP, CALL, TEARDOWN][:count]
        assert executor.written == [SETUP, CALL, TEARDOWN]


def test_phases_of_an_earlier_case_are_not_those_of_the_next() -> None:
    with pages() as (executor, supervisor, _):
        executor.begin(1)
        executor.add(SETUP)
        executor.begin(2)
        assert executor.written == []
        assert supervisor.read(2) == []
        executor.add(CALL)
        assert supervisor.read(2) == [CALL]
        assert supervisor.read(1) == []


def test_a_page_that_was_cleared_has_no_phases() -> None:
    with pages() as (executor, supervisor, _):
        executor.begin(1)
        executor.add(SETUP)
        assert not supervisor.is_clear
        supervisor.clear()
        assert supervisor.is_clear
        assert supervisor.read(1) == []


def test_an_executor_sees_that_it_must_begin_nothing() -> None:
    with pages() as (executor, supervisor, _):
        executor.begin(1)
        for _ in range(MOST_PHASES):
            executor.add(TEARDOWN)
        assert not executor.held
        supervisor.hold()
        assert executor.held
        assert supervisor.read(1) == [TEARDOWN] * MOST_PHASES
        supervisor.clear()
        assert not executor.held


def test_a_full_page_takes_no_more() -> None:
    with pages() as (executor, supervisor, _):
        executor.begin(300)
        assert [executor.add(CALL) for _ in range(MOST_PHASES + 1)] == [True] * MOST_PHASES + [False]
        assert supervisor.read(300) == [CALL] * MOST_PHASES


def test_what_a_killed_process_wrote_is_still_there() -> None:
    with pages() as (executor, supervisor, _):
        pid = os.fork()
        if pid == 0:
            executor.begin(7)
            executor.add(SETUP)
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert supervisor.read(7) == [SETUP]


@pytest.mark.parametrize(
    ("count", "entry"),
    [
        (MOST_PHASES + 1, (0, 0.0, 0.0, 0.0, 0, 0, 0, 0)),
        (1, (3, 0.0, 0.0, 0.0, 0, 0, 0, 0)),
        (1, (-1, 0.0, 0.0, 0.0, 0, 0, 0, 0)),
        (1, (0, float("nan"), 0.0, 0.0, 0, 0, 0, 0)),
        (1, (0, 0.0, float("inf"), 0.0, 0, 0, 0, 0)),
        (1, (0, 0.0, 0.0, 0.0, -1, 0, 0, 0)),
        (1, (0, 0.0, 0.0, 0.0, 0, -5, 0, 0)),
        (1, (0, 0.0, 0.0, 0.0, 0, 0, -1, 0)),
        (1, (0, 0.0, 0.0, 0.0, 0, 0, 0, -1)),
    ],
)
def test_a_damaged_page_is_refused(count: int, entry: Sequence[float]) -> None:
    with pages() as (_, supervisor, descriptor):
        os.pwrite(descriptor, struct.pack("Q", 1 << 8 | count) + struct.pack("qdddqqqq", *entry), 0)
        assert supervisor.read(2) == []
        with pytest.raises(ProtocolError, match="an executor"):
            supervisor.read(1)


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        [0, 0.0, 0.0, 0.0, 0, 0, 0],
        [0, 0.0, 0.0, 0.0, 0, 0, 0, "1"],
        ["setup", 0.0, 0.0, 0.0, 0, 0, 0, 0],
        {"when": 0},
    ],
)
def test_what_is_no_phase_is_refused(values: object) -> None:
    with pytest.raises(ProtocolError, match="expected a phase, three times and four sizes"):
        phase_page.parse_passed_phase(values)


def test_a_phase_travels_in_a_message() -> None:
    message = decode_message(encode_message({"op": "begun", "passed": [SETUP, TEARDOWN]})[:-1], "e1")
    assert [phase_page.parse_passed_phase(entry) for entry in message["passed"]] == [SETUP, TEARDOWN]


def fact(name: str, after: object) -> Message:
    return {"op": "report", "data": name, "after": after}


@pytest.mark.parametrize(
    ("phases", "facts", "order"),
    [
        ([], [], []),
        ([SETUP, CALL, TEARDOWN], [], ["setup", "call", "teardown"]),
        ([SETUP, TEARDOWN], [fact("a failed call", 1)], ["setup", "a failed call", "teardown"]),
        ([TEARDOWN], [fact("a failed setup", 0)], ["a failed setup", "teardown"]),
        ([SETUP], [fact("a", 1), fact("b", 1)], ["setup", "a", "b"]),
        ([SETUP, TEARDOWN], [fact("a", 0), fact("b", 2)], ["a", "setup", "teardown", "b"]),
        ([], [{"op": "report", "data": "a"}], ["a"]),
    ],
)
def test_the_order_of_reports(phases: list[PassedPhase], facts: list[Message], order: list[str]) -> None:
    assert [
        message.get("when") or message["data"] for message in phase_page.merge_phases_and_facts(phases, facts)
    ] == order


@pytest.mark.parametrize("afters", [[2], [-1], ["1"], [None], [1, 0], [0.5]])
def test_a_report_out_of_order_is_refused(afters: list[object]) -> None:
    with pytest.raises(ProtocolError, match="sent a report after"):
        phase_page.merge_phases_and_facts([SETUP], [fact("a", after) for after in afters])
