"""A database with a history: its schema, the rows of runs that are staged, entered and removed, and its errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.core.errors import HarnessError
from harness.fleet import schema
from harness.fleet.record import HistoryRecord

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: The settings of a database that is only read: a user's SQL can reach no file, no network and no setting.
CLOSED = {"enable_external_access": "false", "lock_configuration": "true"}
#: The types of numpy for the types of columns; texts are objects.
_NUMPY = {
    "DOUBLE": np.float64,
    "FLOAT": np.float64,
    "INTEGER": np.int64,
    "UTINYINT": np.int64,
    "USMALLINT": np.int64,
    "BOOLEAN": np.bool_,
}


class HistoryError(HarnessError):
    """A history cannot be opened, read or written."""


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
        return f"{str(path)!r} is no history: expected a folder with a Parquet file per run; give another --db"
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


def stage(database: DuckDBPyConnection, record: HistoryRecord) -> None:
    """Make the staging tables of a run."""
    for name, columns in schema.STAGES.items():
        rows = [{"run_id": record.run_id, **row} for row in record.rows[name]]
        stage_columns(
            database, name, {column: _array([row[column] for row in rows], kind) for column, kind in columns.items()}
        )


def stage_columns(database: DuckDBPyConnection, name: str, arrays: Mapping[str, Any]) -> None:
    """Make one staging table of columns of equal length: arrays of numpy, which DuckDB scans without a copy."""
    # `place` keeps the order of the rows, which is that of collection.
    database.register("staged", {**arrays, "place": np.arange(len(arrays["run_id"]))})
    listed = ", ".join(_cast(column, kind) for column, kind in schema.STAGES[name].items())
    database.execute(f"CREATE OR REPLACE TEMP TABLE stage_{name} AS SELECT {listed}, place FROM staged")
    database.unregister("staged")


def stage_files(database: DuckDBPyConnection, source: str) -> None:
    """Make the staging tables of the runs in Parquet files. `source`: the SQL for their rows."""
    for name, columns in schema.STAGES.items():
        chosen = ", ".join(f'"{column}"' for column in columns)
        database.execute(
            f"CREATE OR REPLACE TEMP TABLE stage_{name} AS SELECT {chosen}, place FROM {source} WHERE part = '{name}'"
        )


def stage_run(database: DuckDBPyConnection, run: int) -> None:
    """Make the staging tables of a run in the history that is attached as `old`."""
    for name, columns in schema.STAGES.items():
        chosen = ", ".join(f'CAST("{column}" AS {kind}) AS "{column}"' for column, kind in columns.items())
        rows = f"SELECT run_id, rows.* FROM old.run, ({schema.EXPORT[name].format(run=run)}) rows WHERE run = {run}"
        database.execute(
            f"CREATE OR REPLACE TEMP TABLE stage_{name} AS "
            f"SELECT {chosen}, row_number() OVER (ORDER BY row) - 1 AS place FROM ({rows}) ORDER BY row"
        )


def _cast(column: str, kind: str) -> str:
    """Return the column with its type. A list is staged as one text, and a missing number as NaN."""
    if kind.endswith("[]"):
        return (
            f"""CASE WHEN "{column}" = '' THEN [] ELSE string_split("{column}", chr(10)) END::{kind} AS "{column}\""""
        )
    return f'CAST("{column}" AS {kind}) AS "{column}"'


def _array(values: Sequence[Any], kind: str) -> Any:
    if kind in _NUMPY:
        plain = [np.nan if value is None else value for value in values]  # DuckDB takes NaN as NULL
        return np.array(plain, dtype=np.float64 if None in values else _NUMPY[kind])
    return np.array(["\n".join(value) if isinstance(value, tuple) else value for value in values], dtype=object)


def ingest(database: DuckDBPyConnection) -> None:
    """Enter the staged runs that are not in the history. The caller has begun the transaction."""
    for statement in schema.INGEST:
        database.execute(statement)


def unstage(database: DuckDBPyConnection) -> None:
    """Remove the staging tables."""
    for name in (*(f"stage_{name}" for name in schema.STAGES), "fresh"):
        database.execute(f"DROP TABLE IF EXISTS {name}")


def remove_runs(database: DuckDBPyConnection, runs: Sequence[int]) -> None:
    """Remove all rows of these runs. The caller has begun the transaction."""
    if runs:
        for table in schema.OF_RUNS:
            database.execute(f"DELETE FROM {table} WHERE list_contains(?, run)", [list(runs)])
