"""The database of a history: its schema, and the rows of a run, which are entered or removed in one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import HarnessError
from harness.fleet import schema, stage
from harness.fleet.record import HistoryRecord

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class HistoryError(HarnessError):
    """A history cannot be opened, read or written."""


class Added(StrEnum):
    """What happened to a run that was added."""

    NEW = "added"
    SAME = "already there"
    AGAIN = "replaced, because its journal has changed"
    PART = "left out: it is a shard of a merged run that the history has"


def duckdb() -> Any:
    """Return the module `duckdb`. Raise HistoryError if it is not installed."""
    try:
        import duckdb as module
    except ImportError:
        raise HistoryError(
            "a history needs the package duckdb: pip install 'gpu-conformance-harness[history]'"
        ) from None
    return module


def missing_text(path: Path) -> str:
    """Return the sentence about a history that does not exist."""
    return f"there is no history at {str(path)!r}: make one with harness history add DIR --db {path}"


def open_text(path: Path, error: str) -> str:
    first = error.splitlines()[0] if error else ""
    if "not a valid DuckDB" in error or (path.is_file() and "magic" in error.lower()):
        return f"{str(path)!r} is no history: expected a DuckDB file or a folder; give another --db"
    if "newer" in error or "version number" in error:
        return f"{str(path)!r} was written by a newer DuckDB: install that release ({first})"
    if "corrupt" in error.lower():
        return damaged_text(path, first)
    return f"cannot open the history {str(path)!r}: {first}"


@contextlib.contextmanager
def errors(path: Path, *, writing: bool) -> Iterator[None]:
    """Turn an error of DuckDB in the block into a HistoryError: the history at `path` cannot be read or written."""
    try:
        yield
    except duckdb().Error as error:
        first = str(error).splitlines()[0]
        if "corrupt" in first.lower():
            raise HistoryError(damaged_text(path, first)) from None
        advice = "; free space, or give another --db" if writing else ""
        raise HistoryError(
            f"cannot {'write' if writing else 'read'} the history {str(path)!r}: {first}{advice}"
        ) from None


def damaged_text(path: Path, error: str) -> str:
    """Return the sentence about a damaged file."""
    return f"the history {str(path)!r} is damaged: {error}; restore it from a backup, or add its runs to a new one"


def quoted(path: Path) -> str:
    """Return the path as a string literal of SQL."""
    return "'" + str(path).replace("'", "''") + "'"


# ---- the schema ----


def schema_of(database: DuckDBPyConnection, path: Path) -> int:
    """Return the version of the schema; 0 for an empty database.

    Raise HistoryError if the database is not a history.
    """
    with contextlib.suppress(duckdb().Error):
        rows = dict(database.execute("SELECT name, value FROM meta WHERE name IN ('schema', 'what')").fetchall())
        if len(rows) == 2 and rows["schema"].isdecimal():  # the common case; the list of tables takes longer
            return int(rows["schema"])
    if not database.execute("SELECT 1 FROM duckdb_tables() WHERE NOT temporary LIMIT 1").fetchall():
        return 0
    raise HistoryError(f"{str(path)!r} is a DuckDB file of something else: expected a history; give another --db")


def check_schema(database: DuckDBPyConnection, path: Path) -> None:
    """Raise HistoryError unless the database has the current schema."""
    version = schema_of(database, path)
    refuse_newer(version, path)
    if not version:
        raise HistoryError(f"{str(path)!r} is an empty database: harness history add makes it a history")


def refuse_newer(version: int, path: Path) -> None:
    """Raise HistoryError for a schema above the current one."""
    if version > schema.SCHEMA:
        raise HistoryError(
            f"{str(path)!r} has schema {version}, and this harness reads schemas up to {schema.SCHEMA}: "
            "use the harness that wrote it, or a newer one"
        )


def prepare(database: DuckDBPyConnection, path: Path) -> None:
    """Make an empty database a history. Raise HistoryError if it has another schema."""
    version = schema_of(database, path)
    refuse_newer(version, path)
    if not version:
        with transaction(database):
            database.execute(schema.CREATE)
            database.execute("INSERT INTO meta VALUES ('schema', ?)", [str(schema.SCHEMA)])


@contextlib.contextmanager
def transaction(database: DuckDBPyConnection) -> Iterator[None]:
    """Commit everything that the block does, or nothing."""
    database.execute("BEGIN")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(duckdb().Error):
            database.execute("ROLLBACK")
        raise


# ---- rows ----


def add_record(database: DuckDBPyConnection, record: HistoryRecord) -> Added:
    """Enter a run in one transaction."""
    earlier = database.execute("SELECT run, print FROM run WHERE run_id = ?", [record.run_id]).fetchall()
    if earlier and earlier[0][1] == record.print:
        return Added.SAME
    stage.stage(database, [record])
    try:
        with transaction(database):
            remove_runs(database, [run for run, _ in earlier])
            if record.parts:
                parts = database.execute("SELECT run FROM run WHERE list_contains(?, run_id)", [list(record.parts)])
                remove_runs(database, [run for (run,) in parts.fetchall()])
            entered = stage.ingest(database)
    finally:
        stage.unstage(database)
    if not entered:
        return Added.PART
    return Added.AGAIN if earlier else Added.NEW


def remove_before(database: DuckDBPyConnection, moment: datetime) -> int:
    """Remove the runs that began before a moment in UTC. Return their number."""
    before = moment.astimezone(UTC).replace(tzinfo=None)
    runs = [run for (run,) in database.execute("SELECT run FROM run WHERE begun < ?", [before]).fetchall()]
    if runs:
        with transaction(database):
            remove_runs(database, runs)
            for statement in schema.FORGET:
                database.execute(statement)
    return len(runs)


def remove_runs(database: DuckDBPyConnection, runs: Sequence[int]) -> None:
    """Remove all rows of these runs. The caller has begun the transaction."""
    if runs:
        for table in schema.OF_RUNS:
            database.execute(f"DELETE FROM {table} WHERE list_contains(?, run)", [list(runs)])
