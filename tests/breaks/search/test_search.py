"""The search as a whole: a run without a break, and then breaks for two functions of a file of cases."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.breaks import seen
from tests.breaks.breaks import BreakError
from tests.breaks.engine import PytestRuns
from tests.breaks.search import search

FILE = "suites/rng/test_seeds.py"
FUNCTION = f"{FILE}::test_torch_seed_is_another_each_time"
#: A function that draws nothing, and so sees no break of `randn`.
OTHER = f"{FILE}::test_generator_seed_is_another_each_time"


def test_search_finds_a_break_and_tries_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(seen.FILE.parents[2])
    PytestRuns(tmp_path, ("-n0",)).ledger("run", "cpu", [FUNCTION, OTHER])
    verdicts = search.verdicts_of([tmp_path / "run"])
    run = functools.partial(search.search, "cpu", verdicts, most=30, limit=120.0, seconds=600.0)
    found = run({FUNCTION}, tmp_path / "found")
    assert [each.function for each in found] == [FUNCTION]
    assert found[0].name
    assert found[0].tries["checked"] == 1

    given = {FUNCTION: found[0].name, OTHER: "operator randn:last"}
    again = run({FUNCTION, OTHER}, tmp_path / "again", given=given)
    assert {each.function: (each.name, dict(each.tries)) for each in again} == {
        FUNCTION: (found[0].name, {"checked": 1}),
        OTHER: ("", {"green": 1}),
    }


def test_what_is_no_run_and_functions_that_did_not_pass_are_named(tmp_path: Path) -> None:
    with pytest.raises(BreakError, match="is no run directory"):
        search.verdicts_of([tmp_path])
    with pytest.raises(BreakError, match="no case of these functions passed"):
        search.search("cpu", [], {FUNCTION}, tmp_path, most=1, limit=1.0, seconds=1.0)


def test_cases_of_a_function_that_are_tried() -> None:
    cases = [(float(number), f"case{number}") for number in range(5)]
    assert search.some_of(cases) == ["case0", "case2", "case4"]
    assert search.some_of(cases[:1]) == ["case0"]
