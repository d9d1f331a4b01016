"""The list of all cases, and its forms for people and programs."""

from __future__ import annotations

import ast
import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from harness.catalog import kept
from harness.core.errors import HarnessError
from harness.core.file_kind import FileKind
from harness.core.text import format_count, inert_line, markdown_row, single_line

_INDENT = "    "
_WRITTEN = "harness catalog --format json"


class CatalogError(HarnessError):
    """The cases could not be collected, or a catalogue on disk cannot be read."""


_KIND = FileKind("catalogue", f"give the output of {_WRITTEN!r}", CatalogError, 256 << 20)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One case. `line` counts from 1 and is None if pytest does not know it. `timeout` is in seconds.

    `requires` holds the arguments of each ``requires`` mark, `covers` those of all ``covers`` marks, as written. Marks
    of the module come first, marks of the case last. `extended`: the default run leaves it out. `group`: that of its
    suite (`harness.gating.profiles`); "" for none. `partial`: the entries of `covers` that name a whole upstream suite
    (``…::*``); one case covers only a part of it.
    """

    id: str
    suite: str
    file: str
    line: int | None
    description: str
    requires: tuple[dict[str, Any], ...]
    covers: tuple[Any, ...]
    timeout: Any
    extended: bool = False
    group: str = ""

    @property
    def partial(self) -> tuple[str, ...]:
        return tuple(str(row) for row in self.covers if str(row).endswith("::*"))


def collect_catalog(paths: Sequence[str]) -> list[CatalogEntry]:
    """Return every case under `paths` (folders, files or node ids), in collection order, including deselected cases.

    If nothing that pytest has read for an earlier list has changed, this is that list. Otherwise the cases' modules are
    imported into this process. If the collection fails, pytest's output goes to stderr. Raise CatalogError if the
    collection fails or finds no case.
    """
    key = kept.key_of(paths)
    entries = kept.read_list(key, list[CatalogEntry])
    if entries is None:
        with kept.recording() as sources:
            from harness.catalog.collecting import collect_entries  # it imports pytest: half of the time of a kept list

            entries = collect_entries(paths)
        kept.keep_list(key, entries, sources)
    return entries


def catalog_json(entries: Sequence[CatalogEntry]) -> str:
    """Return the entries as a JSON array of objects.

    Arguments of marks that JSON cannot represent are written as repr.
    """
    values = [{**asdict(entry), "partial": entry.partial} for entry in entries]
    return json.dumps(values, indent=2, default=repr)


class CatalogFileEntry(msgspec.Struct, frozen=True):
    """One case of a catalogue on disk: the fields that are read."""

    id: str
    requires: tuple[dict[str, Any], ...]


def read_catalog(path: Path) -> list[CatalogFileEntry]:
    """Return the cases in an output of `catalog_json`, in its order. Raise CatalogError."""
    data = _KIND.read(path)
    try:
        return msgspec.json.decode(data, type=list[CatalogFileEntry])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CatalogError(f"{str(path)!r} is not an output of {_WRITTEN!r}: {single_line(str(error))}") from None


def covered_in_part(entries: Sequence[CatalogEntry]) -> Mapping[str, int]:
    """Return the number of cases that cover a part of a whole upstream suite, by the row that names the suite."""
    return Counter(row for entry in entries for row in dict.fromkeys(entry.partial))


def catalog_rows(entries: Sequence[CatalogEntry]) -> Iterator[str]:
    """Yield one line for each case, with fields between tabs, for programs such as cut and grep."""
    for entry in entries:
        fields = (entry.id, *_details(entry), entry.description, entry.group)
        yield "\t".join(" ".join(inert_line(text).split()) for text in fields)


def catalog_lines(entries: Sequence[CatalogEntry], width: int) -> Iterator[str]:
    """Yield lines for people: the id of each case, and below the last of those that share them, what they are about.

    An id is never broken, so that it can be copied. The other lines have at most `width` columns.
    """
    wrapper = textwrap.TextWrapper(max(width, 40), initial_indent=_INDENT, subsequent_indent=_INDENT)
    for about, cases in groupby(entries, _about):
        yield from (inert_line(entry.id) for entry in cases)
        for text in about:
            yield from wrapper.wrap(inert_line(text))


def _about(entry: CatalogEntry) -> tuple[str, str]:
    requires, covers, timeout = _details(entry)
    parts = (
        f"requires {requires}" if requires else "",
        f"covers {covers}" if covers else "",
        f"timeout {timeout} s" if timeout else "",
        f"group {entry.group}" if entry.group else "",
    )
    return entry.description, "; ".join(filter(None, parts))


def _details(entry: CatalogEntry) -> tuple[str, str, str]:
    """Return the requirements, the covered rows and the time limit of a case; "" for none."""
    requires = "; ".join(", ".join(f"{name}={value}" for name, value in mark.items()) for mark in entry.requires)
    covers = ", ".join(f"{row} (in part)" if str(row) in entry.partial else str(row) for row in entry.covers)
    return requires, covers, "" if entry.timeout is None else str(entry.timeout)


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
    files = sorted(folder.glob("*.py"))
    helpers = [path for path in files if not path.name.startswith("test_") and path.name != "__init__.py"]
    lines = ["", "| helper | what it is |", "| --- | --- |"] if helpers else []
    for helper in helpers:
        lines.append(markdown_row([f"`{helper.name}`", _summary(helper)]))
        lines += [markdown_row([f"`{helper.stem}.{name}`", text]) for name, text in _offered(helper)]
    return lines


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
    marks = [
        dict.fromkeys(tuple((name, str(value)) for name, value in mark.items()) for mark in case.requires)
        for case in cases
    ]
    counts = Counter(f"{name}={value}" for case_marks in marks for mark in case_marks for name, value in mark)
    named = [f"`{text}`" for text, _ in counts.most_common(_MOST_REQUIREMENTS)]
    return ", ".join(named) + (", …" if len(counts) > _MOST_REQUIREMENTS else "")
