"""The progress line of a run: from journal lines and a time to text."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.controller.run import JournalTail
from harness.core.outcome import Outcome
from harness.journal.journal import FILE_NAME, Journal
from harness.progress.progress import Progress
from tests.progress.lines import T, activity, finish, start
from tests.reporting import build
from tests.reporting.build import Line

RUN = build.run(t=T)
CASES = build.collected(*(f"c{number}" for number in range(40)), t=T + 10)


@pytest.mark.parametrize(
    ("lines", "at", "text"),
    [
        pytest.param([RUN], 40, "collecting for 40 s", id="nothing is collected"),
        pytest.param(
            [RUN, CASES, activity("waiting for the zygote, which collects the cases", 12)],
            52,
            "0 of 40 cases done; 40 left; gw0 is waiting for the zygote, which collects the cases, for 40 s",
            id="the zygote collects",
        ),
        pytest.param([RUN, CASES], 12, "0 of 40 cases done; 40 left; no case runs", id="before the first case"),
        pytest.param(
            [
                RUN,
                CASES,
                finish("c0", Outcome.GATED, at=20),
                *(start("c1", 20), finish("c1", at=21)),
                *(start("c2", 21), finish("c2", Outcome.FAILED, at=22)),
                start("c3", 22),
            ],
            117,
            "3 of 40 cases done (1 passed, 1 red, 1 gated); 37 left; gw0 runs c3 on cpu, for 95 s",
            id="a case hangs; too few are done for an estimate",
        ),
        pytest.param(
            [RUN, CASES, *(finish(f"c{number}", at=30) for number in range(10)), start("c10", 30)],
            70,
            "10 of 40 cases done (10 passed); 30 left (about 2 min); gw0 runs c10 on cpu, for 40 s",
            id="an estimate from the pace so far",
        ),
        pytest.param(
            [RUN, CASES, *(finish(f"c{number}", at=30) for number in range(39)), start("c39", 30)],
            70,
            "39 of 40 cases done (39 passed); 1 left (less than a minute); gw0 runs c39 on cpu, for 40 s",
            id="nearly done",
        ),
        pytest.param(
            [RUN, CASES, *(finish(f"c{number}", at=30) for number in range(4)), start("c4", 30)],
            3630,
            "4 of 40 cases done (4 passed); 36 left (about 9.0 h); gw0 runs c4 on cpu, for 3600 s",
            id="hours",
        ),
        pytest.param(
            [
                RUN,
                CASES,
                *(start("c0", 20), finish("c0", Outcome.CRASHED, at=21, final=False)),
                start("c0", 21, attempt=2, alone=True, devices=["GPU-a", "GPU-b"]),
            ],
            51,
            "0 of 40 cases done; 40 left; gw0 runs c0 (attempt 2) on GPU-a, GPU-b, for 30 s",
            id="a second attempt",
        ),
        pytest.param(
            [
                RUN,
                CASES,
                *(start("c0", 20), finish("c0", Outcome.CRASHED, at=21, final=False)),
                *(start("c0", 21, attempt=2), finish("c0", at=22, attempt=2)),
                *(start("c1", 22), finish("c1", Outcome.FAILED, at=23, ruling=build.ruling(Outcome.WAIVED))),
                *(start("c2", 22), finish("c2", at=23), start("c2", 23, attempt=2)),
                *(start("c3", 22, "gw1"), finish("c3", Outcome.PASSED, at=23, worker="gw1")),
                finish("c3", Outcome.LEAKED, at=24, worker="gw1", attempt=2),
            ],
            24,
            "3 of 40 cases done (1 red, 1 flaky, 1 waived); 37 left; gw0 runs c2 (attempt 2) on cpu, for 1 s",
            id="verdicts as at the end of the run; what is repeated is not done",
        ),
        pytest.param(
            [
                RUN,
                build.collected("c0", "c1", t=T + 1),
                finish("c0", at=2),
                finish("c1", at=3),
                activity("looking into a batch", 10, since=T + 10),
                activity("waiting", 15, since=T + 15),
                activity("looking into a batch: trial 7 of at most 60", 80, since=T + 10),
            ],
            90,
            "2 of 2 cases done (2 passed); gw0 is looking into a batch: trial 7 of at most 60, for 80 s",
            id="after the last case",
        ),
        pytest.param(
            [RUN, CASES, activity("waiting", 11), activity("", 12)],
            20,
            "0 of 40 cases done; 40 left; no case runs",
            id="an activity is over",
        ),
        pytest.param(
            [RUN, CASES, start("c0", 11), activity("confirming a leak of c0", 20)],
            30,
            "0 of 40 cases done; 40 left; gw0 is confirming a leak of c0, for 10 s",
            id="an activity within an attempt",
        ),
        pytest.param(
            [RUN, CASES, *(start(f"c{number}", 30 - number, f"gw{number}") for number in range(6))],
            31,
            "0 of 40 cases done; 40 left; gw5 runs c5 on cpu, for 6 s; gw4 runs c4 on cpu, for 5 s; "
            "gw3 runs c3 on cpu, for 4 s; gw2 runs c2 on cpu, for 3 s; 2 more workers are busy",
            id="the longest first",
        ),
        pytest.param(
            [RUN, CASES, start("c\n\x1b[31m", 20)],
            21,
            "0 of 40 cases done; 40 left; gw0 runs c \\x1b[31m on cpu, for 1 s",
            id="an id that would break the line",
        ),
    ],
)
def test_the_line(lines: list[Line], at: float, text: str) -> None:
    progress = Progress()
    progress.enter(build.events(*lines))
    assert progress.snapshot(T + at).line == text
    bit_by_bit = Progress()
    for line in lines:
        bit_by_bit.enter(build.events(line))
    assert bit_by_bit.snapshot(T + at).line == text


def test_flaky_counts_as_the_run_says() -> None:
    progress = Progress()
    lines = build.broke_and("c0", Outcome.CRASHED, Outcome.PASSED)
    progress.enter(build.events(build.run(t=T, fail_on_flaky=True), build.collected("c0"), *lines))
    assert progress.snapshot(T + 9).line == "1 of 1 cases done (1 red); no case runs"


def test_a_worker_that_died_runs_nothing() -> None:
    progress = Progress()
    progress.enter(build.events(RUN, CASES, start("c0", 20), start("c1", 20, "gw1"), activity("waiting", 21, "gw1")))
    progress.forget("gw1")
    progress.forget("gw7")
    assert progress.snapshot(T + 30).line == "0 of 40 cases done; 40 left; gw0 runs c0 on cpu, for 10 s"


def test_a_worker_that_is_stopped_is_named() -> None:
    progress = Progress()
    collected = [build.collected(*(f"c{n}" for n in range(40)), worker=f"gw{n}", pid=70 + n) for n in range(2)]
    progress.enter(build.events(RUN, *collected, start("c0", 20)))
    assert progress.pids == {"gw0": 70, "gw1": 71}
    assert progress.snapshot(T + 30, {"gw1": 71, "gw0": 70}).line == (
        "0 of 40 cases done; 40 left; gw0 runs c0 on cpu, for 10 s; "
        "gw0 is stopped (process 70, by SIGSTOP or a debugger): to continue it, type kill -CONT 70; "
        "gw1 is stopped (process 71, by SIGSTOP or a debugger): to continue it, type kill -CONT 71"
    )
    progress.forget("gw0")
    assert progress.pids == {"gw1": 71}


def test_a_journal_is_read_on_where_reading_stopped(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    with Journal(path) as journal:
        journal.append(build.event(RUN))
        tail = JournalTail(path)
        assert [event.event for event in tail.read()] == ["run"]
        assert tail.read() == ()
        journal.append(build.event(CASES))
        with path.open("ab") as file:
            file.write(b'{"event":"end","t":1,"exit_')
        assert [event.event for event in tail.read()] == ["collected"]
        with path.open("ab") as file:
            file.write(b'status":0,"duration":1}\nwhat is this?\n')
        assert [event.event for event in tail.read()] == ["end"]
        journal.append(build.event(start("c0", 1)))
        assert [event.event for event in tail.read()] == ["start"]
    tail.close()


def test_reading_on_takes_no_lock_away_from_a_writer(tmp_path: Path) -> None:
    """POSIX releases a process's locks on a file when the process closes any descriptor of it."""
    path = tmp_path / FILE_NAME
    opened = set()
    with Journal(path) as journal:
        journal.append(build.event(RUN))
        tail = JournalTail(path)
        for _ in range(3):
            tail.read()
            opened.add(descriptors_of(path))
    tail.close()
    assert len(opened) == 1


