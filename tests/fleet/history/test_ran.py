"""The cases that ran in each run, and their bad spells: from manual data, and compared with a history's verdicts."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

pytest.importorskip("duckdb")

from harness.core.outcome import Outcome
from harness.fleet.answers import EVER, Answers
from harness.fleet.ran import Ran, count_spells, find_rises, last_runs, median_of_known, read_ran
from tests.fleet.history import nights
from tests.fleet.matrix.runs import CASES, Machine


def ran(*rows: tuple[int, int, str]) -> Ran:
    """Create rows of a run, a device and its cases: a text with a one for each case that ran."""
    bits = [np.packbits([int(each) for each in text.ljust(16, "0")]) for _, _, text in rows]
    return Ran(np.array([run for run, _, _ in rows]), np.array([device for _, device, _ in rows]), np.array(bits))


def test_columns_say_which_rows_ran_a_case() -> None:
    found = ran((1, 1, "0110000001"), (2, 1, "01"))
    assert found.columns([0, 1, 2, 9, 15, 16, 400]).tolist() == [
        [False, True, True, True, False, False, False],
        [False, True, False, False, False, False, False],
    ]
    assert found.columns([]).shape == (2, 0)


def test_the_devices_of_a_run_are_put_together() -> None:
    found = ran((4, 1, "01"), (4, 2, "001"), (7, 1, "0001")).by_run()
    assert found.runs.tolist() == [4, 7]
    assert found.columns([1, 2, 3]).tolist() == [[True, True, False], [False, False, True]]


def test_an_empty_history_ran_nothing() -> None:
    found = Ran(np.zeros(0), np.zeros(0), np.zeros((0, 0), dtype=np.uint8)).by_run()
    assert found.columns([1]).shape == (0, 1)
    assert last_runs(found, [1]) == {}


def test_the_last_run_of_a_case() -> None:
    assert last_runs(ran((1, 1, "011"), (2, 1, "001"), (3, 1, "")), [1, 2, 3]) == {1: 1, 2: 2}


@pytest.mark.parametrize(
    ("results", "most", "ended"),
    [
        ("..x.", 1, 1),
        ("x.x.x", 3, 2),
        ("xx", 1, 0),
        ("xxx", 0, 0),
        ("xxx.xxxx.", 0, 2),
        ("xxx.x.x", 2, 2),
        (".-x-.", 1, 1),
        ("-x-x-", 1, 0),
        ("", 0, 0),
        (".xx.-x", 2, 1),
    ],
)
def test_spells_are_counted_over_the_runs_that_ran_the_case(results: str, most: int, ended: int) -> None:
    """`.` is good, `x` bad, `-` not run; a spell of three is not short. Another lane changes nothing."""
    there = [each != "-" for each in results]
    both = np.array([[each] for pair in zip(there, [True] * len(there), strict=True) for each in pair], dtype=bool)
    bad = np.array([[each] for one in results for each in (one == "x", False)], dtype=bool)
    found = count_spells(both.reshape(-1, 1), bad.reshape(-1, 1), ["a", "b"] * len(results))
    assert (found.most.tolist(), found.ended.tolist()) == ([most], [ended])
    assert found.ran.tolist() == [sum(there) + len(results)]


def test_a_spell_on_each_of_two_machines_is_one_spell_each() -> None:
    bad = np.array([[False], [True], [True], [False]])
    found = count_spells(np.ones((4, 1), dtype=bool), bad, ["a", "b", "a", "b"])
    assert found.most.tolist() == [1]


def test_medians_leave_out_what_is_unknown() -> None:
    nan = np.nan
    values = np.array([[1.0, nan, 3.0], [nan, nan, nan], [5.0, 1.0, 2.0], [nan, 4.0, nan]])
    assert median_of_known(values, axis=1).tolist() == pytest.approx([2.0, nan, 2.0, 4.0], nan_ok=True)


def test_what_ran_is_what_the_verdicts_say(tmp_path: Path) -> None:
    chance = Random(1)
    made = [
        nights.night(
            tmp_path,
            number,
            {case: chance.choice([Outcome.PASSED, Outcome.GATED, Outcome.FAILED, Outcome.NOT_RUN]) for case in CASES},
            Machine(host),
        )
        for number in range(8)
        for host in ("n1", "n2")
    ]
    with nights.history(tmp_path, made).reading() as database:
        found, names = read_ran(database, EVER), {v: k for k, v in Answers(database).case_numbers(CASES).items()}
        bits = {
            (int(run), names[case])
            for run, row in zip(found.runs, found.columns(list(names)), strict=True)
            for case, there in zip(names, row, strict=True)
            if there
        }
        assert bits == set(
            database.execute("SELECT run, \"case\" FROM results WHERE outcome IN ('passed', 'failed')").fetchall()
        )
        recent = read_ran(database, 2)
        assert set(recent.runs.tolist()) <= {13, 14, 15, 16}


def test_lanes_with_few_runs_have_no_rises(tmp_path: Path) -> None:
    with nights.regression(tmp_path).reading() as database:
        assert find_rises(database, {"a": [1, 2, 3]}, 5) == []
        assert find_rises(database, {}, 5) == []
