"""The results of a run of any size.

The journal is indexed in a temporary database, and cases are decided one at a time. Memory grows only with the longest
line, the one with all ids. The verdicts equal those of `harness.journal.ledger.Ledger`: both use
`harness.journal.ledger.RunTally`.
"""

from __future__ import annotations

import contextlib
import heapq
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Self

from harness.core.errors import WriteError
from harness.journal import journal, reader
from harness.journal.events import Collected, Event, Executor, Finish, Levels, MergedShard, Reopened, RunStarted, Start
from harness.journal.ledger import ReadProblems, RunTally, Summary
from harness.journal.reader import Damaged, JournalFile, Line, Unknown
from harness.journal.verdicts import CaseEvents, Verdict

#: Maximum number of lines that a text names; of further lines only the number is kept.
_KEPT = 100
_ROWS = 1000
_CASE_EVENTS = (Start, Finish, Levels, Reopened)

_TABLES = """
    PRAGMA cache_size = -16384;  -- KiB; what is more goes to a temporary file that has no name
    PRAGMA temp_store = FILE;
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    CREATE TABLE cases (no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, collected INTEGER NOT NULL);
    CREATE TABLE lines (no INTEGER, number INTEGER, at INTEGER, size INTEGER, PRIMARY KEY (no, number)) WITHOUT ROWID;
    CREATE TABLE ended (executor TEXT PRIMARY KEY, line BLOB NOT NULL) WITHOUT ROWID;
"""
_ADD_CASE = "INSERT OR IGNORE INTO cases (id, collected) VALUES (?, ?)"
_ADD_LINE = "INSERT OR IGNORE INTO lines SELECT no, ?, ?, ? FROM cases WHERE id = ?"
_ALL = """
    SELECT cases.no, id, collected, number, at, size FROM cases LEFT JOIN lines USING (no) ORDER BY cases.no, number
"""


