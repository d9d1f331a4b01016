"""The store of a history in one DuckDB file. `folder` has the other kind.

A run is one transaction: after a kill at any moment, all of it is stored or nothing. A lock beside the file ensures
that there is one writer at a time; readers open the file read-only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from harness.fleet import database as databases
from harness.fleet.database import Added, HistoryError, duckdb, missing_text, quoted
from harness.fleet.record import HistoryRecord

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: Seconds that a writer waits for another one, and a reader for a writer.
PATIENCE = 120.0
#: The settings of a database that is only read: a user's SQL can reach no file, no network and no setting.
_CLOSED = {"enable_external_access": "false", "lock_configuration": "true"}


@dataclass(frozen=True, slots=True)
class FileStore:
    """A history in one DuckDB file."""

    path: Path

    def add(self, record: HistoryRecord) -> Added:
        """Enter a run, or return why it is not entered. Raise HistoryError."""
        with self.writing() as database:
            return databases.add_record(database, record)

    def prune(self, keep: timedelta, now: datetime) -> int:
        """Remove runs that began before `now` minus `keep`, and free their space. Return their number."""
        if not self.path.exists():
            raise HistoryError(missing_text(self.path))
        with self.writing() as database:
            removed = databases.remove_before(database, now - keep)
        if removed:
            self._rewrite()
        return removed

    @contextlib.contextmanager
    def reading(self) -> Generator[DuckDBPyConnection]:
        """Yield the database, read-only and closed to files, network and settings."""
        if not self.path.exists():
            raise HistoryError(missing_text(self.path))
        database = self._connect(read_only=True)
        with databases.errors(self.path, writing=False), contextlib.closing(database):
            databases.check_schema(database, self.path)
            yield database

    @contextlib.contextmanager
    def writing(self) -> Generator[DuckDBPyConnection]:
        """Yield the database for writing, with the current schema. Make a new one if there is none."""
        with self._lock():
            if not self.path.exists():
                with databases.errors(self.path, writing=True):
                    self._create()
            database = self._connect(read_only=False)
            with databases.errors(self.path, writing=True), contextlib.closing(database):
                databases.prepare(database, self.path)
                yield database

    @property
    def _lock_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.lock")

    @contextlib.contextmanager
    def _lock(self) -> Generator[None]:
        path = self._lock_path
        try:
            with FileLock(path, timeout=PATIENCE):
                yield
        except Timeout:
            raise HistoryError(
                f"another process has written to {str(self.path)!r} for {PATIENCE:.0f} s: wait for it to end"
            ) from None
        except OSError as error:
            raise HistoryError(f"cannot write {str(path)!r}: {error.strerror}; give a writable --db") from None

    def _create(self) -> None:
        """Make an empty history under another name, so that a kill leaves no incomplete file."""
        temporary = self.path.with_name(f".{self.path.name}.new")
        temporary.unlink(missing_ok=True)
        database = duckdb().connect(str(temporary))
        try:
            databases.prepare(database, self.path)
        finally:
            database.close()
        temporary.replace(self.path)

    def _rewrite(self) -> None:
        """Copy the rows to a new file, since DuckDB keeps the space of removed rows for new ones."""
        temporary = self.path.with_name(f".{self.path.name}.new")
        with self._lock():
            temporary.unlink(missing_ok=True)
            with databases.errors(self.path, writing=True), contextlib.closing(duckdb().connect()) as database:
                for name, path in (("old", self.path), ("new", temporary)):
                    mode = " (READ_ONLY)" if name == "old" else ""
                    database.execute(f"ATTACH {quoted(path)} AS {name}{mode}")
                database.execute("COPY FROM DATABASE old TO new")
            temporary.replace(self.path)

    def _connect(self, *, read_only: bool) -> DuckDBPyConnection:
        """Open the file. A reader and a writer wait for each other."""
        module = duckdb()
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                connection: DuckDBPyConnection = module.connect(
                    str(self.path), read_only=read_only, config=_CLOSED if read_only else {}
                )
            except module.Error as error:
                if not is_busy(str(error)) or time.monotonic() > deadline:
                    raise HistoryError(databases.open_text(self.path, str(error))) from None
                time.sleep(0.05)
            else:
                return connection


def is_busy(error: str) -> bool:
    """Return whether another process or thread has the file open in a way that excludes this one.

    DuckDB has no type or code for these errors, so their texts are compared.
    """
    return "Could not set lock" in error or "different configuration" in error
