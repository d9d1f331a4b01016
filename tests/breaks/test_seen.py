"""The table of functions that were seen red."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.breaks import seen
from tests.breaks.breaks import BreakError

_FUNCTIONS = ("suites/a/test_x.py::test_one", "suites/a/test_x.py::test_two", "suites/b/test_y.py::TestZ::test_three")


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
    (tmp_path / "seen.txt").write_text(seen.seen_text(known))
    assert seen.read_seen(tmp_path / "seen.txt") == known


def test_the_page_names_what_was_never_red() -> None:
    lines = seen.seen_page({_FUNCTIONS[0]: "old"}, _FUNCTIONS).splitlines()
    assert [line.split() for line in lines[:2]] == [["suites/a", "1", "of", "2"], ["suites/b", "0", "of", "1"]]
    assert lines[2:] == [
        "1 of 3 functions were seen red by a break",
        f"never: {_FUNCTIONS[1]}",
        f"never: {_FUNCTIONS[2]}",
    ]


@pytest.mark.parametrize("content", ["", "[]", '{"breaks": [{"name": "x"}]}', '{"breaks": 1}'])
def test_a_wrong_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "breaks.json").write_text(content)
    with pytest.raises(BreakError, match="expected the record of a run of breaks"):
        list(seen.noticed(tmp_path))


@pytest.mark.parametrize("line", ["suites/a.py::test_x", "test_x broken"])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "seen.txt").write_text(f"suites/a.py::test_b x\n{line}\n")
    with pytest.raises(BreakError, match=r"seen\.txt:2: "):
        seen.read_seen(tmp_path / "seen.txt")


def test_the_files_of_the_table_exist() -> None:
    for function in seen.read_seen(seen.FILE):
        assert (seen.FILE.parents[2] / function.partition("::")[0]).is_file(), f"{function} is gone: {seen.FILE}"
