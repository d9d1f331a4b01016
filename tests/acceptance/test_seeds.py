"""Leaks, contaminations and innocent cases, all of them, in orders drawn by seed.

A run takes minutes, so there is none unless ``ACCEPTANCE_SEEDS`` gives the number of seeds to try, counted from 1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import pytest

from tests.acceptance import project as projects
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal, expected
from tests.acceptance.project import Project, Result

SEEDS = range(1, int(os.environ.get("ACCEPTANCE_SEEDS", "0")) + 1)
#: Seconds per run, on a machine that is also used otherwise.
PATIENCE = 3600.0

_SHARED = "suites/contaminations/test_shared_fixtures.py"
_OF_CLASS = f"{_SHARED}::TestHeld::"
_WITH_LIMIT = (f"{_SHARED}::test_with_limit", f"{_SHARED}::test_last_of_the_module")
_FORGETFUL = "contaminated: the class fixture 'forgetful' did not restore"
_LIMIT = "contaminated: the module fixture 'limit' did not restore"


def of_shared_fixtures(order: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the possible verdicts of cases with a shared fixture: its last user before the tear-down is blamed.

    In its own process a case is the last. So a case that does not use the fixture but runs when it is torn down passes
    alone, and is flaky.
    """
    found: dict[str, Sequence[str]] = {}
    limited = False
    for case, following in zip(order, [*order[1:], ""], strict=True):
        if not case.startswith(_SHARED):
            continue
        limited = limited or case in _WITH_LIMIT
        last_of_module = not following.startswith(_SHARED)
        if case.startswith(_OF_CLASS):
            blamed = not following.startswith(_OF_CLASS)
            found[case] = (_FORGETFUL,) if blamed else ("flaky",) if limited and last_of_module else ("passed",)
            limited = limited and not blamed  # the process has ended with the class's fixture
        elif case in _WITH_LIMIT:
            found[case] = (_LIMIT,) if last_of_module else ("passed",)
        else:
            found[case] = ("flaky",) if limited and last_of_module else ("passed",)
        limited = limited and not last_of_module
    return found


def texts(project: Project) -> dict[str, Sequence[str]]:
    """Return the expectations in the suites' tables, as ``outcome: part of the message``."""
    return {case: (": ".join(filter(None, said)),) for case, said in expected(project, "batch").cases.items()}


def compare_verdicts(result: Result, wanted: Mapping[str, Sequence[str]]) -> None:
    """Check that each case has one of its expected verdicts, ``outcome: part of the message``."""
    found = {verdict.case: (verdict.outcome.value, verdict.message) for verdict in result.ledger.verdicts}
    wrong = [
        f"{case}: expected {wanted.get(case)}, found {found.get(case)}"
        for case in dict.fromkeys([*wanted, *found])
        if case not in found or not any(_fits(*found[case], text) for text in wanted.get(case, ()))
    ]
    assert not wrong, "\n".join(wrong) + f"\n{result.tail()}"
    check_journal(result)


def _fits(outcome: str, message: str, text: str) -> bool:
    wanted, _, part = text.partition(": ")
    return outcome == wanted and part in message


_BETWEEN, _FIRST, _LAST = f"{_SHARED}::test_between", f"{_OF_CLASS}test_first", f"{_OF_CLASS}test_last"
_ONE, _OTHER = _WITH_LIMIT


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        ([_FIRST, _LAST, "x"], ["passed", _FORGETFUL]),
        ([_FIRST, "x", _LAST], [_FORGETFUL, _FORGETFUL]),
        ([_ONE, "x", _OTHER], [_LIMIT, _LIMIT]),
        ([_ONE, _OTHER, _BETWEEN], ["passed", "passed", "flaky"]),
        ([_ONE, _BETWEEN, _OTHER], ["passed", "passed", _LIMIT]),
        ([_ONE, _FIRST, _BETWEEN], ["passed", _FORGETFUL, "passed"]),
        ([_BETWEEN, "x", _ONE], ["passed", _LIMIT]),
    ],
)
def test_who_is_to_be_blamed_for_a_shared_fixture(order: list[str], wanted: list[str]) -> None:
    assert list(of_shared_fixtures(order).values()) == [(text,) for text in wanted]


@pytest.mark.parametrize("seed", SEEDS)
def test_all_verdicts_are_the_same_in_any_order(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(projects, "PATIENCE", PATIENCE)
    project = make_project("leaks", "contaminations", "innocents")
    result = project.run("--isolation=batch", "-n0", "--case-timeout=300", "--shuffle", f"--seed={seed}")
    order = list(dict.fromkeys(line["case"] for line in result.lines if line["event"] == "start"))
    compare_verdicts(result, {**texts(project), **of_shared_fixtures(order)})


@pytest.mark.parametrize("seed", SEEDS)
def test_all_verdicts_of_the_full_check_are_the_same_in_any_order(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(projects, "PATIENCE", PATIENCE)
    project = make_project("small_leaks")
    result = project.run(
        "--isolation=batch", "-n0", "--leak-check=full", "--case-timeout=300", "--shuffle", f"--seed={seed}"
    )
    compare_verdicts(result, texts(project))
