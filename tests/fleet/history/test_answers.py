"""Queries of a history whose answers are manual data: flaky, silent, lost and slower cases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.fleet.answers import Answers
from harness.journal.journal import FILE_NAME
from tests.fleet.history import nights
from tests.fleet.matrix.runs import CASES, Machine

LETTERS = {
    ".": Outcome.PASSED,
    "x": Outcome.FAILED,
    "f": Outcome.FLAKY,
    "-": Outcome.GATED,
    "w": Outcome.WAIVED,
    "l": Outcome.LOST,
}


def lanes(folder: Path, **results: Mapping[str, str]) -> list[Path]:
    """Write the nights of machines: by host and case, one letter per night."""
    return [
        nights.night(folder, number, {case: LETTERS[line[number]] for case, line in cases.items()}, Machine(host))
        for host, cases in results.items()
        for number in range(len(next(iter(cases.values()))))
    ]


FLAKY = ["..x......x..", "..x-......x.", "....x......x", ".xx.....xx..", "......f.....", "-x.....x.-.."]
STEADY = [
    "..x.........",
    "xxx.....xxx.",
    "x.x.x.x.x.x.",
    "..........xx",
    "..w......w..",
    "x...........",
    "------------",
]


def test_a_flaky_case_has_two_short_spells_or_the_verdict(tmp_path: Path) -> None:
    cases = {f"suites/a/test_a.py::{line}": line for line in (*FLAKY, *STEADY)}
    with nights.history(tmp_path, lanes(tmp_path, n1=cases)).reading() as database:
        found = Answers(database).flaky_cases
    assert {case.partition("::")[2] for case, *_ in found} == {*FLAKY}
    counts = {case.partition("::")[2]: (bad, ran, devices) for case, bad, ran, devices in found}
    assert counts["..x-......x."] == (2, 11, 1)
    assert counts[".xx.....xx.."] == (4, 12, 1)
    assert [bad for _, bad, *_ in found] == [4, 2, 2, 2, 2, 1]


def test_a_spell_on_each_of_two_machines_is_one_spell_each(tmp_path: Path) -> None:
    made = lanes(
        tmp_path, n1={CASES[0]: "..x.....", CASES[1]: "..x..x.."}, n2={CASES[0]: ".....x..", CASES[1]: "........"}
    )
    with nights.history(tmp_path, made).reading() as database:
        assert Answers(database).flaky_cases == [(CASES[1], 2, 16, 1)]


def test_cases_that_no_run_of_a_week_ran(tmp_path: Path) -> None:
    made = lanes(tmp_path, n1={CASES[0]: "..---------", CASES[1]: "-----------", CASES[2]: "..---------"})
    made += lanes(tmp_path, n2={CASES[0]: "-----------", CASES[1]: "-----------", CASES[2]: "----------."})
    with nights.history(tmp_path, made).reading() as database:
        answers = Answers(database)
        reason = "memory: wanted >=40GiB, found 24.0GiB"
        assert answers.not_run == [(CASES[0], date(2025, 10, 10), reason)]
        assert answers.never_run == [(reason, 1)]


def test_a_lost_case_counts_for_the_onset_of_its_group(tmp_path: Path) -> None:
    with nights.history(tmp_path, lanes(tmp_path, n1={CASES[0]: "..ll"})).reading() as database:
        (group,) = Answers(database).groups()
    (onset,) = group.onsets
    assert (onset.before, onset.since, onset.until, onset.runs) == (2, 3, None, 2)


@pytest.mark.parametrize(("number", "listed"), [(12, [CASES[0]]), (9, [])])
def test_a_case_whose_duration_rises_is_slower(tmp_path: Path, number: int, listed: list[str]) -> None:
    """Nine runs are too few for a trend."""
    made = lanes(tmp_path, n1=dict.fromkeys(CASES, "." * number))
    for place, path in enumerate(made):
        lines = [json.loads(line) for line in (path / FILE_NAME).read_text().splitlines()]
        for line in lines:
            if line["event"] == "finish" and line["case"] == CASES[0]:
                line["duration"] = 1.0 + place
        (path / FILE_NAME).write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    with nights.history(tmp_path, made).reading() as database:
        found = Answers(database).slow_cases
    assert [(slow.case, slow.lane) for slow in found] == [(case, "n1 · H100") for case in listed]
