"""The journal of a run: one JSON object a line, appended by several processes that may be killed at any moment.

Writing is on the path of every case, so this module imports nothing heavy; reading imports the models that validate.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from harness.errors import HarnessError, WriteError

if TYPE_CHECKING:
    from pydantic import ValidationError

    from harness.reporting.events import Event

FILE_NAME = "journal.ndjson"

_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_FIRST_BYTES = b'{"event":"'  # `append` puts the kind first, so that every journal begins with this
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class JournalError(HarnessError):
    """A journal that cannot be written, or a file that cannot be read as one."""


class JournalWriteError(JournalError, WriteError):
    """A journal that cannot be written."""


def digest(ids: Iterable[str]) -> str:
    r"""The hash by which collected lists are compared: ``sha256:`` and the hex digest of the ids joined by ``\n``.

    A lone surrogate counts as its visible escape, as `read` returns it.
    """
    return "sha256:" + hashlib.sha256("\n".join(ids).encode("utf-8", "backslashreplace")).hexdigest()


class Journal:
    """A journal open for appending, made when it is not there. Safe to share between threads and processes.

    Raises JournalWriteError when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.Lock()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o666)
        except OSError as error:
            raise JournalWriteError(f"cannot open the journal {str(path)!r} for appending") from error

    def append(self, event: Mapping[str, Any]) -> None:
        """Append one event as one line; when this returns, the kernel has the whole line.

        `event` holds "event" (its kind) and the fields that harness.reporting.events documents for it; "t" is
        set to now when absent. Raises JournalError when the event is not JSON, JournalWriteError when the file
        cannot take it.
        """
        if self._fd < 0:
            raise JournalError(f"the journal {str(self.path)!r} is closed")
        try:
            line = _encode({"event": event["event"], "t": time.time(), **event}).encode("ascii") + b"\n"
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"cannot write event {event.get('event')!r} to {str(self.path)!r} as JSON") from error
        with self._turn:
            try:
                self._write(line)
            except OSError as error:
                raise JournalWriteError(f"cannot append to the journal {str(self.path)!r}") from error

    def _write(self, line: bytes) -> None:
        # A POSIX record lock and not flock: the lock of a killed process must end with that process, also when a
        # child forked from it still holds the same open file.
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            size = os.lseek(self._fd, 0, os.SEEK_END)
            if size and os.pread(self._fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # a killed writer left a torn line: it must not swallow this one
            rest = memoryview(line)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:
                with contextlib.suppress(OSError):  # it stays torn, and the next writer begins with a newline
                    os.ftruncate(self._fd, size)
                raise
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file. To be called in a forked child as well; a second call does nothing."""
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
    """A line that is not an event: `number` counts from 1, `reason` is one line of text."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A well-formed line of a kind that this version does not know: `number` counts from 1."""

    number: int
    kind: str


@dataclass(frozen=True, slots=True)
class JournalContents:
    """What a journal holds: its events in order, and the lines that could not be taken as events."""

    path: Path
    events: tuple[Event, ...]
    damaged: tuple[Damaged, ...] = ()
    unknown: tuple[Unknown, ...] = ()


def read(path: Path) -> JournalContents:
    """Read a journal, also one whose writers were killed or are still at work.

    Lone surrogates in texts come back as visible escapes. Raises JournalError, naming the file, when it is
    missing, unreadable, not a journal, or written by a newer harness.
    """
    data = _bytes_of(path)
    if not data.startswith(_FIRST_BYTES[: len(data)]):
        raise JournalError(
            f"{str(path)!r} is not a journal: it begins with {data[:20]!r}, a journal with {_FIRST_BYTES!r}"
        )
    return parse(path, data)


def read_run(path: Path) -> JournalContents:
    """Read the journal of a run, as `read`. Raises JournalError as well when no run began in it."""
    from harness.reporting.events import RunStarted

    contents = read(path)
    if not any(isinstance(event, RunStarted) for event in contents.events):
        raise JournalError(
            f"the journal {str(path)!r} has no line of kind 'run': "
            "no run began there; give the directory of one that did, or start it again"
        )
    return contents


def parse(path: Path, data: bytes) -> JournalContents:
    """Take `data` apart as the contents of a journal; `path` is only named. Raises JournalError for a newer schema."""
    from pydantic import ValidationError

    from harness.reporting.events import EVENT, RunStarted

    events: list[Event] = []
    damaged: list[Damaged] = []
    unknown: list[Unknown] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line:
            continue
        try:
            event = EVENT.validate_json(_without_surrogates(line))
        except ValidationError as error:
            _refuse_newer(path, number, line)
            kind = _unknown_kind(error)
            if kind is None:
                damaged.append(Damaged(number, _reason(error)))
            else:
                unknown.append(Unknown(number, kind))
            continue
        if isinstance(event, RunStarted):
            _refuse_schema(path, number, event.schema_version)
        events.append(event)
    return JournalContents(path, tuple(events), tuple(damaged), tuple(unknown))


def _bytes_of(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise JournalError(f"{str(path)!r} is not a regular file: give the journal that a run wrote")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise JournalError(f"there is no journal at {str(path)!r}: give the run directory of a run") from error
    except OSError as error:
        raise JournalError(f"cannot read the journal {str(path)!r}") from error


def _without_surrogates(line: bytes) -> bytes:
    """The line with lone surrogates as visible escapes, since the models take only text that UTF-8 can hold."""
    if b"\\ud" not in line and b"\\uD" not in line:
        return line
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return line  # the models say what is wrong with it
    return _LONE_SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text).encode("utf-8")


def _refuse_newer(path: Path, number: int, line: bytes) -> None:
    """A `run` line may fail to validate just because it is newer: that has to be said first."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict) and value.get("event") == "run" and isinstance(value.get("schema"), int):
        _refuse_schema(path, number, value["schema"])


def _refuse_schema(path: Path, number: int, schema: int) -> None:
    from harness.reporting.events import SCHEMA

    if schema > SCHEMA:
        raise JournalError(
            f"the journal {str(path)!r} has schema {schema} in line {number}, this harness reads up to {SCHEMA}: "
            "use the harness that wrote it, or a newer one"
        )


def _unknown_kind(error: ValidationError) -> str | None:
    first = error.errors(include_url=False)[0]
    return str(first["ctx"]["tag"]) if first["type"] == "union_tag_invalid" else None


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    more = error.error_count() - 1
    return f"{where}: {first['msg']}".removeprefix(": ") + (f" (and {more} more)" if more else "")
