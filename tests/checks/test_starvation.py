"""Why a case exceeded its limit: whether it got a processor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.checks.process import StarvationWatch, describe_starvation, read_waits


@pytest.mark.parametrize(
    ("first", "last", "span", "text"),
    [
        ({1: 0.5}, {1: 9.5}, 10.0, "the machine was too busy: of 10 s, it waited 9 s for a processor"),
        ({1: 0.5}, {1: 5.6}, 10.0, "the machine was too busy: of 10 s, it waited 5 s for a processor"),
        # It ran, or waited for something else.
        ({1: 0.5}, {1: 1.5}, 10.0, ""),
        # One thread of several; one that started later.
        (
            {1: 0.0, 2: 0.0},
            {1: 0.0, 2: 8.0},
            10.0,
            "of 10 s, it waited 8 s for a processor",
        ),
        ({1: 0.0}, {1: 0.0, 7: 8.0}, 10.0, "of 10 s, it waited 8 s for a processor"),
        # Two threads, each of which had a processor most of the time.
        ({1: 0.0, 2: 0.0}, {1: 4.0, 2: 4.0}, 10.0, ""),
        # No readings, or over too short a time.
        ({}, {}, 10.0, ""),
        ({1: 0.0}, {1: 1.9}, 1.9, ""),
    ],
)
def test_describe_starvation(first: dict[int, float], last: dict[int, float], span: float, text: str) -> None:
    found = describe_starvation(first, last, span)
    assert found.endswith(text)
    assert bool(found) == bool(text)


def test_read_waits_has_each_thread_and_child(tmp_path: Path) -> None:
    for path, ran, waited, children in (
        ("10/task/10", 1_500_000_000, 2_000_000_000, "20 30 "),
        ("10/task/11", 0, 500_000_000, ""),
        ("20/task/20", 1, 2, ""),
    ):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "schedstat").write_text(f"{ran} {waited} 7\n")
        (tmp_path / path / "children").write_text(children)
    (tmp_path / "20/task/21").mkdir()  # it has just ended
    assert read_waits(10, tmp_path) == {
        10: 2.0,
        11: 0.5,
        20: 2e-9,
    }
    assert read_waits(99, tmp_path) == {}


def test_read_waits_of_this_process() -> None:
    """The kernel's figures: a thread that shares its processor with another process has waited."""
    allowed = os.sched_getaffinity(0)
    own = threading.get_native_id()
    os.sched_setaffinity(own, {min(allowed)})
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before = read_waits(os.getpid())
        while read_waits(os.getpid())[own] < before[own] + 0.05:
            pass
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(own, allowed)


def test_the_watch_looks_once_a_second_of_a_case() -> None:
    looks: list[int] = []
    waited = 0.0

    def read(pid: int) -> dict[int, float]:
        nonlocal waited
        looks.append(pid)
        waited += 0.9
        return {pid: waited}

    watch = StarvationWatch(read)
    watch.look(5, 1000.0)
    assert looks == []
    watch.begin(1000.0)
    for tenth in range(60):
        watch.look(5, 1000.0 + tenth / 10)
    assert len(looks) == 5
    assert watch.text() == "the machine was too busy: of 4 s, it waited 4 s for a processor"
    watch.begin(2000.0)
    assert watch.text() == ""