class StoredRun:
    """The results of a run, from the journal at `path`. A context manager.

    Raise JournalError if there is no readable journal of a run, WriteError if there is no space for the database.
    """

    def __init__(self, path: Path) -> None:
        self._file = JournalFile(path)
        self._parsed = reader.line_parser(path)
        # A database without a name is temporary: SQLite removes it on close and when the process dies.
        self._database = sqlite3.connect("", isolation_level=None)
        self._summary: Summary | None = None
        self._damaged: list[Damaged] = []
        self._unknown: list[Unknown] = []
        self._damaged_lines = self._unknown_lines = 0
        #: Lines about cases that do not begin like lines of the harness.
        self._foreign: list[tuple[str, Line]] = []
        self._tally = RunTally(keep_ended=False)
        try:
            with _writing():
                self._database.executescript(_TABLES)
                self._database.execute("BEGIN")  # otherwise each row is a transaction
                self._enter_others()
                self._enter_cases()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(cls, run_dir: Path) -> Self:
        """Return the results of the run in a run directory."""
        return cls(run_dir / journal.FILE_NAME)

    def close(self) -> None:
        """Remove the database."""
        self._database.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def summary(self) -> Summary:
        """The totals of the run. They are known once all cases are decided; an earlier access decides them."""
        if self._summary is None:
            for _ in self.cases():
                pass
        assert self._summary is not None
        return self._summary

    @property
    def runs(self) -> tuple[RunStarted, ...]:
        """The ``run`` lines, one for each part of the run."""
        return tuple(self._tally.runs)

    @property
    def shards(self) -> tuple[MergedShard, ...]:
        """The shards that a merged run was made of."""
        return tuple(self._tally.shards)

    def ids(self) -> Iterator[str]:
        """Yield the ids of all cases, including cases without a readable line."""
        with _writing():
            for (case,) in self._database.execute("SELECT id FROM cases"):
                yield case

    def cases(self) -> Iterator[tuple[Verdict, tuple[Levels, ...]]]:
        """Yield each case with its verdict and its ``levels`` lines, in collection order."""
        first = self._summary is None
        doubled = 0
        for case, collected, events in self._events(first=first):
            if not collected and not events.mentioned:
                continue
            doubled += events.doubled
            verdict = self._tally.decide(case, events, collected=collected, ended=self._executor, counted=first)
            yield verdict, tuple(events.levels)
        if first:
            self._summary = self._tally.summary(self._read_problems(doubled))

    def _events(self, *, first: bool) -> Iterator[tuple[str, bool, CaseEvents]]:
        """Yield each case, whether it was collected, and its events. `first`: record irregularities of the lines."""
        with _writing():
            rows = self._database.execute(_ALL)
            row = rows.fetchone()
            while row is not None:
                no, case, collected = row[:3]
                events = CaseEvents()
                while row is not None and row[0] == no:
                    _, _, _, number, at, size = row
                    if number is not None:
                        self._add(events, case, Line(number, at, self._file.read(at, size)), first=first)
                    row = rows.fetchone()
                yield case, bool(collected), events

    def _add(self, events: CaseEvents, case: str, line: Line, *, first: bool) -> None:
        """Add the event of a line to the events of its case."""
        parsed = self._parsed(line.number, line.data)
        if isinstance(parsed, _CASE_EVENTS) and parsed.case == case:
            events.add(parsed)
            if first:
                self._tally.see(parsed.t)
        elif first and isinstance(parsed, Damaged | Unknown):
            self._enter_problem(parsed)
        elif first:
            self._enter_problem(Damaged(line.number, "a field appears twice"))

    def _read_problems(self, doubled: int) -> ReadProblems:
        damaged = sorted(self._damaged, key=lambda entry: entry.number)
        unknown = sorted(self._unknown, key=lambda entry: entry.number)
        numbers = self._damaged_lines, self._unknown_lines, doubled
        return ReadProblems(*numbers, tuple(damaged[:_KEPT]), tuple(unknown[:_KEPT]))

    def _enter_problem(self, line: Damaged | Unknown) -> None:
        kept: list[Damaged] | list[Unknown]
        if isinstance(line, Damaged):
            self._damaged_lines += 1
            self._damaged.append(line)
            kept = self._damaged
        else:
            self._unknown_lines += 1
            self._unknown.append(line)
            kept = self._unknown
        if len(kept) >= 2 * _KEPT:
            kept.sort(key=lambda entry: entry.number)
            del kept[_KEPT:]

    def _enter_others(self) -> None:
        """Read the lines that are not about a case. The collected ids come first, wherever they are."""
        started = False
        for line in self._file.lines():
            if line.is_about_case:
                continue
            event = self._parsed(line.number, line.data)
            if isinstance(event, Damaged | Unknown):
                self._enter_problem(event)
            elif isinstance(event, _CASE_EVENTS):
                self._foreign.append((event.case, Line(line.number, line.at, line.data)))
            else:
                started = started or isinstance(event, RunStarted)
                self._tally.add(event)
                if isinstance(event, Collected):
                    self._database.executemany(_ADD_CASE, ((case, 1) for case in event.ids))
                elif isinstance(event, Executor) and event.state == "ended":
                    self._database.execute("REPLACE INTO ended VALUES (?, ?)", (event.executor, line.data))
        if not started:
            raise reader.no_run_error(self._file.path)

    def _enter_cases(self) -> None:
        """Record the positions of the lines of each case."""
        for lines in _batches(heapq.merge(self._foreign, self._usual_case_lines(), key=lambda entry: entry[1].number)):
            self._database.executemany(_ADD_CASE, ((case, 0) for case in {case: None for case, _ in lines}))
            rows = ((line.number, line.at, len(line.data), case) for case, line in lines)
            self._database.executemany(_ADD_LINE, rows)

    def _usual_case_lines(self) -> Iterator[tuple[str, Line]]:
        for line in self._file.lines():
            if not line.is_about_case:
                continue
            case = line.case
            if case is None:
                event = self._parsed(line.number, line.data)
                if isinstance(event, Damaged | Unknown):
                    self._enter_problem(event)
                case = event.case if isinstance(event, _CASE_EVENTS) else None
            if case is not None:
                yield case, line

    def _executor(self, name: str) -> Executor | None:
        row = self._database.execute("SELECT line FROM ended WHERE executor = ?", (name,)).fetchone()
        event: Event | Damaged | Unknown | None = None if row is None else self._parsed(0, row[0])
        return event if isinstance(event, Executor) else None


def _batches(lines: Iterable[tuple[str, Line]]) -> Iterator[list[tuple[str, Line]]]:
    batch = []
    for line in lines:
        batch.append(line)
        if len(batch) == _ROWS:
            yield batch
            batch = []
    yield batch


@contextlib.contextmanager
def _writing() -> Generator[None]:
    """Turn database errors into WriteError: there is no space for the temporary file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise WriteError(
            "cannot write a temporary database; free space in the folder for temporary files (TMPDIR)"
        ) from error
