"""The list of all cases, and its forms for people and programs."""

from __future__ import annotations

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
from harness.core.text import inert_line, single_line

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
