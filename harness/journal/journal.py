"""The journal of a run: one JSON object per line, appended by several processes that may be killed at any moment.

Every case writes to the journal, so this module imports nothing heavy. Only reading imports the pydantic models.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from harness.core import clock
from harness.core.errors import HarnessError, WriteError
from harness.core.file_kind import FileKind
from harness.journal import line_check

if TYPE_CHECKING:
    from pydantic import ValidationError

    from harness.journal.events import Event

FILE_NAME = "journal.ndjson"

_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_encode_any = json.JSONEncoder(ensure_ascii=True, default=repr, separators=(",", ":")).encode
_FIRST_BYTES = b'{"event":"'  # every journal begins with this, because `append` writes the kind first
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class JournalError(HarnessError):
    """A journal cannot be written, or a file cannot be read as a journal."""


KIND = FileKind("journal", "give the run directory of a run", JournalError)


class JournalWriteError(JournalError, WriteError):
    """A journal cannot be written."""


def digest_of_ids(ids: Iterable[str]) -> str:
    r"""Return the hash that identifies a list of cases: ``sha256:`` and the hex digest of the ids joined by ``\n``.

    A lone surrogate is hashed as its visible escape, because `read_journal` returns it in this form.
    """
    return "sha256:" + hashlib.sha256("\n".join(ids).encode("utf-8", "backslashreplace")).hexdigest()


class Journal:
    """A journal open for appending. The file is created if it does not exist. Threads and processes may share it.

    Raise JournalWriteError if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._end = 0
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o666)
        except OSError as error:
            raise JournalWriteError(f"cannot open the journal {str(path)!r} for appending") from error

    def append(self, *events: Mapping[str, Any]) -> None:
        """Append each event as one line, all of them or none. When this returns, the kernel has the whole lines.

        An event holds "event" (its kind) and the fields that harness.journal.events documents for that kind. "t"
        defaults to the current time. Raises JournalError if an event cannot be written as JSON, JournalWriteError if
        the file cannot be written.
        """
        if self._fd < 0:
            raise JournalError(f"the journal {str(self.path)!r} is closed")
        lines = b"".join([self._line(event) for event in events])
        with self._lock:
            try:
                self._write(lines)
            except OSError as error:
                raise JournalWriteError(f"cannot append to the journal {str(self.path)!r}") from error

    def _line(self, event: Mapping[str, Any]) -> bytes:
        try:
            event = {"event": event["event"], "t": clock.now(), **event}
            if not line_check.is_plain_event(event):
                event = line_check.mended_event(json.loads(_encode_any(event)), _refused)
            return _encode(event).encode("ascii") + b"\n"
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise JournalError(f"cannot write event {event.get('event')!r} to {str(self.path)!r} as JSON") from error

    def _write(self, lines: bytes) -> None:
        # A POSIX record lock, not flock: the lock must end when its process is killed, even if a forked child still
        # has the same file open.
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            size = os.lseek(self._fd, 0, os.SEEK_END)
            if size != self._end and os.pread(self._fd, 1, size - 1) != b"\n":
                lines = b"\n" + lines  # a killed writer left a partial line: begin a new one
            rest = memoryview(lines)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:
                with contextlib.suppress(OSError):  # on failure, the next writer begins with a newline
                    os.ftruncate(self._fd, size)
                raise
            self._end = size + len(lines)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file. A forked child must call it as well. A second call does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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


def read_journal(path: Path) -> JournalContents:
    """Read a journal. Its writers may have been killed or may still be running.

    Lone surrogates in texts become visible escapes. Raise JournalError, which names the file, if the file is missing,
    unreadable, not a journal, or written by a newer harness.
    """
    return _parse_whole(path, _bytes_of(path))


def _parse_whole(path: Path, data: bytes) -> JournalContents:
    refuse_foreign(path, data)
    return parse_journal(path, data)


def refuse_foreign(path: Path, data: bytes) -> None:
    """Raise JournalError if a file that begins with `data` is not a journal."""
    if not data.startswith(_FIRST_BYTES[: len(data)]):
        raise JournalError(f"{str(path)!r} is not a journal: it begins with {data[:20]!r}, expected {_FIRST_BYTES!r}")


