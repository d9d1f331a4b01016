"""Memory over repetitions, in each report that contains it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from junitparser import xunit2

from harness.core.outcome import Outcome
from harness.journal.ledger import Ledger
from harness.reporting import junit
from harness.reporting.repetitions import Repeated, repetitions
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
