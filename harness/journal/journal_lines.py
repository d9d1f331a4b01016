"""Read a journal of any size line by line in constant memory. Lines are neither kept nor validated here."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from harness.journal import journal
from harness.journal.journal import Damaged, Unknown

if TYPE_CHECKING:
    from harness.journal.events import Event

_BLOCK = 1 << 20
#: Maximum length of a line, in bytes, for `stream_journal`. The ids of 500,000 cases fit.
LONGEST = 64 << 20
_STRING = rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"'
#: The beginning of a line about a case, as the harness writes it.
_CASE_LINE = re.compile(rb'\{"event":"(?:start|finish|levels|reopened)","t":[0-9.eE+-]+,"case":(' + _STRING + rb")[,}]")
_CASE_KINDS = tuple(b'{"event":"' + kind + b'"' for kind in (b"start", b"finish", b"levels", b"reopened"))
_COLLECTED_LINE = b'{"event":"collected",'
_KEY = re.compile(rb"[{,](" + _STRING + rb"):")
_ITEM = re.compile(rb"[\[,](" + _STRING + rb")")
_SCALAR = re.compile(_STRING + rb"|-?[0-9][0-9.eE+-]*|true|false|null")
#: The fields of a ``collected`` line that hold a list of ids, or of how ids begin.
_ID_LISTS = (b"ids", b"deselected", b"selected", b"unread")


class OddLineError(Exception):
    """A line does not have the form in which the harness writes it. The line may still be valid."""


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
            return journal.text_of(match[1])
        except ValueError:  # not UTF-8
            return None

    @property
    def is_collected(self) -> bool:
        """Whether the line begins like a ``collected`` line of the harness."""
        return self.data.startswith(_COLLECTED_LINE)


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
        journal.refuse_foreign(self.path, self._read(0, 64))
        number, at = 1, 0
        while at < self._size:
            block = self._read(at, _BLOCK)
            if not block:
                return  # the file became shorter
            whole = block.rfind(b"\n") + 1
            if not whole:  # a line longer than a block, or the last one; it is copied only once
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
            found = block.find(b"\n")
            if found >= 0:
                return at + found
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

    Otherwise like `read_journal`. A line of more than `most` bytes is damaged, and only its beginning is returned.
    """
    with JournalFile(path) as file:
        parsed = journal.line_parser(path)
        for line in file.lines(most):
            if len(line.data) > most:
                yield line.data, Damaged(line.number, f"the line is longer than {most >> 20} MiB")
            else:
                yield line.data, parsed(line.number, line.data)


class CollectedIds:
    """The id lists of a ``collected`` line, one id at a time: a run of a million cases has all ids in one line.

    Methods raise OddLineError if the line does not have the form in which the harness writes it.
    """

    def __init__(self, line: bytes) -> None:
        self._line = line
        self._lists: dict[bytes, int] = {}
        self.rest = self._without_lists()

    def _without_lists(self) -> bytes:
        """Return the line with empty lists: a small line for the models to validate."""
        line, at, kept, parts = self._line, 0, 0, []
        while (key := _KEY.match(line, at)) is not None:
            at = key.end()
            if line[at : at + 1] != b"[":
                at = self._end_of_scalar(at)
                continue
            name = key[1][1:-1]
            if name not in _ID_LISTS or name in self._lists:
                raise OddLineError
            self._lists[name] = at
            parts.append(line[kept : at + 1])
            kept = self._end_of_list(at)
            at = kept + 1
        if line[at:] != b"}":
            raise OddLineError
        return b"".join([*parts, line[kept:]])

    def _end_of_scalar(self, at: int) -> int:
        match = _SCALAR.match(self._line, at)
        if match is None:
            raise OddLineError
        return match.end()

    def _end_of_list(self, at: int) -> int:
        """Return the offset of the bracket that ends the list."""
        if self._line[at : at + 2] == b"[]":
            return at + 1
        for item in _ITEM.finditer(self._line, at):
            if item.start() != at:
                break
            at = item.end()
        if self._line[at : at + 1] != b"]":
            raise OddLineError
        return at

    def ids(self) -> Iterator[str]:
        """Yield the collected ids in order. The other lists are read first, so that an irregular line yields no id."""
        for name in self._lists:
            if name != _ID_LISTS[0]:
                for _ in self._texts(name):
                    pass
        return self._texts(_ID_LISTS[0])

    def _texts(self, name: bytes) -> Iterator[str]:
        at = self._lists.get(name)
        if at is None or self._line[at : at + 2] == b"[]":
            return
        for item in _ITEM.finditer(self._line, at):
            if item.start() != at:
                return
            at = item.end()
            try:
                text = journal.text_of(item[1])
            except ValueError:
                raise OddLineError from None
            if not text:
                raise OddLineError
            yield text


class IdsDigest:
    """Digest of ids that are added one at a time. Its text equals `digest_of_ids`; `count` is their number."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.sha256()

    def added(self, case: str) -> str:
        """Add the next id, and return it."""
        self._hash.update(("\n" + case if self.count else case).encode("utf-8", "backslashreplace"))
        self.count += 1
        return case

    @property
    def text(self) -> str:
        return "sha256:" + self._hash.hexdigest()
