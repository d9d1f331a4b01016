"""A history in a folder: one Parquet file per run, for object stores and for many writers.

The file's name follows from the run's id, so that writing a run again replaces it. Readers load the files into a
database in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from harness.tools.history import database as databases
from harness.tools.history import schema, stage
from harness.tools.history.database import Added, HistoryError, duckdb, missing_text, quoted
from harness.tools.history.record import RunRecord

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SUFFIX = ".parquet"


@dataclass(frozen=True, slots=True)
class FolderStore:
    """A history in a folder of Parquet files."""

    path: Path

    def add(self, record: RunRecord) -> Added:
        """Write the file of a run, or say why not. Raise HistoryError."""
        target = self.path / file_name(record.run_id)
        database = duckdb().connect()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            there = target.exists()
            if there and self._print_of(database, target) == record.print:
                return Added.SAME
            stage.stage(database, [record])
            write_staged(database, target)
        except OSError as error:
            raise HistoryError(
                f"cannot write {str(target)!r}: {error.strerror}; give a writable folder to --db"
            ) from None
        finally:
            database.close()
        return Added.AGAIN if there else Added.NEW

    def prune(self, keep: timedelta, now: datetime) -> int:
        """Remove the files of runs that began before `now` minus `keep`. Return their number."""
        before = (now - keep).astimezone(UTC).timestamp()
        removed = 0
        database = duckdb().connect()
        try:
            for file in self.files():
                rows = self._rows(database, file, "begun")
                if rows and rows[0][0] < before:
                    file.unlink(missing_ok=True)
                    removed += 1
        finally:
            database.close()
        return removed

    @contextlib.contextmanager
    def reading(self) -> Generator[DuckDBPyConnection]:
        """Yield a database in memory with all runs, closed to files, network and settings."""
        database = duckdb().connect()
        try:
            self.load(database)
            database.execute("SET enable_external_access = false")
            database.execute("SET lock_configuration = true")
            yield database
        finally:
            database.close()

    def load(self, database: DuckDBPyConnection) -> None:
        """Enter all runs of the folder into an empty database."""
        files = self.files()
        if not files:
            raise HistoryError(missing_text(self.path))
        databases.migrate(database, self.path)
        listed = ", ".join(map(quoted, files))
        source = f"read_parquet([{listed}], union_by_name = true, filename = true)"
        error = duckdb().Error
        try:
            heads = database.execute(f"SELECT filename, schema FROM {source} WHERE part = 'run'").fetchall()
            databases.refuse_newer(max((int(version) for _, version in heads), default=0), self.path)
            if others := {*map(str, files)} - {name for name, _ in heads}:
                raise HistoryError(f"{min(others)!r} is no run of a history: move it out of the folder")
            there = {name for name, *_ in database.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()}
            for name, columns in schema.STAGES.items():
                # Files of an older schema lack columns.
                chosen = ", ".join(
                    f'"{column}"' if column in there else f'NULL::{kind} AS "{column}"'
                    for column, kind in columns.items()
                )
                database.execute(
                    f"CREATE OR REPLACE TEMP TABLE stage_{name} AS SELECT {chosen}, place FROM {source} "
                    f"WHERE part = '{name}'"
                )
            with databases.transaction(database):
                stage.ingest(database)
            for name in schema.STAGES:
                database.execute(f"DROP TABLE stage_{name}")
        except error as problem:
            first = str(problem).splitlines()[0]
            raise HistoryError(
                f"the folder {str(self.path)!r} has a Parquet file that is no run of a history: {first}"
            ) from None

    def files(self) -> list[Path]:
        """Return the files of runs, in the order of their names."""
        if not self.path.is_dir():
            raise HistoryError(missing_text(self.path))
        return sorted(path for path in self.path.glob(f"*{SUFFIX}") if not path.name.startswith("."))

    def _print_of(self, database: DuckDBPyConnection, file: Path) -> str:
        rows = self._rows(database, file, "print")
        return str(rows[0][0]) if rows else ""

    @staticmethod
    def _rows(database: DuckDBPyConnection, file: Path, column: str) -> list[tuple[float]]:
        try:
            found: list[tuple[float]] = database.execute(
                f"SELECT {column} FROM read_parquet({quoted(file)}) WHERE part = 'run'"
            ).fetchall()
        except duckdb().Error as error:
            first = str(error).splitlines()[0]
            raise HistoryError(f"{str(file)!r} is no run of a history: {first}") from None
        return found


def write_staged(database: DuckDBPyConnection, target: Path) -> None:
    """Write what is staged, one run, under another name, and rename it."""
    parts = " UNION ALL BY NAME ".join(
        f"SELECT '{name}' AS part, {schema.SCHEMA} AS schema, * FROM stage_{name}" for name in schema.STAGES
    )
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        database.execute(f"COPY ({parts}) TO {quoted(temporary)} (FORMAT parquet, COMPRESSION zstd)")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def file_name(run_id: str) -> str:
    """Return the name of the file of a run: readable, and different for different ids."""
    digest = hashlib.sha256(run_id.encode("utf-8", "backslashreplace")).hexdigest()[:10]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', run_id)[:60]}-{digest}{SUFFIX}"
