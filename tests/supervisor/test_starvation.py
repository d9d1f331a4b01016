"""Why a case exceeded its limit: whether it had a processor."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from harness.supervisor.starvation import (
    ProcessorTime,
    StarvationWatch,
    describe_starvation,
    read_processor_times,
)


@pytest.mark.parametrize(
    ("first", "last", "span", "text"),
    [
        ({1: (1.0, 0.5)}, {1: (2.0, 9.5)}, 10.0, "the machine was too busy: of 10 s, it waited 9 s for a processor"),
        ({1: (1.0, 0.5)}, {1: (2.0, 5.6)}, 10.0, "the machine was too busy: of 10 s, it waited 5 s for a processor"),
        # It ran, or waited for something else.
        ({1: (1.0, 0.5)}, {1: (10.0, 1.5)}, 10.0, ""),
        ({1: (1.0, 0.5)}, {1: (1.0, 0.5)}, 10.0, ""),
        # One thread of several; one that began later.
        (
            {1: (0.0, 0.0), 2: (0.0, 0.0)},
            {1: (0.0, 0.0), 2: (1.0, 8.0)},
            10.0,
            "of 10 s, it waited 8 s for a processor",
        ),
        ({1: (0.0, 0.0)}, {1: (0.0, 0.0), 7: (1.0, 8.0)}, 10.0, "of 10 s, it waited 8 s for a processor"),
        # Two threads, each of which had a processor for most of the time.
        ({1: (0.0, 0.0), 2: (0.0, 0.0)}, {1: (6.0, 4.0), 2: (6.0, 4.0)}, 10.0, ""),
        # Nothing was read, or for too short a time.
        ({}, {}, 10.0, ""),
        ({1: (0.0, 0.0)}, {1: (0.0, 1.9)}, 1.9, ""),
    ],
)
def test_describe_starvation(
    first: dict[int, tuple[float, float]], last: dict[int, tuple[float, float]], span: float, text: str
) -> None:
    before, after = ({key: ProcessorTime(*value) for key, value in times.items()} for times in (first, last))
    found = describe_starvation(before, after, span)
    assert found.endswith(text)
    assert bool(found) == bool(text)


def test_read_processor_times_has_each_thread_and_child(tmp_path: Path) -> None:
    for path, ran, waited, children in (
        ("10/task/10", 1_500_000_000, 2_000_000_000, "20 30 "),
        ("10/task/11", 0, 500_000_000, ""),
        ("20/task/20", 1, 2, ""),
    ):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "schedstat").write_text(f"{ran} {waited} 7\n")
        (tmp_path / path / "children").write_text(children)
    (tmp_path / "20/task/21").mkdir()  # it has just ended
    assert read_processor_times(10, tmp_path) == {
        10: ProcessorTime(1.5, 2.0),
        11: ProcessorTime(0.0, 0.5),
        20: ProcessorTime(1e-9, 2e-9),
    }
    assert read_processor_times(99, tmp_path) == {}


def test_read_processor_times_of_this_process() -> None:
    """The figures are those of the kernel: a thread that works has run."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        before = read_processor_times(os.getpid())
        begin = time.thread_time()
        while time.thread_time() < begin + 0.05:
            pass
        after = read_processor_times(os.getpid())
    finally:
        done.set()
        thread.join()
    assert len(before) > 1
    own = threading.get_native_id()
    assert after[own].ran - before[own].ran >= 0.04


def test_the_watch_looks_once_a_second_of_a_case() -> None:
    looks: list[int] = []
    waited = 0.0

    def read(pid: int) -> dict[int, ProcessorTime]:
        nonlocal waited
        looks.append(pid)
        waited += 0.9
        return {pid: ProcessorTime(0.0, waited)}

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
