"""Write the journal of a run: one JSON object per line, appended by several processes that may be killed at any moment.

Every case writes to the journal, so this module imports nothing heavy. `harness.journal.reader` reads it.

What `Journal.append` promises: when it returns, the kernel has the whole lines; when it raises, it has none of them.
What can go wrong, and the order that prevents it:

- Two writers at once. Everything from the look at the end to the last byte is under a POSIX record lock. The lock ends
  with its process, also if a forked child still has the file open, which would keep a lock of `flock`. Record locks do
  not exclude threads of one process, so there is a lock of `threading` around it.
- A writer is killed in the middle. The file then ends within a line. The next writer sees that the last byte is no
  newline, and writes one first: the torn line stays apart, and the reader counts it as damaged. A writer that was the
  last one itself (`_end`) need not look.
- The file system is full, or a write is short. The rest is written in a loop; after an error the file is cut back to
  its former size, which is safe under the lock. If that fails as well, the next writer sees a torn line, as above.
- Lines of one call belong together: the end of a case and the start of the next. They are one write, and after a kill
  the file has a prefix of them, so a case never starts before the end of the one before it is there.

Not handled: a process that closes any other descriptor of the journal loses its locks there, so a reader in a writing
process keeps its descriptor open (`harness/controller/run.py`). File systems without record locks. A machine
that loses power: nothing calls `fsync`, and the kernel writes the lines when it likes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from harness.core import clock
from harness.core.errors import HarnessError, WriteError
from harness.core.file_kind import FileKind
from harness.journal.events import KINDS, Activity, Collected, Event, Finding, Finish, Levels, MustPass

_encoder = msgspec.json.Encoder(enc_hook=repr)
_decode = msgspec.json.Decoder(Event).decode
_as_ascii = json.JSONEncoder(separators=(",", ":")).encode
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_FIELD = re.compile(r"`\$\.(\w+)")
#: Lists of ids as pytest has collected them, with up to a million entries: they are not read again to check them.
_LONG = (Collected, MustPass)
#: What replaces a required value that a case has made invalid.
_INSTEAD: dict[tuple[type, str], Any] = {(Finish, "duration"): 0.0, (Levels, "values"): {}}


class LineError(Exception):
    """A line is not an event. `kind`: the kind of a line that a newer harness may know; otherwise empty."""

    def __init__(self, reason: str, kind: str = "") -> None:
        super().__init__(reason)
        self.kind = kind


class _Kind(msgspec.Struct):
    event: str


def decode_line(line: bytes) -> Event:
    """Return the event of a line. Lone surrogates in its texts become visible escapes. Raise LineError."""
    try:
        return _decode(_without_surrogates(line))
    except msgspec.ValidationError as error:
        raise LineError(str(error), _unknown_kind(line)) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise LineError(str(error)) from None


def _unknown_kind(line: bytes) -> str:
    try:
        kind = msgspec.json.decode(_without_surrogates(line), type=_Kind).event
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
    return "" if kind in KINDS else kind


def encode_line(event: Event) -> bytes:
    """Return the line of an event, in ASCII. Raise ValueError, TypeError or RecursionError if there is none."""
    try:
        line = _encoder.encode(event)
    except UnicodeEncodeError:  # a lone surrogate
        line = b"\xff"
    if not line.isascii():
        line = _as_ascii(msgspec.to_builtins(event, enc_hook=repr)).encode("ascii")
    return line + b"\n"


def readable_line(event: Event) -> bytes:
    """Return the line of an event as readers accept it.

    Readers drop an invalid line with all its contents, for example a verdict. Therefore a value that they refuse,
    since a case has produced it, is left out, and the line names the field. Raise ValueError if a value is refused
    that the harness itself must have produced, and the errors of `encode_line`.
    """
    line = encode_line(event)
    if isinstance(event, _LONG):
        return line
    try:
        decode_line(line)
    except LineError:
        return _repaired(event)
    return line


def _repaired(event: Event) -> bytes:
    plain = _as_ascii(msgspec.to_builtins(event, enc_hook=repr))
    fields: dict[str, Any] = json.loads(plain, parse_constant=lambda _: None)  # JSON has no NaN and no infinity
    refused: set[str] = set()
    while True:
        line = _as_ascii(fields).encode("ascii")
        try:
            decode_line(line)
        except LineError as error:
            found = _FIELD.search(str(error))
            name = found[1] if found is not None else ""
            instead = _INSTEAD.get((type(event), name))
            if name not in fields or name in refused:
                raise ValueError(f"readers would refuse this line: {error}") from None
            refused.add(name)
            fields.pop(name)
            if instead is not None:
                fields[name] = instead
            if isinstance(event, Finish):
                text = f"not recorded, because their values are invalid in a journal: {', '.join(sorted(refused))}"
                kept = () if "notes" in refused else event.notes
                fields["notes"] = [*kept, text]
        else:
            return line + b"\n"


def _without_surrogates(line: bytes) -> bytes:
    """Return the line with lone surrogates as visible escapes. Events only have text that UTF-8 can encode."""
    if b"\\ud" not in line and b"\\uD" not in line:
        return line
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return line  # the decoder reports the error
    return _LONE_SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text).encode("utf-8")


def text_of(literal: bytes) -> str:
    """Return the text of a quoted JSON string, as `decode_line` does. Raise ValueError if it is not a string."""
    if b"\\" not in literal:
        return literal[1:-1].decode("utf-8")
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.loads(literal))


FILE_NAME = "journal.ndjson"

#: The first bytes of every journal: the kind is the first field.
FIRST_BYTES = b'{"event":"'


class JournalError(HarnessError):
    """A journal cannot be written, or a file cannot be read as a journal."""


KIND = FileKind("journal", "give the run directory of a run", JournalError)


class JournalWriteError(JournalError, WriteError):
    """A journal cannot be written."""


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

    def append(self, *events: Event) -> None:
        """Append each event as one line, all of them or none. When this returns, the kernel has the whole lines.

        Raises JournalError if readers would refuse an event, JournalWriteError if the file cannot be written.
        """
        if self._fd < 0:
            raise JournalError(f"the journal {str(self.path)!r} is closed")
        lines = b"".join([self._line(event) for event in events])
        with self._lock:
            try:
                self._write(lines)
            except OSError as error:
                raise JournalWriteError(f"cannot append to the journal {str(self.path)!r}") from error

    def _line(self, event: Event) -> bytes:
        try:
            return readable_line(event)
        except (TypeError, ValueError, RecursionError) as error:
            raise JournalError(f"cannot write event {event.event!r} to {str(self.path)!r} as JSON") from error

    def _write(self, lines: bytes) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            size = os.lseek(self._fd, 0, os.SEEK_END)
            if size != self._end and os.pread(self._fd, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            rest = memoryview(lines)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:
                with contextlib.suppress(OSError):
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


@dataclass(slots=True)
class _Activity:
    what: str
    since: float


class WorkerJournal:
    """Appends the lines of one worker. After a failed write it appends nothing more, so that the run can end."""

    def __init__(self, journal: Journal, worker: str) -> None:
        self.worker = worker
        #: The error of the first failed write to a file of the run; "" without one.
        self.failure = ""
        self._journal = journal
        self._is_closing = False
        #: What the worker does, the inner activity last.
        self._activities: list[_Activity] = []

    def record(self, *events: Event) -> None:
        """Append all events in one write.

        Raises JournalWriteError at the first failure, except while the worker closes.
        """
        if self.failure:
            return
        try:
            self._journal.append(*events)
        except JournalWriteError as error:
            self.note_failure(error)
            if not self._is_closing:
                raise

    def add_finding(self, kind: str, text: str, cases: Sequence[str] = (), reproduce: str | None = None) -> None:
        """Record a finding: a fact that cannot be attributed to a single case."""
        self.record(Finding(t=clock.now(), kind=kind, message=text, cases=tuple(cases), reproduce=reproduce))

    def note_failure(self, error: WriteError) -> None:
        """Note that a file of the run could not be written. The first error counts."""
        self.failure = self.failure or str(error)

    @contextlib.contextmanager
    def noting_failures(self) -> Generator[None]:
        """Note a failed write in this context instead of raising it."""
        try:
            yield
        except WriteError as error:
            self.note_failure(error)

    @contextlib.contextmanager
    def doing(self, what: str) -> Generator[None]:
        """Record the begin and the end of an activity, which explains a long silence.

        `what` must read well after "is": ``"examining device GPU-1"``. Activities nest: when the inner one ends, the
        outer one is current again.
        """
        activity = _Activity(what, clock.now())
        self._activities.append(activity)
        self._record_current()
        try:
            yield
        finally:
            self._activities.remove(activity)
            self._record_current()

    def rename_activity(self, what: str) -> None:
        """Record a new description of the current activity."""
        self._activities[-1].what = what
        self._record_current()

    def _record_current(self) -> None:
        current = self._activities[-1] if self._activities else None
        what, since = ("", None) if current is None else (current.what, current.since)
        self.record(Activity(t=clock.now(), worker=self.worker, what=what, since=since))

    def begin_to_close(self) -> None:
        """Raise no errors of the journal from now on, so that everything is closed."""
        self._is_closing = True
