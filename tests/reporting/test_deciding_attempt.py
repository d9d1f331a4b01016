"""The live report of a case and every report of its journal explain its verdict by the same attempt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from harness.core.outcome import Outcome, Ruling
from harness.journal.ledger import Ledger
from harness.reporting import junit, report_json, terminal
from harness.supervisor.attempt import CaseHistory
from tests.reporting import build
from tests.supervisor.fakes import attempt, case

CASE = "suites/a/test_a.py::test_a"
#: Outcomes of single attempts, and those that a rule may give.
ATTEMPTS = [each for each in Outcome if each not in (Outcome.FLAKY, Outcome.WAIVED, Outcome.UNEXPECTED_PASS)]
RULINGS = [Outcome.WAIVED, Outcome.UNEXPECTED_PASS, Outcome.FAILED, Outcome.SKIPPED]
Tried = tuple[Outcome, bool]


def live(tried: Sequence[Tried], ruling: Outcome | None) -> CaseHistory:
    history = CaseHistory(case())
    for number, (outcome, final) in enumerate(tried, start=1):
        history.add(attempt(outcome, number), final=final)
    if ruling is not None:
        history.ruling = Ruling(ruling, "a rule", "a file")
    return history


def recorded(tried: Sequence[Tried], ruling: Outcome | None) -> Ledger:
    lines = []
    for number, (outcome, final) in enumerate(tried, start=1):
        last = number == len(tried)
        ruled = {"ruling": build.ruling(ruling)} if ruling is not None and last else {}
        lines += [
            build.start(CASE, attempt=number, executor=f"e{number}", t=float(number)),
            build.finish(
                CASE,
                outcome,
                attempt=number,
                executor=f"e{number}",
                final=final,
                t=number + 0.5,
                message=f"why {number}",
                **ruled,
            ),
        ]
    return build.ledger(build.run(), build.collected(CASE), *lines, build.end())


@given(
    st.lists(st.tuples(st.sampled_from(ATTEMPTS), st.booleans()), max_size=4),
    st.sampled_from(ATTEMPTS),
    st.sampled_from([None, *RULINGS]),
)
def test_all_reports_name_the_same_attempt(before: list[Tried], last: Outcome, ruling: Outcome | None) -> None:
    """Any attempts, of which the last one is final: repetitions, retries, stops, and rules of the run."""
    tried = [*before, (last, True)]
    ledger = recorded(tried, ruling)
    (verdict,) = ledger.verdicts
    assert verdict.decided is not None
    shown = live(tried, ruling).decisive.number
    assert verdict.decided.attempt == shown
    text = "\n".join(terminal.terminal_summary(ledger, Path("r"), blocks=False))
    if verdict.outcome.is_red and verdict.outcome is not Outcome.NOT_RUN:
        assert f"executor e{shown}" in text
    root = ElementTree.fromstring(junit.serialise_junit(ledger)[0])
    for tag in ("failure", "error"):
        for result in root.findall(f".//testcase/{tag}"):
            assert f"attempt {shown} (" in (result.text or "")
    (row,) = json.loads(b"".join(report_json.report_json_chunks(ledger, None)))["cases"]
    if ruling is None and verdict.outcome is not Outcome.FLAKY:
        assert row["message"] == verdict.message == f"why {shown}"
