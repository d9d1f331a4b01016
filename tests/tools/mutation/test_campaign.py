"""A run of breaks with plain ledgers: caught faults, missed ones, and those that could not be tried."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.core.outcome import Outcome
from harness.journal.ledger import Ledger
from harness.tools.mutation.breaks import Break
from harness.tools.mutation.campaign import CLEAN, run_mutations
from tests.reporting import build

CASE = "suites/streams/test_pace.py::a"


def ledger(outcome: Outcome | None, **changes: object) -> Ledger:
    """Return the ledger of a run of one case, which has not run if it has no outcome."""
    lines = [build.start(CASE), build.finish(CASE, outcome, **changes)] if outcome else []
    return build.ledger(build.run(devices=["SOFT-0"]), build.collected(CASE), *lines)


@pytest.mark.parametrize(
    ("with_it", "missed", "unusable"),
    [
        (ledger(Outcome.FAILED, struck={"slow": 3}), (), {}),
        (ledger(Outcome.CRASHED), (), {}),  # its process could not report what struck
        (ledger(Outcome.PASSED, struck={"slow": 3}), ("soft_slow",), {}),
        (ledger(Outcome.PASSED), (), {"soft_slow": "the fault never occurred"}),
        (
            ledger(Outcome.SKIPPED, struck={"slow": 3}),
            (),
            {"soft_slow": "none of its cases ran with it: see the output of its run"},
        ),
        (ledger(None), (), {"soft_slow": "none of its cases ran with it: see the output of its run"}),
    ],
    ids=["caught", "caught_by_a_crash", "missed", "never_occurred", "skipped", "nothing_ran"],
)
def test_a_fault_that_occurred_and_reddened_nothing_is_missed(
    with_it: Ledger, missed: tuple[str, ...], unusable: dict[str, str]
) -> None:
    fault = Break("soft_slow", "takes long", ("suites/streams/test_pace.py",), device="soft", fault="slow")

    def run(name: str, device: str, cases: Sequence[str], entry: Break | None) -> Ledger:
        assert (name, device, tuple(cases)) == (entry.name if entry else f"{CLEAN}-soft", "soft", fault.suites)
        return with_it if entry else ledger(Outcome.PASSED)

    table = run_mutations([fault], run, {}, jobs=1, log=lambda _: None)
    assert table.missed == missed
    assert dict(table.unusable) == unusable


@pytest.mark.parametrize(
    ("message", "caught", "stumbled"),
    [
        ("AssertionError: 2 != 1", {CASE: "failed"}, {}),
        ("RuntimeError: the seed is negative", {CASE: "failed"}, {}),
        ("TypeError: wanted a tensor", {}, {CASE: "TypeError: wanted a tensor"}),
    ],
)
def test_an_error_of_the_break_itself_is_no_catch(
    message: str, caught: dict[str, str], stumbled: dict[str, str]
) -> None:
    broken = Break("off", "is off", ("suites/streams/test_pace.py",), apply=lambda: None, shows=lambda: 1)
    with_it = ledger(Outcome.FAILED, message=message)
    table = run_mutations(
        [broken], lambda *to: with_it if to[3] else ledger(Outcome.PASSED), {}, jobs=1, log=lambda _: None
    )
    (row,) = table.rows
    assert (dict(row.caught_by), dict(row.stumbled)) == (caught, stumbled)
    assert table.missed == (() if caught else ("off",))
