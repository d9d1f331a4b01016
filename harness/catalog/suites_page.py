"""The page of the suites: the test files and helpers of each suite, from their docstrings."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.catalog.catalog import CatalogEntry
from harness.core.text import format_count, markdown_row

_MOST_REQUIREMENTS = 4
_HEADER = """\
# Suites

What is checked, and where, from the docstrings of the suites. `harness catalog --format markdown` prints this page, and
`harness catalog suites/NAME` lists each case and what it checks.

Requirements are those of any case of the file. A reference is a row of the inventory of behaviours that cases cover.
Below the files of a suite are its helpers, with what they offer to cases: functions, classes, and
reasons (in quotes) that cases give.
"""


def suites_page(entries: Sequence[CatalogEntry], root: Path) -> str:
    """Return the page of these cases. `root`: the folder that their files are relative to."""
    by_suite: dict[str, dict[str, list[CatalogEntry]]] = {}
    for entry in entries:
        by_suite.setdefault(entry.suite, {}).setdefault(entry.file, []).append(entry)
    lines = [_HEADER, f"{format_count(len(entries), 'case')} in {format_count(len(by_suite), 'suite')}.", ""]
    lines += [
        f"- [{suite}](#{suite}): {format_count(sum(map(len, files.values())), 'case')}{_group(files)}"
        for suite, files in by_suite.items()
    ]
    for suite, files in by_suite.items():
        folder = (root / next(iter(files))).parent
        lines += ["", f"## {suite}", "", _summary(folder / "__init__.py"), ""]
        lines += ["| file | cases | about | requires | references |", "| --- | --- | --- | --- | --- |"]
        for file, cases in files.items():
            references = len({str(row) for case in cases for row in case.covers})
            cells = (f"`{Path(file).name}`", str(len(cases)), _summary(root / file), _requirements(cases))
            lines.append(markdown_row([*cells, str(references or "")]))
        lines += _helpers(folder)
    shared = {(root / file).parent.parent for files in by_suite.values() for file in files}
    for folder in sorted(shared):
        if folder.name == "suites" and (table := _helpers(folder)):
            lines += ["", "## Helpers of several suites", *table]
    return "\n".join(lines) + "\n"


def _group(files: Mapping[str, Sequence[CatalogEntry]]) -> str:
    (group,) = {case.group for cases in files.values() for case in cases}
    return f", group {group}" if group else ""


def _helpers(folder: Path) -> list[str]:
    """Return the table of the helpers in a folder; empty if there are none."""
    helpers = [path for path in sorted(folder.glob("*.py")) if _is_helper(path)]
    lines = ["", "| helper | what it is |", "| --- | --- |"] if helpers else []
    for helper in helpers:
        lines.append(markdown_row([f"`{helper.name}`", _summary(helper)]))
        lines += [markdown_row([f"`{helper.stem}.{name}`", text]) for name, text in _offered(helper)]
    return lines


def _is_helper(path: Path) -> bool:
    return not path.name.startswith("test_") and path.name != "__init__.py"


def _offered(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the functions and classes of a helper with their docstrings, and its sentences, in the order of the file.

    A sentence is a text with a space, such as the reason why a case shows nothing. Names with a leading ``_`` are left
    out.
    """
    if path.name.startswith("_"):
        return
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                text = _first_paragraph(ast.get_docstring(node))
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(said)))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(said)))
            ) if " " in said and "\n" not in said:
                text = f"“{said}”"
            case _:
                continue
        if not name.startswith("_") and text:
            yield name, text


def _summary(path: Path) -> str:
    """Return the first paragraph of a file's docstring; empty without one."""
    if not path.is_file():
        return ""
    return _first_paragraph(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))


def _first_paragraph(docstring: str | None) -> str:
    return " ".join((docstring or "").partition("\n\n")[0].split())


def _requirements(cases: Sequence[CatalogEntry]) -> str:
    """Return the requirements of the cases of a file, the most common first."""
    marks = [dict.fromkeys(tuple(mark.items()) for mark in _marks_as_text(case)) for case in cases]
    counts = Counter(f"{name}={value}" for case_marks in marks for mark in case_marks for name, value in mark)
    named = [f"`{text}`" for text, _ in counts.most_common(_MOST_REQUIREMENTS)]
    return ", ".join(named) + (", …" if len(counts) > _MOST_REQUIREMENTS else "")


def _marks_as_text(case: CatalogEntry) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in mark.items()} for mark in case.requires]
