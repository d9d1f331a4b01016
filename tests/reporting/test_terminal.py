"""The lines at the end of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.reporting import terminal
from tests.reporting import build


def summary(*lines: build.Line, inject: str = "", after_pytest: bool = True) -> list[str]:
    ids = dict.fromkeys(line["case"] for line in lines if "case" in line)
    ledger = build.ledger(build.run(settings={"inject": inject}), build.collected(*ids), *lines, build.end())
    return terminal.terminal_summary(ledger, Path("a folder"), blocks=False, after_pytest=after_pytest)


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([Outcome.PASSED, Outcome.FAILED, Outcome.ERROR, Outcome.SKIPPED, Outcome.GATED, Outcome.FLAKY], None),
        ([Outcome.WAIVED] * 3, "3 waived as xfailed"),
        ([Outcome.CRASHED, Outcome.LEAKED, Outcome.LEAKED], "2 leaked, 1 crashed as failed"),
        ([Outcome.WAIVED, Outcome.TIMEOUT], "1 waived as xfailed; 1 timeout as failed"),
    ],
)
def test_other_words_of_the_last_line_are_named(outcomes: list[Outcome], words: str | None) -> None:
    lines = summary(*(build.finish(f"suites/a.py::t{number}", outcome) for number, outcome in enumerate(outcomes)))
    assert [line for line in lines if "last line" in line] == ([f"pytest's last line counts {words}"] if words else [])


def test_a_report_has_no_last_line_of_pytest() -> None:
    lines = summary(build.finish("suites/a.py::t", Outcome.CRASHED), after_pytest=False)
    assert not [line for line in lines if "last line" in line]


def test_each_injected_fault_says_how_often_it_occurred() -> None:
    finishes = [build.finish(f"suites/a.py::{name}", struck={"event_early": 2}) for name in "tu"]
    lines = summary(*finishes, inject="event_early:0.5,seed=3; wait_ignored")
    assert [line for line in lines if line.startswith("INJECTED")] == [
        "INJECTED event_early occurred 4 times in 2 cases",
        "INJECTED wait_ignored never occurred, so no case could notice it",
    ]


def test_cases_that_were_not_collected_are_not_to_be_resumed() -> None:
    lines = summary(
        build.finish("suites/a.py::t", Outcome.NOT_RUN), build.finding("no such module", kind="collection_error")
    )
    assert "    to run them, mend what could not be collected, and start a new run" in lines
    assert not [line for line in lines if "--resume" in line]


def test_cases_that_did_not_run_come_with_the_way_to_run_them() -> None:
    lines = summary(build.finish("suites/a.py::t"), build.finish("suites/a.py::u", Outcome.NOT_RUN, message="why"))
    assert "    to run the rest, repeat the command with --resume 'a folder'" in lines
    assert not [line for line in summary(build.finish("suites/a.py::t")) if "--resume" in line]


@pytest.mark.parametrize(
    ("number", "end", "word"), [(0, "1 passed", "findings"), (1, "1 passed; 1 finding", "finding")]
)
def test_findings_are_counted_in_the_first_line(number: int, end: str, word: str) -> None:
    lines = summary(build.finish("suites/a.py::t"), *(build.finding(f"{each}") for each in range(number)))
    assert lines[0] == f"1 case: {end}"
    assert terminal.last_line_word(number) == word


def test_many_findings_are_cut() -> None:
    lines = summary(*(build.finding(f"number {each}") for each in range(terminal.SHOWN + 3)))
    assert sum(line.startswith("FINDING") for line in lines) == terminal.SHOWN
    assert any(line.startswith("… and 3 more findings, see ") for line in lines)


def test_of_many_executors_that_grew_a_few_have_lines() -> None:
    grew = [build.batch("a::b", executor=f"gw0-{each}", failure="no time is left") for each in range(7)]
    lines = summary(build.finish("a::b"), *grew)
    assert sum(line.startswith("GREW") for line in lines) == terminal.SHOWN_GROWN
    assert "… and 4 more executors that grew, not shown to be leaks, see a folder/report.html" in lines
