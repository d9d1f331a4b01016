"""A history in a folder: one Parquet file per run, for object stores and for many writers.

The file's name follows from the run's id, so that another write of a run replaces its file. Readers keep a copy of the
runs in one DuckDB file in the user's cache, and add new files to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.atomic import create_exclusively
from harness.core.cache import cache_root
from harness.fleet import database as databases
from harness.fleet import schema, stage
from harness.fleet.database import Added, HistoryError, duckdb, missing_text, quoted
from harness.fleet.record import HistoryRecord
from harness.fleet.store import FileStore

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SUFFIX = ".parquet"
#: The most files that are entered in one transaction, to limit the memory.
BATCH = 100
#: Seconds after which an unchanged copy is removed.
UNUSED = 60 * 86_400.0
#: Time of the last change in nanoseconds, and size.
_Stat = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FolderStore:
    """A history in a folder of Parquet files."""

    path: Path

    def add(self, record: HistoryRecord) -> Added:
        """Write the file of a run, or return why it is not written. Raise HistoryError."""
        target = self.path / run_file_name(record.run_id)
        database = duckdb().connect()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            there = target.exists()
            if there and self._print_of(database, target) == record.print:
                return Added.SAME
            stage.stage(database, [record])
            with databases.errors(target, writing=True):
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

    @property
    def copy(self) -> FileStore | None:
        """The copy of the runs in the user's cache; None if it has no usable folder."""
        name = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:16]
        root = cache_root(os.environ)
        if root is None:
            return None
        with contextlib.suppress(OSError):
            (root / "history").mkdir(parents=True, exist_ok=True)
            return FileStore(root / "history" / f"{name}-{schema.SCHEMA}.duckdb")
        return None

    @contextlib.contextmanager
    def reading(self) -> Generator[DuckDBPyConnection]:
        """Yield a database with all runs, closed to files, network and settings."""
        copy = self.copy
        if copy is not None:
            while _copied(copy) != (there := self._there()):
                with copy.writing() as database:  # one batch at a time, so that other readers wait only for one batch
                    self._update(database, there)
                _remove_unused(copy.path)
            with copy.reading() as database:
                yield database
            return
        there = self._there()
        database = duckdb().connect()
        try:
            databases.prepare(database, self.path)
            while self._update(database, there) != there:
                pass
            database.execute("SET enable_external_access = false")
            database.execute("SET lock_configuration = true")
            yield database
        finally:
            database.close()

    def _there(self) -> dict[str, _Stat]:
        """Return the files of runs by name. Raise HistoryError if there is none."""
        there = {}
        for file in self.files():
            with contextlib.suppress(FileNotFoundError):  # pruned after the listing
                seen = file.stat()
                there[file.name] = (seen.st_mtime_ns, seen.st_size)
        if not there:
            raise HistoryError(missing_text(self.path))
        return there

    def _update(self, database: DuckDBPyConnection, there: Mapping[str, _Stat]) -> dict[str, _Stat]:
        """Remove the runs of files that are gone or have changed, and enter a batch of new files.

        Return the files that the database has then.
        """
        database.execute("CREATE TABLE IF NOT EXISTS copied_file (name TEXT, changed BIGINT, size BIGINT, run_id TEXT)")
        gone = [name for name, stat in _entered_files(database).items() if there.get(name) != stat]
        if gone:
            with databases.transaction(database):
                _remove(database, gone)
        if new := sorted(there.items() - _entered_files(database).items())[:BATCH]:
            self._enter(database, dict(new))
        return _entered_files(database)

    def _enter(self, database: DuckDBPyConnection, files: Mapping[str, _Stat]) -> None:
        """Enter the runs of these files in one transaction."""
        listed = ", ".join(quoted(self.path / name) for name in files)
        source = f"read_parquet([{listed}], union_by_name = true, filename = true)"
        error = duckdb().Error
        try:
            query = f"SELECT filename, run_id, schema FROM {source} WHERE part = 'run'"
            heads = {Path(file).name: (run, version) for file, run, version in database.execute(query).fetchall()}
            databases.refuse_newer(max((int(version) for _, version in heads.values()), default=0), self.path)
            if others := files.keys() - heads.keys():
                other = str(self.path / min(others))
                raise HistoryError(f"{other!r} is no run of a history: move it out of the folder")
            for name, columns in schema.STAGES.items():
                chosen = ", ".join(f'"{column}"' for column in columns)
                database.execute(
                    f"CREATE OR REPLACE TEMP TABLE stage_{name} AS SELECT {chosen}, place FROM {source} "
                    f"WHERE part = '{name}'"
                )
            with databases.transaction(database):
                merged = "SELECT run FROM run WHERE run_id IN (SELECT unnest(parts) FROM stage_run)"
                databases.remove_runs(database, [run for (run,) in database.execute(merged).fetchall()])
                stage.ingest(database)
                database.executemany(
                    "INSERT INTO copied_file VALUES (?, ?, ?, ?)",
                    [(name, *stat, heads[name][0]) for name, stat in files.items()],
                )
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
            rows: list[tuple[float]] = database.execute(
                f"SELECT {column} FROM read_parquet({quoted(file)}) WHERE part = 'run'"
            ).fetchall()
        except duckdb().Error as error:
            first = str(error).splitlines()[0]
            raise HistoryError(f"{str(file)!r} is no run of a history: {first}") from None
        return rows


