"""Read journals: `JournalFile` has the lines of a file of any size, and `line_parser` turns them into events.

All readers of a run use both. `stream_journal` keeps nothing, `read_run_journal` keeps all events.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from harness.journal import journal
from harness.journal.events import (
    SCHEMA,
    Bisected,
    Event,
    Finding,
    MergedShard,
    MustPass,
    RunStarted,
    SessionProperty,
    Stopped,
    Waiver,
)
from harness.journal.journal import JournalError, LineError, decode_line, text_of

_BLOCK = 1 << 20
#: Maximum length of a line, in bytes, for `stream_journal`. The ids of 500,000 cases fit.
LONGEST = 64 << 20
#: A JSON string.
_STRING = rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"'
#: The beginning of a line about a case, as the harness writes it.
_CASE_LINE = re.compile(
    rb'\{"event":"(?:start|finish|levels|reopened)","t":[0-9.eE+-]+,(?:"host":'
    + _STRING
    + rb',)?"case":('
    + _STRING
    + rb")[,}]"
)
_CASE_KINDS = tuple(b'{"event":"' + kind + b'"' for kind in (b"start", b"finish", b"levels", b"reopened"))
#: Lines about the whole run. Reports show each, and a run has few.
_REMARKS = (Bisected, Finding, MergedShard, MustPass, RunStarted, SessionProperty, Stopped, Waiver)


@dataclass(frozen=True, slots=True)
class Damaged:
    """A line that cannot be read as an event. `number` counts from 1; `reason` is one line of text."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A well-formed line of a kind that this version does not know. `number` counts from 1."""

    number: int
    kind: str


@dataclass(frozen=True, slots=True)
class JournalContents:
    """The contents of a journal: its events in order, and the lines that could not be read as events."""

    path: Path
    events: tuple[Event, ...]
    damaged: tuple[Damaged, ...] = ()
    unknown: tuple[Unknown, ...] = ()


class Most(NamedTuple):
    """The most damaged and unknown lines (`odd`), and the most lines about the whole run (`remarks`), of a journal."""

    odd: int
    remarks: int


class Line(NamedTuple):
    """A non-empty line and its position: its number, from 1, and the offset of its first byte."""

    number: int
    at: int
    data: bytes

    @property
    def is_about_case(self) -> bool:
        """Whether the line begins like a line of the harness about one case."""
        return self.data.startswith(_CASE_KINDS)

    @property
    def case(self) -> str | None:
        """The case that the line is about, if the beginning of the line names it."""
        match = _CASE_LINE.match(self.data)
        if match is None:
            return None
        try:
            return text_of(match[1])
        except ValueError:  # not UTF-8
            return None


class JournalFile:
    """A journal that is open for reading. Raise JournalError if it is missing, unreadable or not a journal.

    A journal may grow while it is read: data past its initial size is ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = journal.KIND.open(path)
        self._size = os.fstat(self._descriptor).st_size
        self._block = b""
        self._block_at = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lines(self, most: int | None = None) -> Iterator[Line]:
        """Yield all non-empty lines in order. Of a line of more than `most` bytes, only `most` + 1 bytes are read."""
        _refuse_foreign(self.path, self._read(0, 64))
        number, at = 1, 0
        while at < self._size:
            block = self._read(at, _BLOCK)
            if not block:
                return  # the file became shorter
            whole = block.rfind(b"\n") + 1
            if not whole:  # a line that is longer than a block, or the last line; it is copied only once
                end = self._end_of_line(at + len(block))
                size = end - at if most is None else min(end - at, most + 1)
                yield Line(number, at, self._read(at, size))
                at, number = end + 1, number + 1
                continue
            begin = at
            for data in block[:whole].split(b"\n"):
                if data:
                    yield Line(number, begin, data)
                begin += len(data) + 1
                number += 1
            number -= 1  # text after the last line feed is not a line yet
            at += whole

    def _end_of_line(self, at: int) -> int:
        """Return the offset of the next line feed, or the end of the file."""
        while at < self._size:
            block = self._read(at, _BLOCK)
            offset = block.find(b"\n")
            if offset >= 0:
                return at + offset
            if not block:
                break
            at += len(block)
        return self._size

    def read(self, at: int, size: int) -> bytes:
        """Return a part of the file. Nearby parts share one read of the disk."""
        begin = at - self._block_at
        if begin < 0 or begin + size > len(self._block):
            self._block, self._block_at, begin = self._read(at, max(size, _BLOCK >> 2)), at, 0
        return self._block[begin : begin + size]

    def _read(self, at: int, size: int) -> bytes:
        with journal.KIND.errors(self.path):
            return os.pread(self._descriptor, min(size, self._size - at), at)


def stream_journal(path: Path, most: int = LONGEST) -> Iterator[tuple[bytes, Event | Damaged | Unknown]]:
    """Yield every line of a journal with its event, one at a time, so that the file may be larger than the memory.

    A line of more than `most` bytes is damaged, and only its beginning is returned. For errors, see `read_journal`.
    """
    with JournalFile(path) as file:
        parsed = line_parser(path)
        for line in file.lines(most):
            if len(line.data) > most:
                yield line.data, Damaged(line.number, f"the line is longer than {most >> 20} MiB")
            else:
                yield line.data, parsed(line.number, line.data)


def read_journal(path: Path) -> JournalContents:
    """Read a journal. Its writers may have been killed or may still be running.

    Lone surrogates in texts become visible escapes. Raise JournalError, which names the file, if the file is missing,
    unreadable, not a journal, or written by a newer harness.
    """
    with JournalFile(path) as file:
        parsed = line_parser(path)
        return _kept(path, (parsed(number, data) for number, _, data in file.lines()))


def read_run_journal(path: Path) -> JournalContents:
    """Read the journal of a run, like `read_journal`. Also raise JournalError if no run started in it."""
    return _of_a_run(read_journal(path))


def parse_run_journal(path: Path, data: bytes, most: Most | None = None) -> JournalContents:
    """Parse the bytes of the journal of a run, like `read_run_journal`. `path` is only for error messages.

    `most`: limits for a journal of somebody else. Raise JournalError beyond them.
    """
    _refuse_foreign(path, data)
    return _of_a_run(parse_journal(path, data, most))


def parse_journal(path: Path, data: bytes, most: Most | None = None) -> JournalContents:
    """Parse `data` as a journal. `path` is only for error messages. Raise JournalError for a newer schema."""
    parsed = line_parser(path)
    return _kept(path, (parsed(number, line) for number, line in numbered_lines(data)), most)


def numbered_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, each with its number from 1, without making a list of millions of them."""
    for number, line in enumerate(io.BytesIO(data), start=1):
        if line := line.removesuffix(b"\n"):
            yield number, line


