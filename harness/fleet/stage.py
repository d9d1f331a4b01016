"""Stage records for a database: columns as numpy arrays, which DuckDB scans without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.fleet.record import HistoryRecord
from harness.fleet.schema import INGEST, STAGES, ran_statement

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_NUMPY = {
    "DOUBLE": np.float64,
    "FLOAT": np.float64,
    "INTEGER": np.int64,
    "UTINYINT": np.int64,
    "USMALLINT": np.int64,
    "BOOLEAN": np.bool_,
}


def stage(database: DuckDBPyConnection, records: Sequence[HistoryRecord]) -> None:
    """Make the staging views of these records."""
    for name, columns in STAGES.items():
        rows = [(record.run_id, row) for record in records for row in record.rows[name]]
        arrays = {
            column: _array([run_id if column == "run_id" else row[column] for run_id, row in rows], kind)
            for column, kind in columns.items()
        }
        stage_columns(database, name, arrays)


def stage_columns(database: DuckDBPyConnection, name: str, arrays: Mapping[str, Any]) -> None:
    """Make one staging view of columns of equal length."""
    columns = STAGES[name]
    # `place` keeps the order of the rows, which is that of collection.
    database.register(f"staged_{name}", {**arrays, "place": np.arange(len(arrays["run_id"]))})
    listed = ", ".join(_cast(column, kind) for column, kind in columns.items())
    database.execute(f"CREATE OR REPLACE TEMP VIEW stage_{name} AS SELECT {listed}, place FROM staged_{name}")


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


def ingest(database: DuckDBPyConnection) -> int:
    """Enter the staged runs that are not in the history. Return their number. The caller has begun the transaction."""
    for statement in INGEST:
        database.execute(statement)
    note_ran(database, "fresh")
    (number,) = database.execute("SELECT count(*) FROM fresh").fetchall()[0]
    return int(number)


def note_ran(database: DuckDBPyConnection, runs: str) -> None:
    """Record which cases ran in the runs of this table."""
    (most,) = database.execute('SELECT coalesce(max("case"), 0) FROM case_name').fetchall()[0]
    database.execute(ran_statement(runs, most))


def unstage(database: DuckDBPyConnection) -> None:
    """Remove the references to the arrays."""
    for name in STAGES:
        database.execute(f"DROP VIEW IF EXISTS stage_{name}")
        database.unregister(f"staged_{name}")
    database.execute("DROP TABLE IF EXISTS fresh")
