"""Faults that PyTorch's own tests detect, beside those that this project's cases detect: the records and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.upstream import faults
from benchmarks.upstream.faults import Noticed, RecordError
from harness.sim.native.faults import fault_catalogue
from tests.breaks.table import RECORD


def _record(folder: Path, passed: int, caught: dict[str, int]) -> Path:
    folder.mkdir(parents=True)
    rows = [
        {"name": name, "noticed_by": {f"test_{i}": "failed" for i in range(number)}} for name, number in caught.items()
    ]
    (folder / RECORD).write_text(json.dumps({"passed_without_a_break": passed, "breaks": rows}))
    return folder


def test_the_records_of_several_calls_make_one_table(tmp_path: Path) -> None:
    _record(tmp_path / "a" / "theirs-test_cuda", 180, {"event_early": 2, "free_leaks": 0, "oom_early": 3})
    _record(tmp_path / "a" / "theirs-test_cuda_multigpu", 50, {"event_early": 1, "free_leaks": 0})
    _record(tmp_path / "a" / "ours", 300, {"event_early": 24, "free_leaks": 1, "oom_early": 1})
    _record(tmp_path / "b" / "theirs-test_cuda-first", 180, {"launch_hangs": 1, "device_lost": 0})
    _record(tmp_path / "b" / "ours-first", 300, {"launch_hangs": 2, "device_lost": 1})

    read = [faults.read_all([tmp_path / "a", tmp_path / "b"], side) for side in faults.SIDES]

    assert faults.markdown(*read).splitlines()[2:] == [
        "| `event_early` | 3 of 230 | 24 of 300 |",
        "| `free_leaks` | 0 of 230 | 1 of 300 |",
        "| `launch_hangs` | yes | yes |",
        "| `device_lost` | no | yes |",
        "",
        "Of 4 faults, PyTorch's own tests notice 2, and our cases 4.",
    ]


def test_a_later_folder_with_one_side_counts_in_place_of_an_earlier_one(tmp_path: Path) -> None:
    _record(tmp_path / "a" / "theirs-test_cuda", 180, {"event_early": 2, "slow": 0})
    _record(tmp_path / "a" / "ours", 300, {"event_early": 1, "slow": 0})
    _record(tmp_path / "b" / "ours", 320, {"event_early": 3})

    theirs, ours = (faults.read_all([tmp_path / "a", tmp_path / "b"], side) for side in faults.SIDES)

    assert {fault: str(noticed) for fault, noticed in theirs.items()} == {"event_early": "2 of 180", "slow": "0 of 180"}
    assert {fault: str(noticed) for fault, noticed in ours.items()} == {"event_early": "3 of 320", "slow": "0 of 300"}


def test_a_fault_that_one_side_lacks_is_not_compared() -> None:
    some = {"event_early": Noticed(1, 10, first=False)}

    assert faults.markdown(some, {}).splitlines()[2:] == [
        "",
        "Of 0 faults, PyTorch's own tests notice 0, and our cases 0.",
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"passed_without_a_break": 1, "breaks": [{}]}'])
def test_a_record_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(RecordError, match="has no record of a campaign"):
        faults.read(tmp_path, first=False)


def test_folders_without_a_record_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no record of the campaign 'theirs' in"):
        faults.read_all([tmp_path], "theirs")


def test_the_faults_that_stop_every_test_are_known() -> None:
    assert set(faults.STOPPING) <= set(fault_catalogue("simcuda"))
