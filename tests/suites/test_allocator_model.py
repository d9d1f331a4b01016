"""The model of an allocator finds each mistake that can be put into a toy one, and none in a toy that is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from suites.allocator.model import BrokenPromiseError, Model, Rules
from suites.allocator.programs import EDGES, STREAMS, Program, check, request, run_random

from .toy_allocator import MIB, Bug, Toy, maker

#: By what each is found.
FOUND_BY = {
    Bug.GIVEN_TWICE: "overlaps one that is live",
    Bug.OVERLAP: "inactive_split_bytes",
    Bug.ROUNDS_TO_256: "allocated_bytes",
    Bug.NOT_ROUNDED: "allocated_bytes",
    Bug.REQUESTED_ROUNDED: "requested_bytes",
    Bug.NO_MERGE_AFTER: "inactive_split",
    Bug.NO_MERGE_BEFORE: "inactive_split",
    Bug.MERGE_NOT_USED: "despite a free block",
    Bug.SPLIT_NOT_COUNTED: "inactive_split",
    Bug.SPLIT_LOST: "inactive_split",
    Bug.NO_SPLIT: "allocated_bytes",
    Bug.STREAM_IGNORED: "is in a segment of stream",
    Bug.POOLS_MIXED: "is in the large_pool|is in the small_pool",
    Bug.REUSED_TOO_EARLY: "while another stream was still using it",
    Bug.REUSED_TOO_EARLY_SILENTLY: "overlaps one that is held",
    Bug.NEVER_TAKEN_BACK: "not reclaimed by the next allocation|active",
    Bug.PEAK_NOT_KEPT: "peak is",
    Bug.PEAK_RESET_TO_ZERO: "peak is 0",
    Bug.PEAK_NOT_RESET: "peak is",
    Bug.DRIFT: "allocated_bytes",
    Bug.FREED_NOT_COUNTED: "freed is 0",
    Bug.ACCUMULATED_NOT_RESET: "allocated is",
    Bug.POOL_NOT_COUNTED: "large_pool: current is 0",
    Bug.SPLIT_OVERWRITES: "lost its contents",
    Bug.MERGE_OVERWRITES: "lost its contents",
    Bug.ZERO_SIZE: "a request of 0 bytes",
    Bug.RESERVED_TWICE: "reserved_bytes",
    Bug.CACHE_NOT_USED: "despite a free block",
    Bug.EMPTY_KEEPS: "segment",
    Bug.EMPTY_TAKES_TOO_MUCH: "segment",
    Bug.REFUSAL_COUNTED: "allocation",
    Bug.REFUSAL_KEEPS_CACHE: "segment",
    Bug.SEGMENT_SIZE: "reserved_bytes|allocated_bytes",
}


SIZES = st.sampled_from(EDGES) | st.integers(1, 8192) | st.integers(1, MIB) | st.integers(MIB, 6 * MIB)
WHICH = st.integers(0, 1000)


class Programs(RuleBasedStateMachine):
    """Programs that hypothesis makes up. `make` brings the toy."""

    make: Callable[[], Toy]

    def __init__(self) -> None:
        super().__init__()
        self.program = Program(type(self).make())

    @rule(size=SIZES | st.just(0), stream=st.integers(0, STREAMS - 1))
    def allocate(self, size: int, stream: int) -> None:
        request(self.program, size, stream)

    @rule(size=st.integers(1, 4096), stream=st.integers(0, STREAMS - 1), number=st.integers(2, 6))
    def allocate_several(self, size: int, stream: int, number: int) -> None:
        for _ in range(number):
            request(self.program, size, stream)

    @precondition(lambda self: self.program.live)
    @rule(which=WHICH)
    def free(self, which: int) -> None:
        self.program.free(which % len(self.program.live))

    @precondition(lambda self: self.program.live)
    @rule(which=WHICH)
    def free_and_ask_for_as_much(self, which: int) -> None:
        block = self.program.live[which % len(self.program.live)]
        self.program.free(which % len(self.program.live))
        self.program.allocate(block.size, block.stream)

    @precondition(lambda self: self.program.live and self.program.may_use)
    @rule(which=WHICH)
    def free_in_use_and_ask_for_as_much(self, which: int) -> None:
        block = self.program.live[which % len(self.program.live)]
        self.program.free_in_use(which % len(self.program.live))
        self.program.allocate(block.size, block.stream)

    @rule(name=st.sampled_from(["synchronize", "empty", "ask_too_much", "reset_peaks", "reset_accumulated"]))
    def other(self, name: str) -> None:
        getattr(self.program, name)()

    @rule()
    def check_contents(self) -> None:
        self.program.check_contents()

    def teardown(self) -> None:
        if not self.program.over:
            self.program.check_contents()
            self.program.end()


def explore(bug: Bug | None) -> None:
    """Let hypothesis look for a program that goes wrong. It is not made shorter: that it is found is what counts."""
    machine = type("ProgramsOf", (Programs,), {"make": staticmethod(maker(bug))})
    run_state_machine_as_test(
        machine,
        settings=settings(
            derandomize=True,
            max_examples=150,
            stateful_step_count=40,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.nightly
def test_a_toy_that_is_right_passes_what_hypothesis_makes_up() -> None:
    explore(None)


@pytest.mark.parametrize("bug", Bug, ids=lambda bug: bug.name.lower())
def test_hypothesis_finds_each_mistake(bug: Bug) -> None:
    with pytest.raises(BrokenPromiseError, match=FOUND_BY[bug]):
        explore(bug)


@pytest.mark.nightly
def test_a_toy_that_is_right_passes_random_programs() -> None:
    check(maker(None), number=0, programs=150, steps=40)
    run_random(Program(Toy()), number=0, steps=3000)


@pytest.mark.parametrize("number", [0, 1000])
@pytest.mark.parametrize("bug", Bug, ids=lambda bug: bug.name.lower())
def test_the_programs_of_the_cases_find_each_mistake(bug: Bug, number: int) -> None:
    """As many, and as long, as a case runs on a device."""
    with pytest.raises(BrokenPromiseError, match=FOUND_BY[bug]) as found:
        check(maker(bug), number=number, programs=25, steps=40)

    assert found.value.__notes__[0].startswith("The last steps: ")


def test_the_same_seed_makes_the_same_program() -> None:
    def steps(number: int) -> list[str]:
        program = Program(Toy())
        run_random(program, number, steps=50)
        return program.steps

    assert steps(1) == steps(1) != steps(2)


@pytest.mark.parametrize(
    ("size", "rounded", "pool", "segment"),
    [
        (1, 512, "small_pool", 2 * MIB),
        (512, 512, "small_pool", 2 * MIB),
        (513, 1024, "small_pool", 2 * MIB),
        (MIB, MIB, "small_pool", 2 * MIB),
        (MIB + 1, MIB + 512, "large_pool", 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, "large_pool", 20 * MIB),
        (10 * MIB, 10 * MIB, "large_pool", 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, "large_pool", 12 * MIB),
        (64 * MIB, 64 * MIB, "large_pool", 64 * MIB),
    ],
)
def test_sizes(size: int, rounded: int, pool: str, segment: int) -> None:
    rules = Rules()

    assert rules.rounded(size) == rounded
    assert rules.pool(rounded) == pool
    assert rules.segment(rounded) == segment


@pytest.mark.parametrize(
    ("size", "room", "taken"),
    [
        (512, 1024, 512),
        (512, 512, 512),
        (2 * MIB, 20 * MIB, 2 * MIB),
        (19 * MIB, 20 * MIB, 20 * MIB),  # what is left would be of the small pool
        (19 * MIB - 512, 20 * MIB, 19 * MIB - 512),
    ],
)
def test_what_a_block_takes_of_a_free_range(size: int, room: int, taken: int) -> None:
    assert Rules().taken(size, room) == taken


def test_what_was_never_given_cannot_be_given_back() -> None:
    with pytest.raises(ValueError, match="no block is in use"):
        Model().given_back(0x1000)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (0, "not aligned"),
        (0x100100, "not aligned"),
        (0x100400, "does not start the free block"),
        (0x300000 - 512, "does not start the free block"),
    ],
)
def test_places_that_cannot_be_right(address: int, text: str) -> None:
    """A segment of 2 MiB at 0x100000, of which the first 512 bytes are in use."""
    model = Model()
    model.given(100, 0, 0x100000)

    with pytest.raises(BrokenPromiseError, match=text):
        model.given(100, 0, address)


def test_a_new_segment_must_not_overlap_another() -> None:
    model = Model()
    model.given(100, 0, 0x400000)

    with pytest.raises(BrokenPromiseError, match="overlaps one at"):
        model.given(3 * MIB, 1, 0x300000)


def test_a_request_of_no_bytes_takes_no_block_back() -> None:
    """It is answered before the allocator looks at its streams; the next real request looks."""
    model = Model()
    model.given(100, 0, 0x100000)
    model.given_back(0x100000, used_elsewhere=True)
    model.all_done = True

    model.given(0, 0, 0)

    with pytest.raises(BrokenPromiseError, match="was not reclaimed by the next allocation"):
        model.given(100, 0, 0x100200)
