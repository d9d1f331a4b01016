"""Helpers of the suites of endurance and performance: patterns, the watch, and the comparison with floors."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch

from harness.core.figures import Floors
from suites.endurance.patterns import INVERTED, PATTERNS, Memory, Pattern, rows, word_line
from suites.endurance.rounds import rounds
from suites.performance import measuring, siblings
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
    """Let a case measure these seconds per call, one list per measurement; return the properties that it records."""

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


def test_rows_alternate_and_change_with_each_step() -> None:
    memory = Memory.take(CPU, 4096, 2048)
    memory.write(rows(128), 0)
    first = memory.blocks[1].clone()
    memory.write(rows(128), 1)

    lines = first.view(-1, 128)
    assert (lines[0::2] == 0x5555555555555555).all()
    assert (lines[1::2] == ~0x5555555555555555).all()
    assert torch.equal(memory.blocks[1], ~first)


@pytest.mark.parametrize("which", [0, 1])
def test_reads_of_rows_touch_no_word_of_the_others(which: int) -> None:
    memory = Memory.take(CPU, 4096, 2048)
    memory.write(rows(128), 0)
    seen = memory.blocks[0].view(-1, 2, 128)[:, which]

    class Once(torch.Tensor):
        """A tensor that corrupts itself at the first sum."""

        def sum(self) -> torch.Tensor:  # type: ignore[override]
            found = seen.sum()
            seen[0, 0] += 1
            return found

    memory.read_rows(128, which, 4)
    memory.check(rows(128), 0, "after reads")
    spoiled = Memory([memory.blocks[0].as_subclass(Once)], memory.scratch, memory.wrong)
    with pytest.raises(AssertionError, match="3 of 4 reads of the same rows of block 0 found other words"):
        spoiled.read_rows(128, which, 4)


_EVEN, _NOISY, _SLOW = [1.0] * 7, [1.0, 1.1, 0.9, 1.9, 1.0, 2.0, 1.1], [1.3] * 7


@pytest.mark.parametrize(
    ("times", "slow"),
    [
        ((_EVEN, _EVEN), None),
        ((_EVEN, _NOISY), None),
        ((_EVEN, _SLOW), 1),
        ((_SLOW, _EVEN), 0),
        ((_NOISY, _SLOW), None),
    ],
)
def test_a_device_is_slow_only_beyond_noise(times: tuple[list[float], list[float]], slow: int | None) -> None:
    assert siblings.slow_one(times) == slow


@pytest.mark.parametrize(
    ("measured", "red"),
    [
        ([(_EVEN, _EVEN)], False),
        ([(_EVEN, _SLOW), (_EVEN, _EVEN)], False),
        ([(_EVEN, _SLOW), (_SLOW, _EVEN)], False),
        ([(_EVEN, _SLOW), (_EVEN, _SLOW)], True),
    ],
)
@pytest.mark.parametrize("full", [False, True])
def test_a_device_that_is_slower_than_its_sibling_twice_is_red(
    monkeypatch: pytest.MonkeyPatch, measured: list[object], red: bool, full: bool
) -> None:
    left, recorded = list(measured), dict[str, object]()
    monkeypatch.setattr(siblings, "alternating", lambda *_: left.pop(0))
    monkeypatch.setattr(siblings, "REST", 0.0)
    devices = torch.device("cpu", 0), torch.device("cpu", 1)
    compare = siblings.Siblings(devices, full, Floors({}, ""), recorded.__setitem__)

    if red and full:
        with pytest.raises(pytest.fail.Exception, match=r"d2d_bandwidth of cpu:1 is 769 MB/s .* beside 1 GB/s"):
            compare("d2d_bandwidth", [list, list], 1e9)
    else:
        compare("d2d_bandwidth", [list, list], 1e9)
    assert not left
    assert recorded["siblings.d2d_bandwidth.0"] == "1 GB/s"


def test_siblings_take_turns() -> None:
    calls: list[int] = []
    times = siblings.alternating([lambda: calls.append(0), lambda: calls.append(1)], [CPU, CPU], 1e-5)

    assert [len(each) for each in times] == [measuring.REPETITIONS] * 2
    turns = [one for one, before in zip(calls, [None, *calls], strict=False) if one != before]
    assert turns == [0, 1] * (measuring.REPETITIONS + 1)