def _entered_files(database: DuckDBPyConnection) -> dict[str, _Stat]:
    """Return the files whose runs the database has."""
    rows = database.execute("SELECT name, changed, size FROM copied_file").fetchall()
    return {name: (changed, size) for name, changed, size in rows}


def _copied(copy: FileStore) -> dict[str, _Stat]:
    """Return the files that a copy has; none if there is no copy or it is unreadable."""
    if copy.path.exists():
        with contextlib.suppress(HistoryError, duckdb().Error), copy.reading() as database:
            return _entered_files(database)
    return {}


def _remove(database: DuckDBPyConnection, files: list[str]) -> None:
    """Remove the runs of these files. If one is a merged run, remove all runs, because its shards may be runs now."""
    query = "SELECT run, parts FROM run WHERE run_id IN (SELECT run_id FROM copied_file WHERE list_contains(?, name))"
    rows = database.execute(query, [files]).fetchall()
    if any(parts for _, parts in rows):
        rows = database.execute("SELECT run, parts FROM run").fetchall()
        database.execute("DELETE FROM copied_file")
    databases.remove_runs(database, [run for run, _ in rows])
    database.execute("DELETE FROM copied_file WHERE list_contains(?, name)", [files])
    for statement in schema.FORGET:
        database.execute(statement)


def _remove_unused(copy: Path) -> None:
    """Remove copies of other folders that have not changed for a long time."""
    before = time.time() - UNUSED
    for other in copy.parent.glob("*.duckdb"):
        with contextlib.suppress(OSError):
            if other != copy and other.stat().st_mtime < before:
                other.unlink()


def write_staged(database: DuckDBPyConnection, target: Path) -> None:
    """Write the staged run under another name, and rename the file."""
    parts = " UNION ALL BY NAME ".join(
        f"SELECT '{name}' AS part, {schema.SCHEMA} AS schema, * FROM stage_{name}" for name in schema.STAGES
    )
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        create_exclusively(temporary).close()  # not through a link that was put there
        database.execute(f"COPY ({parts}) TO {quoted(temporary)} (FORMAT parquet, COMPRESSION zstd)")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def run_file_name(run_id: str) -> str:
    """Return the name of the file of a run: readable, and different for different ids."""
    digest = hashlib.sha256(run_id.encode("utf-8", "backslashreplace")).hexdigest()[:10]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', run_id)[:60]}-{digest}{SUFFIX}"


def is_folder(path: Path, text: str = "") -> bool:
    """Return whether the history at `path` is a folder of Parquet files. `text`: the path as the user wrote it."""
    return path.is_dir() or (not path.exists() and text.endswith("/"))


def open_store(text: str) -> FileStore | FolderStore:
    """Return the store for ``--db``: a folder if it is a folder or ends with a slash, otherwise a file."""
    path = Path(text)
    return FolderStore(path) if is_folder(path, text) else FileStore(path)