def _kept(path: Path, lines: Iterable[Event | Damaged | Unknown], most: Most | None = None) -> JournalContents:
    events: list[Event] = []
    damaged: list[Damaged] = []
    unknown: list[Unknown] = []
    remarks = 0
    for line in lines:
        if isinstance(line, Damaged):
            damaged.append(line)
        elif isinstance(line, Unknown):
            unknown.append(line)
        else:
            events.append(line)
            remarks += isinstance(line, _REMARKS)
        if most is not None and len(damaged) + len(unknown) > most.odd:
            raise JournalError(f"the journal {str(path)!r} has more than {most.odd} lines that are no events")
        if most is not None and remarks > most.remarks:
            raise JournalError(
                f"the journal {str(path)!r} has more than {most.remarks} findings and other lines about the whole run"
            )
    return JournalContents(path, tuple(events), tuple(damaged), tuple(unknown))


def _of_a_run(contents: JournalContents) -> JournalContents:
    if not any(isinstance(event, RunStarted) for event in contents.events):
        raise no_run_error(contents.path)
    return contents


def no_run_error(path: Path) -> JournalError:
    """Return the error for a journal in which no run started."""
    return JournalError(
        f"the journal {str(path)!r} has no line of kind 'run', so no run started there: "
        "give another run directory, or start the run again"
    )


def _refuse_foreign(path: Path, data: bytes) -> None:
    """Raise JournalError if a file that begins with `data` is not a journal."""
    first = journal.FIRST_BYTES
    if not data.startswith(first[: len(data)]):
        raise JournalError(f"{str(path)!r} is not a journal: it begins with {data[:20]!r}, expected {first!r}")


def line_parser(path: Path) -> Callable[[int, bytes], Event | Damaged | Unknown]:
    """Return a function that takes a line's number and bytes, and returns its event, or why there is none.

    `path` is only for error messages. The function raises JournalError for a newer schema.
    """

    def parsed(number: int, line: bytes) -> Event | Damaged | Unknown:
        try:
            event = decode_line(line)
        except LineError as error:
            _refuse_newer(path, number, line)
            return Unknown(number, error.kind) if error.kind else Damaged(number, str(error))
        if isinstance(event, RunStarted):
            _refuse_schema(path, number, event.schema_version)
        return event

    return parsed


def _refuse_newer(path: Path, number: int, line: bytes) -> None:
    """Raise JournalError for a newer schema. Check this first: a `run` line may be invalid only because it is newer."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict) and value.get("event") == "run" and isinstance(value.get("schema"), int):
        _refuse_schema(path, number, value["schema"])


def _refuse_schema(path: Path, number: int, schema: int) -> None:
    if schema > SCHEMA:
        raise JournalError(
            f"the journal {str(path)!r} has schema {schema} in line {number}; this harness reads schemas up to "
            f"{SCHEMA}: use the harness that wrote the journal, or a newer one"
        )
