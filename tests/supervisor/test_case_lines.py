"""The options of a reproduce line that represent the rules of the run."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from harness.core.outcome import Outcome, Ruling
from harness.gating.waivers import Waiver
from harness.supervisor.attempt import CaseHistory
from harness.supervisor.case_reports import rule_options
from tests.supervisor.fakes import case


def waiver(source: str) -> Waiver:
    return Waiver("*", {}, (Outcome.FAILED,), "known", "https://example.org/1", "", date.max, source)


@pytest.mark.parametrize(
    ("sources", "ruling", "options"),
    [
        ((), None, []),
        ((), "profile nightly", ["--profile=nightly"]),
        ((), "profile my profiles/a.yaml", ["--profile=my profiles/a.yaml"]),
        ((), "repeat 20", ["--repeat=20"]),
        ((), "--verify", ["--verify=3"]),
        (("known.yaml:2", "known.yaml:9"), "known.yaml:2", ["--waivers=known.yaml"]),
        (("suites/a/test_a.py:4",), "suites/a/test_a.py:4", []),
        (("a b.yaml:1", "suites/a/test_a.py:4"), None, ["--waivers=a b.yaml"]),
    ],
)
def test_rules_are_options_of_the_reproduce_line(
    sources: tuple[str, ...], ruling: str | None, options: list[str]
) -> None:
    history = CaseHistory(replace(case(), waivers=tuple(map(waiver, sources))))
    history.ruling = None if ruling is None else Ruling(Outcome.FAILED, "why", ruling)
    assert rule_options(history, 3) == options
