"""The next cases of a worker: in a model of workers, each case runs once and the workers end together."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.scheduling import durations
from harness.scheduling.backlog import Backlog

SECONDS = st.lists(st.one_of(st.just(0.0), st.floats(0.0, 1000.0)), max_size=60)


def simulate(
    taken: Sequence[float],
    expected: Sequence[float],
    workers: int,
    *,
    dies: int = -1,
    widths: Sequence[int] = (),
    devices: int | None = None,
    apart: Collection[int] = (),
    queued: Callable[[int, int], None] = lambda _worker, _case: None,
) -> tuple[float, list[int]]:
    """Return the time when the last worker ends, and the cases in order of their start.

    A worker starts a case once it has the next one, or knows that there is none. `dies`: after this many finished cases
    a worker dies with all its cases, and another one replaces it. `queued` is called for each case that a worker
    starts.
    """
    backlog = Backlog(expected, workers, widths, devices, apart)
    queues: list[list[int]] = [backlog.first(place) for place in range(workers)]
    closed = [False] * workers
    begun: list[int] = []
    running: list[tuple[float, int]] = []
    busy = [False] * workers
    now, ends = 0.0, 0

    def fill(worker: int) -> None:
        if not closed[worker]:
            waits = backlog.waiting(queues[worker]) if worker % 2 else None  # known and unknown: both work
            queues[worker] += backlog.more(worker, queues[worker], workers, waits)
            closed[worker] = not backlog

    def begin(worker: int) -> None:
        queue = queues[worker]
        if not busy[worker] and queue and (len(queue) > 1 or closed[worker]):
            busy[worker] = True
            begun.append(queue[0])
            queued(worker, queue[0])
            heapq.heappush(running, (now + taken[queue[0]], worker))

    for worker in range(workers):
        fill(worker)
    for worker in range(workers):
        begin(worker)
    while running:
        now, worker = heapq.heappop(running)
        ends += 1
        lent = backlog.finish(queues[worker].pop(0))
        busy[worker] = False
        if ends == dies:
            backlog.put_back(queues[worker])
            queues[worker] = []
            closed[worker] = False
        for each in range(workers):
            if each == worker or ends == dies or lent:
                fill(each)
                begin(each)
    assert not backlog
    assert not any(queues)
    return now, begun


def bound(taken: Sequence[float], workers: int) -> float:
    return max([sum(taken) / workers, *taken])


@given(SECONDS, st.integers(1, 9), st.integers(-1, 40))
def test_each_case_runs_once(seconds: list[float], workers: int, dies: int) -> None:
    _, begun = simulate(seconds, seconds, workers, dies=dies)
    assert sorted(begun) == list(range(len(seconds)))


@given(SECONDS, st.randoms(use_true_random=False), st.integers(1, 9))
def test_wrong_expectations_cost_time_and_lose_no_case(seconds: list[float], draw: random.Random, workers: int) -> None:
    wrong = draw.sample(seconds, len(seconds))
    _, begun = simulate(seconds, wrong, workers)
    assert sorted(begun) == list(range(len(seconds)))


def like_suites(cases: int, seed: int) -> list[float]:
    """Return durations typical of suites: most cases take milliseconds, a few take as long as thousands of others."""
    draw = random.Random(seed)
    return [min(draw.lognormvariate(-3.0, 2.0), 60.0) for _ in range(cases)]


@pytest.mark.parametrize("workers", [2, 8, 64])
@pytest.mark.parametrize("seed", range(5))
def test_with_history_workers_end_together(workers: int, seed: int) -> None:
    """The end is within 5% of the optimum, even if each case takes up to a fifth more or less than expected."""
    taken = like_suites(6000, seed)
    draw = random.Random(seed)
    expected = [seconds * draw.uniform(0.8, 1.2) for seconds in taken]
    for known in (taken, expected):
        end, _ = simulate(taken, known, workers)
        assert end <= 1.05 * bound(taken, workers)


@pytest.mark.parametrize("workers", [2, 8, 64])
@pytest.mark.parametrize("seed", range(5))
def test_if_only_slow_files_are_known_workers_end_nearly_together(workers: int, seed: int) -> None:
    """The end is within 15% of the optimum, if cases of a file differ as much as those of different files."""
    taken = [min(each, 20.0) for each in like_suites(6000, seed)]
    files = [taken[first : first + 25] for first in range(0, len(taken), 25)]
    slow = durations.measured_slow_files(
        [{f"{file}::{n}": each for file, here in enumerate(files) for n, each in enumerate(here)}]
    )
    expected = [slow.files.get(str(file), slow.other) for file, here in enumerate(files) for _ in here]
    end, _ = simulate(taken, expected, workers)
    assert end <= 1.15 * bound(taken, workers)


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("seed", range(3))
def test_cases_in_processes_of_their_own_come_one_after_the_other(workers: int, seed: int) -> None:
    """A worker changes between the two kinds a few times per run, and the workers still end together."""
    taken, draw = like_suites(3000, seed), random.Random(seed)
    apart = frozenset(case for case in range(len(taken)) if draw.random() < 0.2)
    last: dict[int, bool] = {}
    changes: list[int] = []

    def count(worker: int, case: int) -> None:
        if last.setdefault(worker, case in apart) is not (case in apart):
            changes.append(case)
        last[worker] = case in apart

    end, begun = simulate(taken, taken, workers, apart=apart, queued=count)
    assert sorted(begun) == list(range(len(taken)))
    assert end <= 1.05 * bound(taken, workers)
    assert len(changes) <= 12 * workers


def test_a_long_case_that_is_apart_waits_behind_another_one_only_while_much_is_left() -> None:
    """Otherwise a short case runs between them, as between other long ones."""
    for short, second in ((400, 3), (40, 4)):
        backlog = Backlog([10.0] * 4 + [1.0] * short, 2, apart=range(4))
        assert backlog.first(0) == [0]
        assert backlog.more(0, [0], 2) == [second]


@given(SECONDS, st.sets(st.integers(0, 59)), st.integers(1, 9), st.integers(-1, 40))
def test_each_case_runs_once_if_some_are_apart(seconds: list[float], apart: set[int], workers: int, dies: int) -> None:
    _, begun = simulate(seconds, seconds, workers, dies=dies, apart={case for case in apart if case < len(seconds)})
    assert sorted(begun) == list(range(len(seconds)))


@pytest.mark.parametrize("workers", [2, 8, 64])
def test_without_history_the_order_is_kept(workers: int) -> None:
    """A worker gets adjacent cases, and fewer of them towards the end."""
    _, begun = simulate([1.0] * 640, [1.0] * 640, workers)
    assert begun[0] == 0
    backlog = Backlog([1.0] * 640, workers)
    first = backlog.first(0)
    more = backlog.more(0, first, workers)
    assert [*first, *more] == list(range(len(more) + 1))
    assert len(more) >= 160 / workers - 2


def test_the_longest_first_and_a_short_one_behind_it() -> None:
    seconds = [1.0, 50.0, 1.0, 100.0, 1.0]
    backlog = Backlog(seconds, 2)
    first, second = backlog.first(0), backlog.first(0)
    assert (first, second) == ([3], [1])
    assert backlog.more(0, first, 2) == [0]
    assert backlog.more(0, [3, 0], 2) == []
    assert backlog.more(1, second, 2) == [2]
    assert len(backlog) == 1


def test_short_cases_keep_their_order() -> None:
    seconds = [0.1] * 50 + [100.0] + [0.1] * 50
    _, begun = simulate(seconds, seconds, 1)
    assert begun == [50, *range(50), *range(51, 101)]


@given(
    SECONDS,
    st.lists(st.integers(0, 4), min_size=60, max_size=60),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(-1, 40),
)
def test_each_case_runs_once_if_some_take_several_devices(
    seconds: list[float], widths: list[int], workers: int, devices: int, dies: int
) -> None:
    _, begun = simulate(seconds, seconds, workers, dies=dies, widths=widths[: len(seconds)], devices=devices)
    assert sorted(begun) == list(range(len(seconds)))


@pytest.mark.parametrize("workers", [2, 8, 64])
@pytest.mark.parametrize("part", [0.001, 0.05, 0.5, 1.0])
def test_cases_for_two_devices_keep_the_devices_busy(workers: int, part: float) -> None:
    """The end is within a tenth of the optimum."""
    draw = random.Random(workers)
    seconds = [min(each, 5.0) for each in like_suites(6000, 3)]
    widths = [2 if draw.random() < part else 0 for _ in seconds]
    end, _ = simulate(seconds, seconds, workers, widths=widths)
    least = bound([each * max(width, 1) for each, width in zip(seconds, widths, strict=True)], workers)
    assert end <= 1.1 * least


def test_leaders_run_all_wide_cases_and_lenders_wait() -> None:
    """Of four workers, one leader and one lender are enough for the wide cases."""
    seconds, widths = [1.0, 1.0, 1.0, 30.0, 1.0, 1.0], [0, 2, 2, 0, 0, 2]
    backlog = Backlog(seconds, 4, widths)
    assert backlog.first(0) == [1]
    assert backlog.first(1) == []
    assert backlog.first(2) == [3]
    assert backlog.more(0, [1], 4) == [2]
    assert backlog.more(1, [], 4) == []
    assert backlog.finish(1)
    assert backlog.more(0, [2], 4) == [5]
    assert backlog.more(1, [], 4) == []
    assert backlog.finish(2)
    assert backlog.more(1, [], 4) == [0, 4]
    assert not backlog.finish(3)


def test_a_case_that_takes_a_shared_device_alone_has_leaders_too() -> None:
    """Two devices have two workers each: places 0 and 2, and 1 and 3."""
    backlog = Backlog([1.0] * 7, 4, [0, 1, 0, 1, 0, 1, 0], 2)
    assert backlog.first(0) == [1]
    assert backlog.first(1) == [3]
    assert [backlog.first(place) for place in (2, 3)] == [[], []]
    assert backlog.more(0, [1], 4) == [5]
    assert backlog.finish(1)
    assert [backlog.more(place, [], 4) for place in (2, 3)] == [[0, 2], [4, 6]]


@given(st.integers(2, 12), st.integers(1, 6), st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_nobody_else_is_given_a_case_on_the_devices_of_wide_ones(workers: int, devices: int, widths: list[int]) -> None:
    """This holds while a wide case waits. It takes its worker's device and the following ones."""
    devices = min(devices, workers)
    backlog = Backlog([1.0] * len(widths), workers, widths, devices)
    first = {place: backlog.first(place) for place in range(workers)}
    leaders = [place for place, got in first.items() if got and widths[got[0]]]
    if sum(width > 0 for width in widths) == len(leaders):
        return  # no wide case waits
    assert leaders
    for leader in leaders:
        taken = range(leader, leader + min(devices, max(widths)))
        others = [place for place in range(workers) if place % devices in taken and place != leader]
        assert [first[place] for place in others] == [[]] * len(others)
        assert [backlog.more(place, [], workers) for place in others] == [[]] * len(others)


def test_a_single_worker_has_nobody_to_borrow_from() -> None:
    backlog = Backlog([1.0, 2.0], 1, [2, 0])
    assert [*backlog.first(0), *backlog.more(0, [1], 1)] == [1, 0]
