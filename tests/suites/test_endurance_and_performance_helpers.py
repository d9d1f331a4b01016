"""Helpers of the suites of endurance and performance: patterns, the watch, and the comparison with floors."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch

from harness.core.figures import Floors
from suites.endurance.patterns import INVERTED, PATTERNS, Memory, Pattern, word_line
from suites.endurance.rounds import rounds
from suites.performance import measuring
from suites.performance.measuring import Speed, seconds_per_call

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", [*PATTERNS, *INVERTED])
def test_words_of_a_pattern_depend_on_place_and_step_alone(name: str) -> None:
    pattern: Pattern = PATTERNS[name][0] if name in PATTERNS else INVERTED[name]
    whole, piece, later = (torch.empty(size, dtype=torch.int64) for size in (256, 128, 256))
    pattern(whole, 3, 0, 4096)
    pattern(piece, 3, 128, 4096 + 8 * 128)
    pattern(later, 4, 0, 4096)

    assert torch.equal(whole[128:], piece)
    assert not torch.equal(whole, later)
    assert len({*whole.tolist()}) >= (1 if name == "alternating" else 64)


@pytest.mark.parametrize("name", ["walking_ones", "walking_zeros"])
def test_each_word_has_each_bit_once_in_a_round(name: str) -> None:
    pattern, steps = PATTERNS[name]
    seen = torch.empty(steps, 64, dtype=torch.int64)
    for step in range(steps):
        pattern(seen[step], step, 0, 0)

    words = {(~word if name == "walking_zeros" else word) % (1 << 64) for word in seen[:, 7].tolist()}
    assert words == {1 << bit for bit in range(64)}


@pytest.mark.parametrize("words", [64, 128, 4096, 3 * 4096 + 640])
def test_every_word_is_in_one_slice(words: int) -> None:
    memory = Memory.take(CPU, words, 4096)
    memory.write(PATTERNS["random"][0], 0)
    seen = torch.cat([piece for piece, _ in memory.slices()])

    assert seen.numel() == words
    assert len({*seen.tolist()}) == words
    memory.check(PATTERNS["random"][0], 0, "all")


@pytest.mark.parametrize("down", [False, True])
def test_an_inversion_reports_the_word_that_it_read(down: bool) -> None:
    memory, pattern = Memory.take(CPU, 4096, 4096), INVERTED["random"]
    memory.write(pattern, 0)
    piece, start = memory.slices()[1]
    piece[5] ^= 1 << 40

    with pytest.raises(AssertionError, match="1 wrong words") as caught:
        memory.invert(pattern, 0, "x", down=down)
    was = int(piece[5]) ^ 1 << 40
    assert word_line(piece.data_ptr() + 40, 8 * (start + 5), was, int(piece[5])) in str(caught.value)


def test_rounds_are_at_least_one() -> None:
    assert [*rounds(0.0)] == [0]
    assert [*rounds(-1.0)] == [0]
    assert len([*rounds(0.01)]) > 1


def test_a_measurement_counts_every_call_of_its_repetitions() -> None:
    calls: list[int] = []
    times = seconds_per_call(lambda: calls.append(1), CPU, 1e-4)

    assert len(times) == measuring.REPETITIONS
    assert all(each > 0 for each in times)
    assert len(calls) > measuring.REPETITIONS


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, object]]:
    """Let a case measure these seconds per call, one list per measurement; the properties that it records."""

    def run(full: bool, *seconds: float, hardware: bool = True) -> dict[str, object]:
        left = [[each] * measuring.REPETITIONS for each in seconds]
        monkeypatch.setattr(measuring, "seconds_per_call", lambda *_: left.pop(0))
        monkeypatch.setattr(measuring, "REST", 0.0)
        written = {"d2d_bandwidth": ">=2TB/s", "launch_latency": "<=20us"} if hardware else {}
        recorded: dict[str, object] = {}
        speed = Speed(CPU, full, Floors(written, "mine"), recorded.__setitem__)
        speed("d2d_bandwidth", lambda: None, 1e12)
        assert left == []
        return recorded

    return run


def test_a_figure_above_its_floor_is_measured_once(measure: Callable[..., dict[str, object]]) -> None:
    assert measure(True, 0.4) == {
        "performance.d2d_bandwidth.floor": ">=2TB/s",
        "performance.d2d_bandwidth": "2.5 TB/s",
        "performance.d2d_bandwidth.quartiles": "2.5 TB/s to 2.5 TB/s in 7 repetitions",
    }


def test_a_time_is_that_of_one_of_the_parts_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "seconds_per_call", lambda *_: [1e-4] * measuring.REPETITIONS)
    recorded: dict[str, object] = {}
    Speed(CPU, True, Floors({"graph_replay": "<=1.25us"}, "mine"), recorded.__setitem__)(
        "graph_replay", lambda: None, parts=100
    )
    assert recorded["performance.graph_replay"] == "1 us"


def test_a_figure_below_its_floor_is_measured_again(measure: Callable[..., dict[str, object]]) -> None:
    found = measure(True, 0.8, 0.4)
    assert found["performance.d2d_bandwidth"] == "1.25 TB/s"
    assert found["performance.d2d_bandwidth.again"] == "2.5 TB/s"


def test_a_figure_that_is_below_its_floor_twice_is_red(measure: Callable[..., dict[str, object]]) -> None:
    with pytest.raises(pytest.fail.Exception) as caught:
        measure(True, 0.8, 1.0)
    floor = "and hardware mine has the floor >=2TB/s (clocks unknown)"
    expected = f"d2d_bandwidth is 1.25 TB/s, {floor}; measured again: d2d_bandwidth is 1 TB/s, {floor}"
    assert str(caught.value) == expected


def test_small_sizes_and_runs_without_floors_are_not_compared(measure: Callable[..., dict[str, object]]) -> None:
    assert [*measure(False, 8.0)] == [
        "performance.small.d2d_bandwidth",
        "performance.small.d2d_bandwidth.quartiles",
    ]
    assert measure(True, 8.0, hardware=False)["performance.d2d_bandwidth"] == "125 GB/s"


def test_the_quartiles_of_seven_figures_are_figures() -> None:
    assert statistics.quantiles([1.0, 2, 3, 4, 5, 6, 7], n=4) == [2, 4, 6]
