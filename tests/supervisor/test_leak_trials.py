"""Looking into a batch: the requests to processes, the limits, and the texts of the results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import pytest

from harness.checks.growth import COUNTED_ROUNDS, WARMUP_ROUNDS, Leak
from harness.protocol.wire import Message
from harness.supervisor.case import Case
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage
from harness.supervisor.lane import Lane
from harness.supervisor.leak_bisect import Culprits, alone, find_culprits
from harness.supervisor.leak_confirmation import SHARED_MEMORY_METERS, SearchTime, leak_lines
from harness.supervisor.leak_search import LeakTrials, describe
from harness.zygote.client import ZygoteError
from tests.supervisor.fakes import Clock, FakeJournal

LIMIT = 300.0
LEAK = {"heap_bytes": 100 << 10}
#: A process's answer to a round: growth by case, or its end.
Answer = Callable[[Sequence[str]], Sequence[Mapping[str, int]] | NoMessage]


class Handle:
    """Replaces an executor: a round takes the given seconds, or until its deadline."""

    def __init__(self, answer: Answer, clock: Clock, seconds: float) -> None:
        self.sent: list[Message] = []
        self.exit_status: int | None = None
        self._answer = answer
        self._clock = clock
        self._seconds = seconds

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def receive(self, deadline: float) -> Message | NoMessage:
        if self._clock.now + self._seconds > deadline:
            self._clock.now = deadline
            return NoMessage.DEADLINE
        self._clock.now += self._seconds
        grown = self._answer([entry["case"] for entry in self.sent[-1]["cases"]])
        if isinstance(grown, NoMessage):
            self.exit_status = -11
            return grown
        return {"op": "round", "cases": list(grown), "origins": {"heap_bytes": ["somewhere"]}}


class Bench:
    """Creates and disposes of handles, as a lane and its slot do."""

    def __init__(self, answer: Answer, *, seconds: float = 0.1) -> None:
        self.clock = Clock()
        self.handles: list[Handle] = []
        self.disposed: list[object] = []
        self.journal = FakeJournal()
        self.dropped = 0
        self._answer = answer
        self._seconds = seconds
        self._searches = contextlib.ExitStack()

    @property
    def slot(self) -> Bench:
        return self

    @property
    def activities(self) -> list[str]:
        return [line["what"] for line in self.journal.lines]

    def spawn(self, _: Case) -> ExecutorHandle:
        assert len(self.disposed) + self.dropped == len(self.handles), "another still lives"
        self.handles.append(Handle(self._answer, self.clock, self._seconds))
        return cast(ExecutorHandle, self.handles[-1])

    def dispose(self, handle: object, reason: str, *, hold: bool) -> None:
        assert (handle, reason, hold) == (self.handles[-1], "rehearsal", True)
        self.disposed.append(handle)

    def drop_zygote(self) -> None:
        self.dropped += 1

    def trials_of(self, count: int, seconds: float = 600.0, without: Collection[str] = ()) -> LeakTrials:
        """Return trials. `seconds` is the time for searches, which starts now."""
        search_time = SearchTime(seconds, clock=self.clock)
        self._searches.enter_context(search_time.spending())
        self._searches.enter_context(self.journal.doing("searching"))
        return LeakTrials(
            [_case(name) for name in names(count)],
            cast(Lane, self),
            self.journal,
            search_time,
            activity="searching",
            without=without,
            clock=self.clock,
        )


def names(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def _case(name: str) -> Case:
    return Case(item=cast(Any, None), id=name, seed=7, limit=LIMIT, devices=1, unmet=None)


def leaker(*leaky: str) -> Answer:
    return lambda cases: [LEAK if case in leaky else {} for case in cases]


def test_a_leak_is_found_in_fresh_processes_that_are_ended() -> None:
    bench = Bench(leaker("c2"))
    trials = bench.trials_of(4)
    (culprits,) = find_culprits(names(4), trials.trial)
    assert culprits.cases == ("c2",)
    assert (trials.trials, trials.tried, trials.failure) == (3, 4, "")
    assert bench.activities == ["searching", *(f"searching: trial {number}" for number in (1, 2, 3))]
    assert bench.disposed == bench.handles
    whole, alone, again = bench.handles
    assert [len(each.sent) for each in (whole, alone, again)] == [WARMUP_ROUNDS + COUNTED_ROUNDS] * 3
    assert whole.sent[0]["cases"] == [
        {"case": f"c{n}", "seed": 7, "limit": LIMIT, "next": f"c{n + 1}" if n < 3 else None, "levels": False}
        for n in range(4)
    ]
    assert [message["counts"] for message in alone.sent] == [False] * WARMUP_ROUNDS + [True] * COUNTED_ROUNDS
    assert not any(message["history"] for message in alone.sent)


def test_growth_that_others_may_have_caused_is_not_looked_at() -> None:
    others = lambda cases: [{"shm_files": 1, **(LEAK if case == "c1" else {})} for case in cases]  # noqa: E731
    (culprits,) = find_culprits(names(3), Bench(others).trials_of(3, without=SHARED_MEMORY_METERS).trial)
    assert culprits.cases == ("c1",)
    assert [leak.meter for leak in culprits.leaks] == ["heap_bytes"]
    found = find_culprits(names(3), Bench(others).trials_of(3).trial)
    assert {culprits.cases for culprits in found} == {("c0",), ("c1",), ("c2",)}


def test_a_batch_that_does_not_grow_takes_three_rounds_that_count() -> None:
    bench = Bench(leaker())
    assert find_culprits(names(5), bench.trials_of(5).trial) == []
    assert [len(handle.sent) for handle in bench.handles] == [WARMUP_ROUNDS + 3]


CULPRITS = Culprits(("c0", "c1"), "c1", (Leak("heap_bytes", 1, ""),), certain=True)


def test_where_growth_is_from_is_asked_in_a_process_of_its_own() -> None:
    bench = Bench(leaker("c1"))
    assert bench.trials_of(2).origins(CULPRITS) == {"heap_bytes": ["somewhere"]}
    (handle,) = bench.handles
    assert [message["history"] for message in handle.sent] == [["heap_bytes"]] * (WARMUP_ROUNDS + COUNTED_ROUNDS)
    assert [message["last"] for message in handle.sent] == [False] * (WARMUP_ROUNDS + COUNTED_ROUNDS - 1) + [True]
    assert bench.disposed == [handle]


def test_where_growth_is_from_is_not_asked_when_the_time_is_over() -> None:
    bench = Bench(leaker("c1"), seconds=30)
    trials = bench.trials_of(2, seconds=100)
    assert trials.origins(CULPRITS) == {"heap_bytes": ["somewhere"]}  # the origins known at that time
    assert bench.clock.now == 1100
    assert bench.disposed == bench.handles
    assert trials.origins(CULPRITS) == {}
    assert len(bench.handles) == 1


def test_a_process_that_dies_tells_nothing_and_that_is_said() -> None:
    bench = Bench(lambda _: NoMessage.EXITED)
    trials = bench.trials_of(3)
    assert find_culprits(names(3), trials.trial) == []
    assert (trials.failure, trials.tried) == ("a process that ran 3 of the cases again: SIGSEGV", 0)
    assert bench.disposed == bench.handles
    assert alone(["c1"], trials.trial, lambda _: False) == []
    assert trials.failure == "a process that ran c1 again: SIGSEGV"


def test_a_lost_zygote_takes_the_process_along() -> None:
    def lose(_: Sequence[str]) -> NoMessage:
        raise ZygoteError("gone\nand more")

    bench = Bench(lose)
    trials = bench.trials_of(3)
    assert find_culprits(names(3), trials.trial) == []
    assert trials.failure == "a process that ran 3 of the cases again: gone"
    assert (bench.dropped, bench.disposed) == (1, [])


def test_rounds_that_cannot_be_over_in_time_are_given_up_after_the_first() -> None:
    bench = Bench(leaker("c2"), seconds=30)
    trials = bench.trials_of(4, seconds=100)
    assert find_culprits(names(4), trials.trial) == []
    assert trials.failure == (
        "one of 12 rounds of 4 cases takes 30.0 s, and 70 s are left for leak searches; "
        "--leak-search=SECONDS gives more"
    )
    assert [len(handle.sent) for handle in bench.handles] == [1]
    assert bench.disposed == bench.handles


def test_a_round_that_does_not_end_is_given_up() -> None:
    bench = Bench(leaker("c2"), seconds=1e9)
    trials = bench.trials_of(4, seconds=100)
    assert find_culprits(names(4), trials.trial) == []
    assert trials.failure == "the 100 s for leak searches are used up; --leak-search=SECONDS gives more"
    assert trials.seconds == pytest.approx(100)


def test_nothing_is_tried_when_the_time_is_over() -> None:
    bench = Bench(leaker("c2"))
    trials = bench.trials_of(4, seconds=0)
    assert find_culprits(names(4), trials.trial) == []
    assert (trials.failure, bench.handles) == ("--leak-search=off", [])


def test_the_results_so_far_are_returned_when_the_time_is_over() -> None:
    """The whole batch takes 120 s; no time is left to find which of the other cases are needed."""
    bench = Bench(lambda cases: [LEAK if case == "c3" and "c1" in cases else {} for case in cases], seconds=10)
    trials = bench.trials_of(8, seconds=245)
    (culprits,) = find_culprits(names(8), trials.trial)
    assert (culprits.grows, culprits.certain) == ("c3", False)
    assert trials.failure.startswith("one of 12 rounds of ")


ONE = Leak("heap_bytes", 1, "memory: 1.0 KiB more")


@pytest.mark.parametrize(
    ("culprits", "text"),
    [
        (Culprits(("a",), "a", (ONE,), certain=True), "a leaks: memory: 1.0 KiB more"),
        (Culprits(("a",), "", (ONE,), certain=True), "a leaks: memory: 1.0 KiB more"),
        (
            Culprits(("a", "b"), "b", (ONE,), certain=True),
            "b leaks only in one process with a: memory: 1.0 KiB more",
        ),
        (
            Culprits(("a", "b", "c"), "b", (ONE,), certain=True),
            "b leaks only in one process with a and c: memory: 1.0 KiB more",
        ),
        (
            Culprits(("a", "b", "c"), "c", (ONE,), certain=False),
            "c may leak in one process with one or more of 2 other cases; the first is a: memory: 1.0 KiB more",
        ),
        (
            Culprits(("a", "b", "c"), "", (ONE,), certain=True),
            "these 3 cases leak together, each of them a part; the first is a: memory: 1.0 KiB more",
        ),
        (
            Culprits(("a", "b", "c"), "", (ONE,), certain=False),
            "one or more of 3 cases may leak; the first is a: memory: 1.0 KiB more",
        ),
        (
            Culprits(("a", "b", "c", "d", "e", "f"), "f", (ONE,), certain=True),
            "f leaks only in one process with 5 other cases; the first is a: memory: 1.0 KiB more",
        ),
        (Culprits(("a",), "", (ONE,), certain=False), "a may leak: memory: 1.0 KiB more"),
        (
            Culprits(("a", "b"), "b", (ONE,), certain=False),
            "b may leak in one process with a: memory: 1.0 KiB more",
        ),
    ],
)
def test_what_was_found_in_one_line(culprits: Culprits, text: str) -> None:
    assert describe(culprits) == text


def test_further_leaks_and_origins_have_lines_of_their_own() -> None:
    culprits = Culprits(("a",), "a", (ONE, Leak("threads", 1, "threads: 1 more")), certain=True)
    assert leak_lines(culprits.leaks, {"heap_bytes": ["x.py:1"], "threads": ["y.py:2"]}) == [
        "heap_bytes: x.py:1",
        "also leaked: threads: 1 more",
        "threads: y.py:2",
    ]
