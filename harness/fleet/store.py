"""The store of a history: a folder with one Parquet file per run, for any number of writers.

The problem: many machines add runs at the same time, perhaps to an object store, and reports on a year of nights must
take a second. A file per run needs no lock: it is written under another name and renamed, and its name follows from the
run's id, so that another write of a run replaces its file. But thousands of small files take minutes to scan.

Readers therefore keep a copy of all runs in one DuckDB file in the user's cache, and bring it up to date. A copy never
changes: a reader that finds new files changes a private copy of the copy, and renames that. Two readers who do so at
the same time both have a whole copy, and the later one stays. What remains: both do the work.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.atomic import create_exclusively
from harness.core.cache import cache_root
from harness.core.text import format_count
from harness.fleet import schema, tables
from harness.fleet.record import HistoryRecord
from harness.fleet.tables import CLOSED, HistoryError, duckdb, missing_text, quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SUFFIX = ".parquet"
#: The most files that are entered in one transaction, to limit the memory.
BATCH = 100
#: Seconds after which an unchanged copy is removed.
UNUSED = 60 * 86_400.0
#: Seconds after which an unfinished copy belongs to a reader that was killed.
LEFT = 86_400.0
#: The end of the name of a DuckDB file that was the store before its runs became a folder.
FORMER = ".old"
#: Time of the last change in nanoseconds, and size.
_Stat = tuple[int, int]


class Added(StrEnum):
    """What happened to a run that was added."""

    NEW = "added"
    SAME = "already there"
    AGAIN = "replaced, because its journal has changed"
    PART = "left out: it is a shard of a merged run that the history has"


@dataclass(frozen=True, slots=True)
class Store:
    """A history. `path`: its folder, or the DuckDB file of an earlier release, which is read, and see `adopt`."""

    path: Path

    # ---- writing ----

    def add(self, record: HistoryRecord) -> Added:
        """Write the file of a run, or return why it is not written. Raise HistoryError."""
        self.adopt()
        target = self.path / run_file_name(record.run_id)
        with contextlib.closing(duckdb().connect()) as database:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                there = target.exists()
                if there and _heads(database, [target], "print") == [(record.print,)]:
                    return Added.SAME
                if record.rows["run"][0]["shard"] and self._is_part(database, record.run_id):
                    return Added.PART
                tables.stage(database, record)
                with tables.errors(target, writing=True):
                    write_staged(database, target)
            except OSError as error:
                raise HistoryError(
                    f"cannot write {str(target)!r}: {error.strerror}; give a writable folder to --db"
                ) from None
        return Added.AGAIN if there else Added.NEW

    def _is_part(self, database: DuckDBPyConnection, run_id: str) -> bool:
        files = self.files()
        return bool(files) and any(run_id in parts for (parts,) in _heads(database, files, "parts"))

    def prune(self, keep: timedelta, now: datetime) -> int:
        """Remove the files of runs that began before `now` minus `keep`. Return their number."""
        self.adopt()
        files = self.files()
        if not files:
            raise HistoryError(missing_text(self.path))
        before = (now - keep).astimezone(UTC).timestamp()
        with contextlib.closing(duckdb().connect()) as database:
            old = [Path(name) for name, begun in _heads(database, files, "filename, begun") if begun < before]
        for file in old:
            file.unlink(missing_ok=True)
        return len(old)

    def adopt(self, log: Callable[[str], object] = lambda _: None) -> str:
        """Make a folder of the DuckDB file of an earlier release, and return a sentence about it; "" without one.

        The file stays beside the folder, under another name. `log` gets a line if this takes long. Raise HistoryError
        if the file is no history.
        """
        if not self.path.is_file():
            return ""
        former = self.path.with_name(f"{self.path.name}{FORMER}")
        folder = self.path.with_name(f".{self.path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        with self._file() as database:
            runs = database.execute("SELECT run, run_id FROM run").fetchall()
        if len(runs) > BATCH:
            log(f"{len(runs)} runs of {str(self.path)!r} become a folder, which takes about {len(runs) // 15} s")
        try:
            folder.mkdir()
            with tables.errors(self.path, writing=True), contextlib.closing(duckdb().connect()) as database:
                database.execute(f"ATTACH {quoted(self.path)} AS old (READ_ONLY)")
                for run, run_id in runs:
                    tables.stage_run(database, run)
                    write_staged(database, folder / run_file_name(run_id))
            self.path.rename(former)
            folder.rename(self.path)
        except OSError as error:
            raise HistoryError(
                f"cannot make a folder of {str(self.path)!r}: {error.strerror}; make its folder writable"
            ) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return (
            f"{str(self.path)!r} is now a folder with a file for each of its {format_count(len(runs), 'run')}; "
            f"the former file is {str(former)!r}"
        )

    # ---- reading ----

    @contextlib.contextmanager
    def reading(self) -> Generator[DuckDBPyConnection]:
        """Yield a database with all runs, closed to files, network and settings."""
        if self.path.is_file():
            with self._file() as database:
                yield database
            return
        there = self._there()
        copy = self.copy
        database = (None if copy is None else _current(copy, there)) or self._renewed(copy, there)
        with tables.errors(self.path, writing=False), contextlib.closing(database):
            yield database

    @contextlib.contextmanager
    def _file(self) -> Generator[DuckDBPyConnection]:
        """Yield the database of an earlier release."""
        try:
            database = duckdb().connect(str(self.path), read_only=True, config=CLOSED)
        except duckdb().Error as error:
            raise HistoryError(tables.open_text(self.path, str(error))) from None
        with tables.errors(self.path, writing=False), contextlib.closing(database):
            tables.check_schema(database, self.path)
            yield database

    @property
    def copy(self) -> Path | None:
        """The copy of the runs in the user's cache; None if it has no usable folder."""
        name = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:16]
        root = cache_root(os.environ)
        if root is None:
            return None
        folder = root / "history"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder / f"{name}-{schema.SCHEMA}.duckdb"
        return None

    def files(self) -> list[Path]:
        """Return the files of runs, in the order of their names."""
        if not self.path.is_dir():
            raise HistoryError(missing_text(self.path))
        return sorted(path for path in self.path.glob(f"*{SUFFIX}") if not path.name.startswith("."))

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

    def _renewed(self, copy: Path | None, there: Mapping[str, _Stat]) -> DuckDBPyConnection:
        """Return a database with the runs of these files, which is the new copy if the cache can hold one."""
        if copy is None:
            memory: DuckDBPyConnection = duckdb().connect()
            self._fill(memory, there)
            memory.execute("SET enable_external_access = false")
            memory.execute("SET lock_configuration = true")
            return memory
        temporary = copy.with_name(f".{copy.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        try:
            if (former := _current(copy)) is not None:
                former.close()
                shutil.copyfile(copy, temporary)
            with tables.errors(copy, writing=True):
                with contextlib.closing(duckdb().connect(str(temporary))) as writable:
                    self._fill(writable, there)
                database: DuckDBPyConnection = duckdb().connect(str(temporary), read_only=True, config=CLOSED)
            temporary.replace(copy)
        except OSError as error:
            raise HistoryError(f"cannot write {str(temporary)!r}: {error.strerror}; free space in the cache") from None
        finally:
            for path in (temporary, temporary.with_name(f"{temporary.name}.wal")):
                path.unlink(missing_ok=True)
        _remove_unused(copy)
        return database

    def _fill(self, database: DuckDBPyConnection, there: Mapping[str, _Stat]) -> None:
        """Make a database have exactly the runs of these files."""
        tables.prepare(database, self.path)
        database.execute("CREATE TABLE IF NOT EXISTS copied_file (name TEXT, changed BIGINT, size BIGINT, run_id TEXT)")
        if gone := [name for name, stat in _entered_files(database).items() if there.get(name) != stat]:
            with tables.transaction(database):
                _remove(database, gone)
        new = sorted(there.items() - _entered_files(database).items())
        for first in range(0, len(new), BATCH):
            self._enter(database, dict(new[first : first + BATCH]))

    def _enter(self, database: DuckDBPyConnection, files: Mapping[str, _Stat]) -> None:
        """Enter the runs of these files in one transaction."""
        paths = [self.path / name for name in files]
        heads = {Path(file).name: (run, version) for file, run, version in _heads(database, paths, _HEAD)}
        tables.refuse_newer(max((int(version) for _, version in heads.values()), default=0), self.path)
        if others := files.keys() - heads.keys():
            raise HistoryError(f"{str(self.path / min(others))!r} is no run of a history: move it out of the folder")
        try:
            tables.stage_files(database, _source(paths))
            with tables.transaction(database):
                merged = "SELECT run FROM run WHERE run_id IN (SELECT unnest(parts) FROM stage_run)"
                tables.remove_runs(database, [run for (run,) in database.execute(merged).fetchall()])
                tables.ingest(database)
                database.executemany(
                    "INSERT INTO copied_file VALUES (?, ?, ?, ?)",
                    [(name, *stat, heads[name][0]) for name, stat in files.items()],
                )
            tables.unstage(database)
        except duckdb().Error as problem:
            raise _foreign(paths, problem) from None


_HEAD = "filename, run_id, schema"


def _source(files: list[Path]) -> str:
    """Return the SQL for the rows of these files."""
    return f"read_parquet([{', '.join(map(quoted, files))}], union_by_name = true, filename = true)"


def _heads(database: DuckDBPyConnection, files: list[Path], columns: str) -> list[tuple[Any, ...]]:
    """Return columns of the runs in these files. Raise HistoryError if one of them is another kind of file."""
    try:
        return [*database.execute(f"SELECT {columns} FROM {_source(files)} WHERE part = 'run'").fetchall()]
    except duckdb().Error as error:
        raise _foreign(files, error) from None


def _foreign(files: list[Path], error: Exception) -> HistoryError:
    first = str(error).splitlines()[0]
    if len(files) == 1:
        return HistoryError(f"{str(files[0])!r} is no run of a history: {first}; move it out of the folder")
    return HistoryError(f"the folder {str(files[0].parent)!r} has a Parquet file that is no run of a history: {first}")


def _current(copy: Path, there: Mapping[str, _Stat] | None = None) -> DuckDBPyConnection | None:
    """Return the database of a copy that has exactly these files, or any; None if there is no such copy."""
    if not copy.exists():
        return None
    with contextlib.suppress(HistoryError, duckdb().Error):
        database: DuckDBPyConnection = duckdb().connect(str(copy), read_only=True, config=CLOSED)
        try:
            tables.check_schema(database, copy)
            if there is None or _entered_files(database) == there:
                return database
        except BaseException:
            database.close()
            raise
        database.close()
    return None


def _entered_files(database: DuckDBPyConnection) -> dict[str, _Stat]:
    """Return the files whose runs the database has."""
    rows = database.execute("SELECT name, changed, size FROM copied_file").fetchall()
    return {name: (changed, size) for name, changed, size in rows}


def _remove(database: DuckDBPyConnection, files: list[str]) -> None:
    """Remove the runs of these files. If one is a merged run, remove all runs, because its shards may be runs now."""
    query = "SELECT run, parts FROM run WHERE run_id IN (SELECT run_id FROM copied_file WHERE list_contains(?, name))"
    rows = database.execute(query, [files]).fetchall()
    if any(parts for _, parts in rows):
        rows = database.execute("SELECT run, parts FROM run").fetchall()
        database.execute("DELETE FROM copied_file")
    tables.remove_runs(database, [run for run, _ in rows])
    database.execute("DELETE FROM copied_file WHERE list_contains(?, name)", [files])
    for statement in schema.FORGET:
        database.execute(statement)


def _remove_unused(copy: Path) -> None:
    """Remove copies of other folders that have not changed for a long time, and what killed readers left."""
    for pattern, seconds in (("*.duckdb", UNUSED), (".*.tmp*", LEFT)):
        for other in copy.parent.glob(pattern):
            with contextlib.suppress(OSError):
                if other != copy and other.stat().st_mtime < time.time() - seconds:
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
