"""Read a ``collected`` line one id at a time: a run of a million cases has all ids in one line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from harness.journal.lines import text_of
from harness.journal.reader import STRING

_KEY = re.compile(rb"[{,](" + STRING + rb"):")
_ITEM = re.compile(rb"[\[,](" + STRING + rb")")
_SCALAR = re.compile(STRING + rb"|-?[0-9][0-9.eE+-]*|true|false|null")
#: The fields of a ``collected`` line that hold a list of ids, or of the beginnings of ids.
_ID_LISTS = (b"ids", b"deselected", b"selected", b"unread")


class UnexpectedFormError(Exception):
    """A line does not have the form in which the harness writes it. The line may still be valid."""


class CollectedIds:
    """The id lists of a ``collected`` line, one id at a time.

    Methods raise UnexpectedFormError if the line does not have the form in which the harness writes it.
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
                raise UnexpectedFormError
            self._lists[name] = at
            parts.append(line[kept : at + 1])
            kept = self._end_of_list(at)
            at = kept + 1
        if line[at:] != b"}":
            raise UnexpectedFormError
        return b"".join([*parts, line[kept:]])

    def _end_of_scalar(self, at: int) -> int:
        match = _SCALAR.match(self._line, at)
        if match is None:
            raise UnexpectedFormError
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
            raise UnexpectedFormError
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
                text = text_of(item[1])
            except ValueError:
                raise UnexpectedFormError from None
            if not text:
                raise UnexpectedFormError
            yield text


class IdsDigest:
    """The digest of ids that are added one at a time. Its text equals `digest_of_ids`; `count` is their number."""

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
