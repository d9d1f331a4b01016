"""Collects the list of all cases with pytest, which runs none."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

import pytest

from harness.catalog.catalog import CatalogEntry, CatalogError
from harness.core.caseid import suite_of
from harness.core.garbage import no_automatic_collection
from harness.core.text import escape_invalid_xml


def collect_entries(paths: Sequence[str]) -> list[CatalogEntry]:
    """Return every case under `paths` (folders, files or node ids), in collection order, including deselected cases.

    The cases' modules are imported into this process. If the collection fails, pytest's output goes to stderr. Raise
    CatalogError if the collection fails or finds no case.
    """
    collector = _Collector()
    # No assertion rewriting: no case runs, and pytest could only rewrite modules that are not yet imported.
    arguments = ["--collect-only", "-qq", "--assert=plain", "-p", "no:cacheprovider", *paths]
    where = ", ".join(repr(path) for path in paths)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="backslashreplace") as output:
        with _stdout_into(output), no_automatic_collection():
            status = pytest.main(arguments, plugins=[collector])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            output.seek(0)
            sys.stderr.write(output.read())
            code = int(status)
            raise CatalogError(f"pytest could not collect {where} (exit status {code}): see its output above")
    if not collector.entries:
        raise CatalogError(f"there are no cases in {where}: name a folder with test_*.py files")
    return collector.entries


class _Collector:
    def __init__(self) -> None:
        self.entries: list[CatalogEntry] = []
        self._functions: dict[object, tuple[str, int | None, str]] = {}

    def pytest_collection_finish(self) -> None:
        gc.freeze()  # pytest collects garbage several times at the end

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        file, line, description = self._function_of(item)
        timeout = item.get_closest_marker("timeout")
        self.entries.append(
            CatalogEntry(
                id=escape_invalid_xml(item.nodeid),
                suite=escape_invalid_xml(suite_of(item.nodeid)),
                file=file,
                line=line,
                description=description,
                requires=tuple(dict(mark.kwargs) for mark in _outermost_first(item, "requires")),
                covers=tuple(argument for mark in _outermost_first(item, "covers") for argument in mark.args),
                timeout=timeout.args[0] if timeout is not None and timeout.args else None,
                extended=item.get_closest_marker("extended") is not None,
            )
        )

    def _function_of(self, item: pytest.Item) -> tuple[str, int | None, str]:
        """Return file, line and description, which all parametrized cases of a function share."""
        function = getattr(item, "function", item)
        if function not in self._functions:
            file, line, _ = item.location
            description = first_paragraph(getattr(getattr(item, "obj", None), "__doc__", None))
            self._functions[function] = escape_invalid_xml(file), None if line is None else line + 1, description
        return self._functions[function]


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
