"""The live table, drawn as text with a given number of columns."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from harness.core.outcome import Outcome
from harness.progress.progress import Progress, Snapshot
from harness.progress.progress_table import ProgressTable, time_span
from tests.progress.lines import T, activity, finish, start
from tests.reporting import build
from tests.reporting.build import Line

GPU = "GPU-12345678-aaaa-bbbb-cccc-1234567890ab"


def snapshot(*lines: Line, at: float = 100.0, stopped: dict[str, int] | None = None) -> Snapshot:
    progress = Progress()
    progress.enter(build.events(build.run(t=T), *lines))
    return progress.snapshot(T + at, stopped)


def collected(count: int, *workers: str) -> list[Line]:
    ids = [f"c{number}" for number in range(count)]
    return [build.collected(*ids, t=T, worker=worker, pid=number + 1) for number, worker in enumerate(workers)]


def drawn(shot: Snapshot, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, force_terminal=True)
    console.print(ProgressTable(shot, height))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().rstrip().split("\n")]


def test_a_run_that_collects() -> None:
    assert drawn(snapshot(at=12)) == ["", "collecting for 12 s; 12 s so far"]


def test_what_runs_where() -> None:
    shot = snapshot(
        *collected(40, "gw2", "gw10", "gw3"),
        *(start("c0", 10, "gw2"), finish("c0", Outcome.PASSED, 11, "gw2")),
        *(start("suites/a/test_b.py::c1", 10, "gw2"), finish("suites/a/test_b.py::c1", Outcome.CRASHED, 12, "gw2")),
        start("suites/a/test_b.py::c2", 99, "gw2", devices=[GPU], attempt=2),
        activity("confirming a leak of c3", 20, worker="gw10"),
        at=100,
    )
    assert drawn(shot) == [
        "",
        "worker  device                for  what",
        "gw2     GPU-123456…90ab       1 s  suites/a/test_b.py::c2 (attempt 2)",
        "gw10                     1:20 min  is confirming a leak of c3",
        "                                   1 worker has nothing to do: gw3",
        "last red: suites/a/test_b.py::c1 (crashed)",
        "━━",
        "2 of 40 cases done (1 passed, 1 red); 38 left; 1:40 min so far",
    ]


def test_a_narrow_window_keeps_the_end_of_a_case_and_all_numbers() -> None:
    shot = snapshot(*collected(40, "gw0"), start("suites/streams/test_order.py::test_waits", 10, "gw0"), at=20)
    assert drawn(shot, width=36) == [
        "",
        "worker   for  what",
        "gw0     10 s  …_order.py::test_waits",
        "",
        "0 of 40 cases done; 40 left; 20 s so",
        "far",
    ]


def test_a_low_window_shows_what_runs_longest() -> None:
    workers = [f"gw{number}" for number in range(64)]
    shot = snapshot(*collected(64, *workers), *(start(f"c{n}", 90 - n, w) for n, w in enumerate(workers)), at=100)
    lines = drawn(shot, height=10)
    assert [line.split()[0] for line in lines[2:6]] == ["gw60", "gw61", "gw62", "gw63"]
    assert lines[6].strip() == "60 more workers are busy"
    assert len(lines) <= 10
    assert len(drawn(shot, height=500)) == 1 + 1 + 32 + 1 + 2


def test_a_worker_that_a_signal_stopped() -> None:
    shot = snapshot(*collected(3, "gw0"), start("c0", 10, "gw0"), at=20, stopped={"gw0": 71})
    text = "gw0 is stopped (process 71, by SIGSTOP or a debugger): to continue it, type kill -CONT 71"
    assert " ".join(drawn(shot)[3:5]) == text


@given(
    st.text(st.characters(codec="utf-8"), min_size=1),  # a journal has surrogates as visible escapes
    st.text(st.characters(codec="utf-8"), min_size=1),
    st.integers(30, 200),
    st.integers(8, 50),
)
def test_whatever_the_names_no_line_is_too_long_and_none_has_an_order_to_the_terminal(
    case: str, device: str, width: int, height: int
) -> None:
    shot = snapshot(
        *collected(3, "gw0", "gw1"),
        start(case, 10, "gw0", devices=[device]),
        *(start(case, 10, "gw1"), finish(case, Outcome.FAILED, 11, "gw1")),
        at=20,
    )
    lines = drawn(shot, width, height)
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)
    assert len(lines) <= height


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (3599, "59:59 min"), (3600, "1:00:00 h"),
     (90061, "25:01:01 h")]
)  # fmt: skip
def test_spans(seconds: float, text: str) -> None:
    assert time_span(seconds) == text