def read_run_journal(path: Path) -> JournalContents:
    """Read the journal of a run, like `read_journal`. Also raise JournalError if no run started in it."""
    return parse_run_journal(path, _bytes_of(path))


def parse_run_journal(path: Path, data: bytes) -> JournalContents:
    """Parse the bytes of the journal of a run, like `read_run_journal`. `path` is only for error messages."""
    from harness.journal.events import RunStarted

    contents = _parse_whole(path, data)
    if not any(isinstance(event, RunStarted) for event in contents.events):
        raise no_run_error(path)
    return contents


def no_run_error(path: Path) -> JournalError:
    """Return the error for a journal in which no run started."""
    return JournalError(
        f"the journal {str(path)!r} has no line of kind 'run', so no run started there: "
        "give another run directory, or start the run again"
    )


def parse_journal(path: Path, data: bytes) -> JournalContents:
    """Parse `data` as a journal. `path` is only for error messages. Raise JournalError for a newer schema."""
    events: list[Event] = []
    damaged: list[Damaged] = []
    unknown: list[Unknown] = []
    parsed = line_parser(path)
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line:
            continue
        found = parsed(number, line)
        if isinstance(found, Damaged):
            damaged.append(found)
        elif isinstance(found, Unknown):
            unknown.append(found)
        else:
            events.append(found)
    return JournalContents(path, tuple(events), tuple(damaged), tuple(unknown))


def line_parser(path: Path) -> Callable[[int, bytes], Event | Damaged | Unknown]:
    """Return a function that takes a line's number and bytes, and returns its event, or why there is none.

    `path` is only for error messages. The function raises JournalError for a newer schema.
    """
    from pydantic import ValidationError

    from harness.journal.events import EVENT, RunStarted

    def parsed(number: int, line: bytes) -> Event | Damaged | Unknown:
        try:
            event = EVENT.validate_json(_without_surrogates(line))
        except ValidationError as error:
            _refuse_newer(path, number, line)
            kind = _unknown_kind(error)
            return Damaged(number, _reason(error)) if kind is None else Unknown(number, kind)
        if isinstance(event, RunStarted):
            _refuse_schema(path, number, event.schema_version)
        return event

    return parsed


def _refused(event: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Return the places in an event that a reader refuses. An unknown kind is not refused."""
    from pydantic import ValidationError

    from harness.journal.events import EVENT

    try:
        EVENT.validate_json(_without_surrogates(_encode_any(event).encode("ascii")))
    except ValidationError as error:
        return [] if _unknown_kind(error) is not None else [each["loc"] for each in error.errors(include_url=False)]
    return []


def _bytes_of(path: Path) -> bytes:
    return KIND.read(path)


def _without_surrogates(line: bytes) -> bytes:
    """Return the line with lone surrogates as visible escapes. The models accept only text that UTF-8 can encode."""
    if b"\\ud" not in line and b"\\uD" not in line:
        return line
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return line  # the validation that follows reports the error
    return _LONE_SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text).encode("utf-8")


def text_of(literal: bytes) -> str:
    """Return the text of a quoted JSON string, as `read_journal` does. Raise ValueError if it is not a string."""
    if b"\\" not in literal:
        return literal[1:-1].decode("utf-8")
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.loads(literal))


def _refuse_newer(path: Path, number: int, line: bytes) -> None:
    """Report a newer schema first: a `run` line may fail to validate only because it is newer."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict) and value.get("event") == "run" and isinstance(value.get("schema"), int):
        _refuse_schema(path, number, value["schema"])


def _refuse_schema(path: Path, number: int, schema: int) -> None:
    from harness.journal.events import SCHEMA

    if schema > SCHEMA:
        raise JournalError(
            f"the journal {str(path)!r} has schema {schema} in line {number}; this harness reads schemas up to "
            f"{SCHEMA}: use the harness that wrote the journal, or a newer one"
        )


def _unknown_kind(error: ValidationError) -> str | None:
    first = error.errors(include_url=False)[0]
    return str(first["ctx"]["tag"]) if first["type"] == "union_tag_invalid" else None


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    more = error.error_count() - 1
    return f"{where}: {first['msg']}".removeprefix(": ") + (f" (and {more} more)" if more else "")