def descriptors_of(path: Path) -> tuple[str, ...]:
    folder = Path("/proc/self/fd")
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_symlink() and _target(entry) == str(path)))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # the descriptor of the folder listing
        return ""


def test_a_resumed_run_goes_on_at_its_own_pace() -> None:
    """Cases that were not run are pending again; those that were in flight are no longer running."""
    before = [*(build.finish(f"c{number}", t=T + 20) for number in range(20)), start("c20", 20)]
    stopped = build.finish("c21", Outcome.NOT_RUN, t=T + 21)
    lost = build.finish("c20", Outcome.LOST, final=False, t=T + 9000)
    again = [build.run(t=T + 9000, part=2), lost]
    progress = Progress()
    progress.enter(build.events(RUN, CASES, *before, stopped, *again))
    assert progress.snapshot(T + 9001).line == "20 of 40 cases done (20 passed); 20 left; no case runs"
    later = [build.finish(f"c{number}", t=T + 9060, duration=60.0) for number in range(20, 30)]
    progress.enter(build.events(*later))
    assert progress.snapshot(T + 9060).line == "30 of 40 cases done (30 passed); 10 left (about 1 min); no case runs"


def test_a_run_whose_cases_are_done_names_the_workers_that_it_waits_for() -> None:
    progress = Progress()
    progress.enter(build.events(RUN, CASES, *(build.finish(f"c{number}", t=T + 20) for number in range(39))))
    assert progress.snapshot(T + 30, running={"gw0": 11}).line.endswith("1 left (less than a minute); no case runs")
    progress.enter(build.events(build.finish("c39", t=T + 30)))
    assert progress.snapshot(T + 60).line == "40 of 40 cases done (40 passed); no case runs"
    line = progress.snapshot(T + 60, running={"gw1": 12, "gw0": 11}).line
    assert line == "40 of 40 cases done (40 passed); waiting for gw0 (process 11), gw1 (process 12) to end"
