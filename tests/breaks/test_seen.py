"""The table of functions that were seen red, and that of reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcome import Outcome
from tests.breaks import seen
from tests.breaks.breaks import BreakError
from tests.reporting import build

_FUNCTIONS = ("suites/a/test_x.py::test_one", "suites/a/test_x.py::test_two", "suites/b/test_y.py::TestZ::test_three")
#: What to do about a function without a line.
_NEXT = (
    "run 'python -m tests.breaks search RUN --function FUNCTION' with the run directory of a run that has them (see "
    "docs/mutation.md), and look at what it breaks"
)


def _record(folder: Path, **noticed_by: list[str]) -> Path:
    rows = [{"name": name, "noticed_by": dict.fromkeys(cases, "failed")} for name, cases in noticed_by.items()]
    (folder / "breaks.json").write_text(json.dumps({"breaks": rows}))
    return folder


def test_results_are_added_and_a_function_keeps_its_break(tmp_path: Path) -> None:
    folder = _record(
        tmp_path, new=[f"{_FUNCTIONS[0]}[1]", f"{_FUNCTIONS[2]}[a[b]]"], gone=["suites/c/test_g.py::test_g"]
    )
    known = seen.merged({_FUNCTIONS[0]: "old"}, seen.noticed(folder), _FUNCTIONS)
    assert known == {_FUNCTIONS[0]: "old", _FUNCTIONS[2]: "new"}
    (tmp_path / "seen.txt").write_text(seen.table_text(known))
    assert seen.read_table(tmp_path / "seen.txt") == known


def test_runs_without_a_break_give_reasons_and_bugs_of_torch() -> None:
    ended = {"1": "gated", "2": "gated", "3": "waived", "4": "waived", "5": "passed", "6": "skipped"}
    cases = {
        "1": "s/t.py::test_gated[a]",
        "2": "s/t.py::test_partly[a]",
        "3": "s/t.py::test_wrong",
        "4": "s/t.py::test_right[a]",
        "5": "s/t.py::test_right[b]",
        "6": "s/t.py::test_skipped",
    }
    lines = [build.finish(case, outcome=Outcome(ended[key]), message=f"reason {key}") for key, case in cases.items()]
    lines.append(build.finish("s/t.py::test_partly[b]", outcome=Outcome.PASSED))
    verdicts = build.ledger(build.run(), build.collected(*cases.values(), "s/t.py::test_partly[b]"), *lines).verdicts
    assert seen.reasons_of_gates(verdicts) == {
        "s/t.py::test_gated": "not run: reason 1",
        "s/t.py::test_skipped": "not run: reason 6",
    }
    assert list(seen.red_by_torch(verdicts)) == [("s/t.py::test_wrong", "torch itself")]


def test_the_page_names_what_was_never_red() -> None:
    text = seen.seen_page({_FUNCTIONS[0]: "old"}, {_FUNCTIONS[1]: "not run: no GPU"}, _FUNCTIONS)
    lines = [line.split() for line in text.splitlines()]
    assert lines[:2] == [["a", "1", "of", "2"], ["b", "0", "of", "1"]]
    assert text.splitlines()[2:] == [
        "1 of 3 functions were seen red",
        f"never: {_FUNCTIONS[1]} not run: no GPU",
        f"never: {_FUNCTIONS[2]}",
    ]


def test_the_table_of_the_docs_is_replaced() -> None:
    old = seen.page_table({}, {}, _FUNCTIONS)
    new = seen.page_table(
        {_FUNCTIONS[0]}, {_FUNCTIONS[1]: "not run: no GPU", _FUNCTIONS[2]: "open: 3 green"}, _FUNCTIONS
    )
    assert new.splitlines()[2:] == ["| `a` | 2 | 1 | 1 | 0 |", "| `b` | 1 | 0 | 0 | 1 |", "| total | 3 | 1 | 1 | 1 |"]
    assert seen.with_table(f"before\n\n{old}\nafter\n", new) == f"before\n\n{new}\nafter\n"
    with pytest.raises(BreakError, match="expected a table"):
        seen.with_table("nothing\n", new)


@pytest.mark.parametrize("content", ["", "[]", '{"breaks": [{"name": "x"}]}', '{"breaks": 1}'])
def test_a_wrong_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "breaks.json").write_text(content)
    with pytest.raises(BreakError, match="expected the record of a run of breaks"):
        list(seen.noticed(tmp_path))


@pytest.mark.parametrize("line", ["suites/a.py::test_x", "test_x broken"])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "seen.txt").write_text(f"suites/a.py::test_b x\n{line}\n")
    with pytest.raises(BreakError, match=r"seen\.txt:2: "):
        seen.read_table(tmp_path / "seen.txt")


@pytest.fixture
def functions(cases: list[dict[str, Any]]) -> set[str]:
    return {seen.function_of(case["id"]) for case in cases}


def test_every_function_was_seen_red_or_has_a_reason(functions: set[str]) -> None:
    known, reasons = seen.read_table(seen.FILE), seen.read_table(seen.REASONS)
    new = sorted(functions.difference(known, reasons))
    assert not new, f"never seen red: {', '.join(new)}: {_NEXT}"
    gone = sorted((known.keys() | reasons.keys()) - functions)
    assert not gone, f"gone: {', '.join(gone)}: run 'python -m tests.breaks seen --update'"
    both = sorted(known.keys() & reasons.keys())
    assert not both, f"seen red, and with a reason why not: {', '.join(both)}: remove the lines of {seen.REASONS.name}"


def test_the_docs_have_the_numbers_of_the_tables(functions: set[str]) -> None:
    table = seen.page_table(seen.read_table(seen.FILE), seen.read_table(seen.REASONS), functions)
    assert table in seen.PAGE.read_text(encoding="utf-8"), "run 'python -m tests.breaks seen --update'"
