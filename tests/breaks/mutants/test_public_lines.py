"""The lines of public functions that count, and those that are reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.breaks.mutants.public_lines import format_ranges, reach_of
from tests.cli.commands import command

SOURCE = """\
LIMIT = 3


def public(x):
    \"\"\"A text is no line.\"\"\"
    def inner(y):
        return y + 1
    return [inner(each)
            for each in x]


def _private():
    return 1


class Public:
    size = 1

    def __enter__(self):
        return self

    def _hidden(self):
        return 2


class _Private:
    def method(self):
        return 3
"""


@pytest.mark.parametrize(
    ("ran", "reached", "missed"),
    [
        pytest.param(set(), 0, {"public": [6, 7, 8, 9], "Public.__enter__": [20]}, id="nothing"),
        pytest.param({4, 6, 8}, 2, {"public": [7, 9], "Public.__enter__": [20]}, id="a_part"),
        pytest.param({13, 23, 28}, 0, {"public": [6, 7, 8, 9], "Public.__enter__": [20]}, id="private_ones"),
        pytest.param(set(range(40)), 5, {"public": [], "Public.__enter__": []}, id="all"),
    ],
)
def test_lines_of_public_functions_count(ran: set[int], reached: int, missed: dict[str, list[int]]) -> None:
    found = reach_of("mine/module.py", SOURCE, ran)
    assert (found.path, found.lines, found.reached) == ("mine/module.py", 5, reached)
    assert {function.name: function.missed for function in found.functions} == missed


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([3, 4], "3-4"), ([3, 5, 6, 7, 9], "3, 5-7, 9")],
)
def test_numbers_in_a_row_are_a_range(numbers: list[int], text: str) -> None:
    assert format_ranges(numbers) == text


def test_the_command_shows_each_module_and_what_is_missed(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "module.py").write_text(SOURCE)
    for name, lines in {"cpu": [4, 6, 8], "cuda": [20]}.items():
        (tmp_path / name / "lines").mkdir(parents=True)
        record = {"case": f"a.py::{name}", "seconds": 0.1, "lines": {"mine/module.py": lines}, "arguments": {}}
        (tmp_path / name / "lines" / "1.ndjson").write_text(json.dumps(record) + "\n")
    environ = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"}
    arguments = ("reach", "cpu", "cuda", "--module", "mine/*.py", "--functions")

    done = command("tests.breaks", *arguments, cwd=tmp_path, environ=environ)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "mine/module.py      3 of     5 lines   60%",
        "    public: 7, 9",
        "total               3 of     5 lines   60%",
    ]
    unknown = command("tests.breaks", "reach", "cpu", "--module", "mine/other*.py", cwd=tmp_path, environ=environ)
    assert unknown.returncode == 4
    assert "--module='mine/other*.py': no file below" in unknown.stderr
    no_case = command("tests.breaks", "record", "suites/nowhere.py", cwd=tmp_path, environ=environ)
    assert no_case.returncode == 4
    assert "'suites/nowhere.py': No such file or directory" in no_case.stderr
    missing = command("tests.breaks", "reach", "nowhere", cwd=tmp_path, environ=environ)
    assert missing.returncode == 4
    assert "nowhere" in missing.stderr
