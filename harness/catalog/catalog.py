"""The list of all cases. pytest collects the cases, and runs none."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

import pytest

from harness.core.caseid import suite_of
from harness.core.errors import HarnessError
from harness.core.text import escape_invalid_xml


class CatalogError(HarnessError):
    """The cases could not be collected."""


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

    The cases' modules are imported into this process. If the collection fails, pytest's output goes to stderr. Raise
    CatalogError if the collection fails or finds no case.
    """
    collector = _Collector()
    # No assertion rewriting: no case runs, and pytest could only rewrite modules that are not yet imported.
    arguments = ["--collect-only", "-qq", "--assert=plain", "-p", "no:cacheprovider", *paths]
    where = ", ".join(repr(path) for path in paths)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="backslashreplace") as output:
        with _stdout_into(output):
            status = pytest.main(arguments, plugins=[collector])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            output.seek(0)
            sys.stderr.write(output.read())
            code = int(status)
            raise CatalogError(f"pytest could not collect {where} (exit status {code}): see its output above")
    if not collector.entries:
        raise CatalogError(f"there are no cases in {where}: name a folder with test_*.py files")
    return collector.entries


def catalog_json(entries: Sequence[CatalogEntry]) -> str:
    """Return the entries as a JSON array of objects.

    Arguments of marks that JSON cannot represent are written as repr.
    """
    values = [{**asdict(entry), "partial": entry.partial} for entry in entries]
    return json.dumps(values, indent=2, default=repr)


def covered_in_part(entries: Sequence[CatalogEntry]) -> Mapping[str, int]:
    """Return the number of cases that cover a part of a whole upstream suite, by the row that names the suite."""
    return Counter(row for entry in entries for row in dict.fromkeys(entry.partial))


class _Collector:
    def __init__(self) -> None:
        self.entries: list[CatalogEntry] = []

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        file, line, _ = item.location
        timeout = item.get_closest_marker("timeout")
        self.entries.append(
            CatalogEntry(
                id=escape_invalid_xml(item.nodeid),
                suite=escape_invalid_xml(suite_of(item.nodeid)),
                file=escape_invalid_xml(str(file)),
                line=None if line is None else line + 1,
                description=first_paragraph(getattr(getattr(item, "obj", None), "__doc__", None)),
                requires=tuple(dict(mark.kwargs) for mark in _outermost_first(item, "requires")),
                covers=tuple(argument for mark in _outermost_first(item, "covers") for argument in mark.args),
                timeout=timeout.args[0] if timeout is not None and timeout.args else None,
                extended=item.get_closest_marker("extended") is not None,
            )
        )


def _outermost_first(item: pytest.Item, name: str) -> list[pytest.Mark]:
    return list(item.iter_markers(name))[::-1]


def first_paragraph(docstring: str | None) -> str:
    """Return the first paragraph of a docstring on one line, or "" if there is none."""
    if not isinstance(docstring, str):
        return ""
    paragraph = re.split(r"\n\s*\n", inspect.cleandoc(docstring).strip(), maxsplit=1)[0]
    return escape_invalid_xml(" ".join(paragraph.split()))


@contextlib.contextmanager
def _stdout_into(output: IO[str]) -> Iterator[None]:
    """Redirect stdout to a file, including what C code and child processes write to descriptor 1."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(output.fileno(), 1)
    try:
        with contextlib.redirect_stdout(output):
            yield
    finally:
        output.flush()
        os.dup2(kept, 1)
        os.close(kept)
