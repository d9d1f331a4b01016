"""Memory over repetitions, in each report that contains it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import xunit2

from harness.checks.meters import format_quantity
from harness.core.outcome import Outcome
from harness.journal.events import Batch
from harness.journal.ledger import Ledger
from harness.reporting import junit
from harness.reporting.repetitions import (
    Repeated,
    can_encode_blocks,
    leak_search_cost,
    plot,
    repetitions,
    unproven_leaks,
)
from harness.reporting.terminal import PLOTTED, terminal_summary
from tests.reporting import build

A, B = "suites/a/test_a.py::a", "suites/a/test_a.py::b"
KIB = 1 << 10


def repeated(
    case: str, value: Callable[[int], int], *, times: int = 20, executor: str = "gw0-1", **others: Callable[[int], int]
) -> list[build.Line]:
    """Return the lines of a case whose meters are functions of the number of the repetition, from 0."""
    lines = []
    for number in range(times):
        attempt: dict[str, Any] = {"attempt": number + 1, "executor": executor}
        values = {"heap_bytes": (11 << 20) + value(number), **{name: other(number) for name, other in others.items()}}
        lines += [build.start(case, **attempt), build.levels(case, number + 1, executor, **values)]
        lines.append(build.finish(case, **attempt))
    return lines


def ledger(*lines: build.Line) -> Ledger:
    cases = dict.fromkeys(line["case"] for line in lines if "case" in line)
    return build.ledger(build.run(), build.collected(*cases), *lines)


def growing(number: int) -> int:
    return 4 * KIB * number


def flat(_: int) -> int:
    return 0


def only(*lines: build.Line) -> Repeated:
    (each,) = repetitions(ledger(*lines))
    return each


def test_what_grows_is_named_with_all_that_grows_in_its_process() -> None:
    each = only(*repeated(A, growing, resident_bytes=lambda n: 64 * KIB * n, threads=flat))
    assert (each.case, each.grows, each.word) == (A, True, "GROWS")
    assert each.text == (
        "heap_bytes: malloc memory of C code, NumPy or torch on the CPU grew by 4.0 KiB per repetition over 20 "
        "repetitions, from 11.0 MiB to 11.1 MiB, in executor gw0-1; also resident_bytes by 64.0 KiB"
    )
    assert each.plot(blocks=False)[0] == "11.1 MiB |               ..::#"


def test_what_stands_still_is_no_growth() -> None:
    each = only(*repeated(A, flat))
    assert (each.grows, each.word) == (False, "FLAT")
    assert each.text.endswith("stayed flat over 20 repetitions, at 11.0 MiB, in executor gw0-1")


def test_growth_is_not_put_together_from_several_processes() -> None:
    lower = repeated(A, flat, times=14)
    higher = repeated(A, lambda _: 4 << 20, times=14, executor="gw0-2")
    assert only(*lower, *higher).word == "FLAT"
    # Growth in another process is not reported with it either.
    both = [*repeated(A, growing, times=20), *repeated(A, growing, times=15, executor="gw0-2")]
    assert (only(*both).series.executor, only(*both).also) == ("gw0-1", ())


def test_cases_come_in_the_order_of_the_verdicts_and_only_those_with_levels() -> None:
    lines = [build.start(B), build.finish(B), *repeated("c", flat), *repeated(A, growing)]
    assert [each.case for each in repetitions(ledger(*lines))] == ["c", A]
    assert repetitions(ledger(build.start(A), build.levels(A, flux=3), build.finish(A))) == []


def test_the_summary_names_what_grows_and_nothing_else() -> None:
    account = ledger(*repeated(A, growing), *repeated(B, flat))
    lines = terminal_summary(account, Path("results"), blocks=True)
    (place,) = [position for position, line in enumerate(lines) if line.startswith("GROWS")]
    assert lines[place].startswith(f"GROWS {A} - heap_bytes: ")
    assert [line[:14] for line in lines[place + 1 : place + 4]] == [
        "    11.1 MiB │",
        "             │",
        "    11.0 MiB │",
    ]
    assert B not in "\n".join(lines)
    plain = terminal_summary(account, Path("results"), blocks=False)
    assert "\n".join(plain).isascii()
    assert len(plain) == len(lines)


def test_a_summary_has_room_for_so_many_plots() -> None:
    cases = [f"suites/a/test_a.py::a{number}" for number in range(PLOTTED + 2)]
    lines = terminal_summary(
        ledger(*(line for case in cases for line in repeated(case, growing))), Path("there"), blocks=True
    )
    assert sum(line.startswith("GROWS") for line in lines) == PLOTTED
    assert "... and 2 more that grow, see harness report there" in lines


def test_growth_is_no_verdict() -> None:
    account = ledger(*repeated(A, growing))
    assert account.exit_status() == 0
    assert account.counts == {Outcome.PASSED: 1}
    assert account.findings == ()


@pytest.mark.parametrize("printed", ["", "what it printed"])
def test_junit_has_it_in_the_output_of_the_case(printed: str) -> None:
    lines = [{**line, "stdout": printed} if line["event"] == "finish" else line for line in repeated(A, growing)]
    data, _ = junit.serialise_junit(ledger(*lines, *repeated(B, flat)))
    suite = next(iter(xunit2.JUnitXml.fromstring(data)))
    grown, still = suite
    text = grown.system_out
    assert text.startswith(f"{printed}\nGROWS heap_bytes: " if printed else "GROWS heap_bytes: ")
    assert text.splitlines()[-3].startswith("11.1 MiB │")
    assert len(grown.result) == 0
    assert still.system_out is None


def test_junit_keeps_it_when_texts_are_cut() -> None:
    lines = [{**line, "stdout": "x" * 9999} if line["event"] == "finish" else line for line in repeated(A, growing)]
    data, _ = junit.serialise_junit(ledger(*lines), most_bytes=8_000)
    case = next(iter(next(iter(xunit2.JUnitXml.fromstring(data)))))
    assert "9999 characters cut" in case.system_out
    assert "GROWS heap_bytes" in case.system_out


def in_bytes(value: int) -> str:
    return format_quantity(value, "bytes")


def test_bars_rise_from_the_smallest_value_to_the_largest() -> None:
    assert plot([0, 1, 2, 3, 4, 5, 6, 7, 15], blocks=True, label=str, height=2) == ["15 │        █", " 0 │▁▂▃▄▅▆▇██"]
    assert plot([10, 25, 33, 26, 10], blocks=True, label=str) == ["33 │  █▁", "   │ ███", "10 │▁███▁"]


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ([], []),
        ([7], ["7 |", "  |", "7 |."]),
        ([7, 7, 7], ["7 |", "  |", "7 |..."]),
        ([0, 8], ["8 | #", "  | #", "0 |.#"]),
        ([-4, 0, 4], [" 4 |  #", "   | :#", "-4 |.##"]),
        (list(range(9)), ["8 |      .:#", "  |   .:####", "0 |.:#######"]),
    ],
)
def test_in_plain_ascii(values: list[int], lines: list[str]) -> None:
    assert plot(values, blocks=False, label=str) == lines


def test_smallest_and_largest_are_labelled_for_people() -> None:
    lines = plot([11 << 20, 13 << 20], blocks=False, label=in_bytes)
    assert [line.partition("|")[0] for line in lines] == ["13.0 MiB ", "         ", "11.0 MiB "]


def test_labels_that_would_be_the_same_give_the_difference() -> None:
    lines = plot([11 << 20, (11 << 20) + 4096], blocks=False, label=in_bytes)
    assert [line.partition("|")[0].strip() for line in lines] == ["+4.0 KiB", "", "11.0 MiB"]


def test_of_more_values_than_columns_each_column_has_its_largest() -> None:
    values = [0] * 600
    values[59], values[60], values[305] = 9, 9, 9
    marks, bottom = (line.partition("|")[2] for line in plot(values, blocks=False, label=str, height=2))
    assert len(bottom) == 60
    assert [position for position, mark in enumerate(marks) if mark == "#"] == [5, 6, 30]


@given(st.lists(st.integers(-(1 << 50), 1 << 50), min_size=1, max_size=300), st.integers(1, 80), st.integers(2, 5))
def test_every_plot_has_its_height_and_width_and_a_bar_for_each_column(
    values: list[int], width: int, height: int
) -> None:
    lines = plot(values, blocks=False, label=str, width=width, height=height)
    assert len(lines) == height
    bars = [line.partition("|")[2] for line in lines]
    assert len(bars[-1]) == min(len(values), width)
    assert " " not in bars[-1]
    assert max(map(len, bars)) == len(bars[-1])
    assert "#" in bars[0] or min(values) == max(values)
    assert "".join(lines).isascii()


@pytest.mark.parametrize(
    ("encoding", "blocks"),
    [
        ("utf-8", True),
        ("UTF-8", True),
        ("utf-16", True),
        ("ascii", False),
        ("latin-1", False),
        ("cp1252", False),
        ("no such encoding", False),
        ("", False),
        (None, False),
    ],
)
def test_which_encodings_hold_the_blocks(encoding: str | None, blocks: bool) -> None:
    assert can_encode_blocks(encoding) is blocks


GIVEN_UP = "the 10 s for leak searches are used up; --leak-search=SECONDS gives more"


def search(**changes: Any) -> Batch:
    return msgspec.convert({**build.batch("a::b", "a::c"), **changes}, Batch)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, ""),
        ({"leaks": ["a::b leaks"]}, ""),
        (
            {"failure": "--leak-search=off", "trials": 0, "tried": 0},
            "GREW executor gw0-1 by 1.0 MiB (heap_bytes) over 2 cases, not shown to be a leak: none of them ran again; "
            "--leak-search=off",
        ),
        (
            {
                "failure": GIVEN_UP,
                "unproven": ["a::b may leak: 1 more"],
                "suspicions": {"threads": 1, "of_a_new_meter": 7},
            },
            "GREW executor gw0-1 by 1 (threads), 7 (of_a_new_meter) over 2 cases, not shown to be a leak: "
            f"2 of them ran again in 0.5 s; a::b may leak: 1 more; {GIVEN_UP}",
        ),
    ],
)
def test_what_is_not_shown_has_a_line_with_the_reason(changes: dict[str, Any], line: str) -> None:
    assert unproven_leaks([search(**changes)]) == ([line] if line else [])


def test_no_line_is_longer_than_a_person_reads() -> None:
    (line,) = unproven_leaks([search(failure="x" * 5000)])
    assert len(line) <= 600


def test_what_searches_took() -> None:
    assert leak_search_cost([]) == leak_search_cost([search(trials=0)]) == ""
    assert leak_search_cost([search()]) == ", 1 leak search in 0.5 s"
    assert leak_search_cost([search(), search(seconds=9.25), search(trials=0)]) == ", 2 leak searches in 9.8 s"
