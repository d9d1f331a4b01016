"""The suites as a page: the test files and helpers of each, with what their docstrings say."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness.reporting.catalog import Entry
from harness.text import counted

_MOST_REQUIREMENTS = 4
_HEADER = """\
# Suites

What is checked, and where. Do not edit this page. It is generated from the docstrings of the suites:
`harness catalog --format markdown > docs/suites.md`. `harness catalog suites/NAME` lists each case and what it checks.

Requirements are those of any case of the file. A reference is a row of the inventory of behaviours that cases cover.
"""


def page(entries: Sequence[Entry], root: Path) -> str:
    """The page of these cases. `root`: the folder that their files are relative to."""
    by_suite: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        by_suite.setdefault(entry.suite, {}).setdefault(entry.file, []).append(entry)
    lines = [_HEADER, f"{counted(len(entries), 'case')} in {counted(len(by_suite), 'suite')}.", ""]
    lines += [
        f"- [{suite}](#{suite}): {counted(sum(map(len, files.values())), 'case')}" for suite, files in by_suite.items()
    ]
    for suite, files in by_suite.items():
        folder = (root / next(iter(files))).parent
        lines += ["", f"## {suite}", "", _summary(folder / "__init__.py"), ""]
        lines += ["| file | cases | about | requires | references |", "| --- | --- | --- | --- | --- |"]
        for file, cases in files.items():
            references = len({str(row) for case in cases for row in case.covers})
            cells = (f"`{Path(file).name}`", str(len(cases)), _summary(root / file), _requirements(cases))
            lines.append(_row(*cells, str(references or "")))
        helpers = [each for each in sorted(folder.glob("*.py")) if _is_helper(each)]
        if helpers:
            lines += ["", "| helper | what it is |", "| --- | --- |"]
            lines += [_row(f"`{each.name}`", _summary(each)) for each in helpers]
    return "\n".join(lines) + "\n"


def _is_helper(path: Path) -> bool:
    return not path.name.startswith("test_") and path.name != "__init__.py"


def _summary(path: Path) -> str:
    """The first paragraph of a file's docstring; empty without one."""
    if not path.is_file():
        return ""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _requirements(cases: Sequence[Entry]) -> str:
    """What cases of a file require, the commonest first."""
    marks = [dict.fromkeys(tuple(mark.items()) for mark in _plain(case)) for case in cases]
    found = Counter(f"{name}={value}" for each in marks for mark in each for name, value in mark)
    named = [f"`{text}`" for text, _ in found.most_common(_MOST_REQUIREMENTS)]
    return ", ".join(named) + (", …" if len(found) > _MOST_REQUIREMENTS else "")


def _plain(case: Entry) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in mark.items()} for mark in case.requires]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
