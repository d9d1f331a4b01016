"""The text about the end of an executor."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.core.text import format_exit_code
from harness.protocol import endings
from harness.protocol.endings import HARNESS_EXITS, format_executor_exit

STATUSES = [value for name, value in vars(endings).items() if name.startswith("EXIT_")]


def test_each_status_of_the_harness_has_a_reason_and_is_on_the_page_about_verdicts() -> None:
    page = (Path(__file__).parents[2] / "docs" / "verdicts.md").read_text()
    assert {*HARNESS_EXITS} == {*STATUSES, -endings.WATCHDOG_SIGNAL}
    assert [
        status for status, why in HARNESS_EXITS.items() if f"| `{format_exit_code(status)}` | {why} |" not in page
    ] == []


@pytest.mark.parametrize("status", STATUSES)
def test_a_case_that_ends_its_process_with_such_a_status_is_not_excused(status: int) -> None:
    assert format_executor_exit(status, Outcome.LOST) == f"exit status {status} ({HARNESS_EXITS[status]})"
    assert format_executor_exit(status, Outcome.CRASHED) == f"exit status {status}"


def test_other_ends() -> None:
    assert format_executor_exit(3, Outcome.LOST) == "exit status 3"
    assert format_executor_exit(-signal.SIGSEGV, Outcome.LOST) == "SIGSEGV"
