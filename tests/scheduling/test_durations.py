"""The durations of cases, and their expected durations."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.outcome import Outcome
from harness.devices.device import CPU, Inventory
from harness.journal.ledger import Ledger
from harness.scheduling.durations import FILE_NAME, DurationHistory, DurationHistoryError, Durations, SlowFiles
from tests.journal import journals
from tests.reporting import build

A, B, C = "s/a.py::test_a[0]", "s/a.py::test_a[1]", "s/a.py::test_c"


def ledger(*lines: build.Line) -> Ledger:
    return build.ledger(build.run(), build.collected(A, B, C), *lines)


def test_durations_of_a_run() -> None:
    """A duration is the mean of all attempts, including those that did not count. Cases that did not run have none."""
    lines = [
        build.finish(A, duration=1.0),
        build.finish(A, duration=3.0),
        *build.broke_and(B, Outcome.CRASHED, Outcome.PASSED),
        build.finish(C, Outcome.GATED, duration=0.0),
    ]
    assert DurationHistory.of_ledger(ledger(*lines)).seconds == {A: 2.0, B: 1.0}


@pytest.mark.parametrize(
    ("known", "limits", "expected"),
    [
        ({}, {}, [1.0, 1.0, 1.0]),
        ({}, {C: 600.0}, [1.0, 1.0, 2.0]),
        ({A: 4.0}, {}, [4.0, 4.0, 4.0]),
        ({A: 4.0, C: 1.0}, {B: 600.0}, [4.0, 4.0, 2.5]),
        ({"s/other.py::x": 3.0}, {C: 30.0}, [3.0, 3.0, 0.3]),
        ({A: 2.0, B: 4.0}, {}, [3.0, 4.0, 3.0]),
    ],
)
def test_what_is_expected(known: dict[str, float], limits: dict[str, float], expected: list[float]) -> None:
    assert DurationHistory(known).expected([A, B, C], limits, 300.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("known", "limits", "expected"),
    [
        ({}, {}, [5.0, 0.25, 0.25]),
        ({}, {"s/b.py::x": 600.0}, [5.0, 0.5, 0.25]),
        ({A: 2.0}, {}, [2.0, 0.25, 0.25]),  # one case selected by name is not evidence for others
        ({"s/b.py::y": 3.0}, {}, [5.0, 3.0, 0.25]),
        ({A: 2.0, "s/b.py::x": 2.0}, {}, [2.0, 2.0, 2.0]),
    ],
)
def test_without_history_slow_test_files_are_known(
    known: dict[str, float], limits: dict[str, float], expected: list[float]
) -> None:
    """History takes precedence, including that of similar cases. Time limits are used for the other files."""
    slow = SlowFiles(other=0.25, files={A.partition("::")[0]: 5.0})
    found = DurationHistory(known, slow).expected([A, "s/b.py::x", "t/c.py::x"], limits, 300.0)
    assert found == pytest.approx(expected)


def _keep(path: Path, case: str) -> None:
    DurationHistory({case: 1.0}).keep(path, "CPU")


def test_runs_that_end_at_once_keep_all_durations(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    spawn = multiprocessing.get_context("fork")
    runs = [spawn.Process(target=_keep, args=(path, f"s/a.py::x[{number}]")) for number in range(8)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert sorted(DurationHistory.read(path, "CPU").seconds) == [f"s/a.py::x[{number}]" for number in range(8)]


IDS = st.sampled_from([A, B, C, "s/b.py::x", "t/c.py::y[1]"])
SECONDS = st.floats(0, 1e6)


@given(st.dictionaries(IDS, SECONDS), st.lists(IDS), st.dictionaries(IDS, st.floats(0.1, 1e4)))
def test_a_known_case_is_expected_to_take_what_it_took_or_what_its_file_takes(
    known: dict[str, float], ids: list[str], limits: dict[str, float]
) -> None:
    found = DurationHistory(known).expected(ids, limits, 300.0)
    assert len(found) == len(ids)
    for case, seconds in zip(ids, found, strict=True):
        assert seconds >= 0
        file = [each for name, each in known.items() if name.partition("::")[0] == case.partition("::")[0]]
        assert seconds == known.get(case, seconds) or seconds == pytest.approx(sum(file) / len(file))
        assert seconds >= known.get(case, 0.0)


def test_the_file_keeps_devices_apart_and_follows_changes(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    assert DurationHistory.read(path, "CPU").seconds == {}
    DurationHistory({A: 2.0, B: 1.0}).keep(path, "CPU")
    DurationHistory({A: 9.0}).keep(path, "NVIDIA H200")
    DurationHistory({A: 4.0, C: 5.0}).keep(path, "CPU")
    assert DurationHistory.read(path, "CPU").seconds == {A: 3.0, B: 1.0, C: 5.0}
    assert DurationHistory.read(path, "NVIDIA H200").seconds == {A: 9.0}


@pytest.mark.parametrize(
    "text", ["", "x", "[" * 100_000, "[]", "{}", '{"schema":2,"seconds":{}}', '{"schema":1,"seconds":{"CPU":{"a":-1}}}',
             '{"schema":1,"seconds":{"CPU":{"a":NaN}}}', '{"schema":1,"seconds":{"CPU":["a"]}}']
)  # fmt: skip
def test_a_file_that_is_no_history(tmp_path: Path, text: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(text)
    for use in (lambda: DurationHistory.read(path, "CPU"), lambda: DurationHistory({A: 1.0}).keep(path, "CPU")):
        with pytest.raises(
            DurationHistoryError, match="is not a history of durations: remove it, and the next run makes a"
        ):
            use()
    assert path.read_text() == text


def run_dir(folder: Path, seconds: float) -> Path:
    return journals.write(folder, [build.run(), build.collected(A, B), build.finish(A, duration=seconds), build.end()])


def settings(**changes: Any) -> dict[str, Any]:
    return {"history": (), "results_dir": None, "resume": None, **changes}


def test_of_several_runs_the_median_counts(tmp_path: Path) -> None:
    folders = tuple(run_dir(tmp_path / str(seconds), seconds) for seconds in (1.0, 7.0, 2.0))
    found = Durations.of(settings(history=folders), tmp_path, tmp_path, Inventory((CPU,)))
    assert found.history.seconds == {A: 2.0}
    assert found.expected([A, B], {}, 300.0) == [2.0, 2.0]
    assert found.remarks == []
    assert found.expected(["x.py::x"], {}, 300.0) == [2.0]
    assert [line.partition("': ")[2] for line in found.remarks] == [
        "none of its 1 cases is in this run: it comes from another tree"
    ]


def test_a_run_in_results_keeps_its_durations(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    found = Durations.of(settings(), tmp_path, tmp_path, Inventory((CPU,)))
    found.keep(ledger(build.finish(A, duration=2.5)))
    known = json.loads((tmp_path / "results" / FILE_NAME).read_text())
    assert known == {"schema": 1, "seconds": {CPU.name: {A: 2.5}}}
    assert Durations.of(settings(), tmp_path, tmp_path, Inventory((CPU,))).history.seconds == {A: 2.5}
    elsewhere = Durations.of(settings(results_dir=Path("x")), tmp_path, tmp_path, Inventory((CPU,)))
    assert (elsewhere.file, elsewhere.history.seconds) == (None, {A: 2.5})


def test_a_damaged_file_is_left_alone_and_said(tmp_path: Path) -> None:
    path = tmp_path / "results" / FILE_NAME
    path.parent.mkdir()
    path.write_text("x")
    found = Durations.of(settings(), tmp_path, tmp_path, Inventory((CPU,)))
    assert [note.partition(": ")[0] for note in found.notes] == ["no durations are known"]
    found.keep(ledger(build.finish(A)))
    assert (path.read_text(), found.remarks) == ("x", [])


def test_a_history_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "results" / f".{FILE_NAME}.lock").mkdir(parents=True)
    found = Durations.of(settings(), tmp_path, tmp_path, Inventory((CPU,)))
    found.keep(ledger(build.finish(A)))
    assert [line.partition(": ")[0] for line in found.remarks] == ["the durations of this run are not kept"]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match=r"^--history='no': there is no journal at"):
        Durations.of(settings(history=(Path("no"),)), tmp_path, tmp_path, Inventory((CPU,)))
