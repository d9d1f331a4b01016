"""The store of a history: a folder with one Parquet file per run, for any number of writers.

The problem: many machines add runs at the same time, perhaps to an object store, and reports on a year of nights must
take a second. A file per run needs no lock: it is written under another name and renamed, and its name follows from the
run's id, so that another write of a run replaces its file. But thousands of small files take minutes to scan.

Readers therefore keep a copy of all runs in one DuckDB file in the user's cache, and bring it up to date. A copy never
changes: a reader that finds new files changes a private copy of the copy, and renames that. Two readers who do so at
the same time both have a whole copy, and the later one stays. What remains: both do the work.

The tables, and how rows enter and leave them, are in the folder `sql`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import duckdb
import msgspec
from duckdb import DuckDBPyConnection

from harness.core.atomic import create_exclusively
from harness.core.cache import cache_root
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.core.text import format_count
from harness.fleet.record import HistoryRecord

#: The version of the tables: incremented with every change of them.
SCHEMA = 2
#: The kinds of rows of a run.
KINDS = ("run", "verdict", "absent", "trouble", "second", "device", "health", "finding")
#: The tables with rows of runs.
_OF_RUNS = ("verdict", "absent", "trouble", "second_device", "run_device", "health_event", "run_finding", "run")
#: Removes names that no row uses, after runs were removed.
_FORGET = """
    DELETE FROM case_name WHERE "case" NOT IN (FROM (SELECT "case" FROM verdict) UNION (SELECT "case" FROM absent));
    DELETE FROM device_name WHERE device NOT IN (SELECT device FROM run_device);
    DELETE FROM failure_group WHERE grp NOT IN (SELECT grp FROM trouble);
    DELETE FROM reason WHERE reason NOT IN (SELECT reason FROM verdict WHERE reason IS NOT NULL);
"""
#: The settings of a database that is only read: a user's SQL can reach no file, no network and no setting.
CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "lock_configuration": "true",
}
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


class HistoryError(HarnessError):
    """A history cannot be opened, read or written."""


class Added(StrEnum):
    """What happened to a run that was added."""

    NEW = "added"
    SAME = "already there"
    AGAIN = "replaced, because its journal has changed"
    PART = "left out: it is a shard of a merged run that the history has"


@dataclass(frozen=True, slots=True)
class Store:
    """A history. `path`: its folder, or the DuckDB file of an earlier release, which is read, and see `adopt`.

    `kept`: whether readers keep a copy of all runs.
    """

    path: Path
    kept: bool = True

    # ---- writing ----

    def add(self, record: HistoryRecord) -> Added:
        """Write the file of a run, or return why it is not written. Raise HistoryError."""
        self.adopt()
        target = self.path / run_file_name(record.run_id)
        with contextlib.closing(duckdb.connect()) as database:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                there = target.exists()
                if there and heads(database, [target], "print") == [(record.print,)]:
                    return Added.SAME
                if record.rows["run"][0]["shard"] and self._is_part(database, record.run_id):
                    return Added.PART
                with errors(target, "write"):
                    write_run(database, record, target)
            except OSError as error:
                raise HistoryError(
                    f"cannot write the history {str(target)!r}: {error.strerror}; give a writable folder to --db"
                ) from None
        return Added.AGAIN if there else Added.NEW

    def _is_part(self, database: DuckDBPyConnection, run_id: str) -> bool:
        files = self.files()
        return bool(files) and any(run_id in parts for (parts,) in heads(database, files, "parts"))

    def prune(self, keep: timedelta, now: datetime) -> int:
        """Remove the files of runs that began before `now` minus `keep`. Return their number."""
        self.adopt()
        files = self.files()
        if not files:
            raise HistoryError(missing_text(self.path))
        before = (now - keep).astimezone(UTC).timestamp()
        with contextlib.closing(duckdb.connect()) as database:
            old = [Path(name) for name, begun in heads(database, files, "filename, begun") if begun < before]
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
            with errors(self.path, "write"), contextlib.closing(duckdb.connect()) as database:
                database.execute(f"ATTACH {quoted(self.path)} AS old (READ_ONLY)")
                for run, run_id in runs:
                    database.execute(f"CREATE OR REPLACE TEMP TABLE exported AS {sql('export')}", {"run": run})
                    write_rows(database, f"SELECT {SCHEMA} AS schema, * FROM exported", folder / run_file_name(run_id))
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
        with errors(self.path, "read"), contextlib.closing(database):
            yield database

    @contextlib.contextmanager
    def _file(self) -> Generator[DuckDBPyConnection]:
        """Yield the database of an earlier release."""
        with errors(self.path, "open"):
            database = duckdb.connect(str(self.path), read_only=True, config=CLOSED)
        with errors(self.path, "read"), contextlib.closing(database):
            check_schema(database, self.path)
            yield database

    @property
    def copy(self) -> Path | None:
        """The copy of the runs in the user's cache; None if readers keep none, or it has no usable folder."""
        name = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:16]
        root = cache_root(os.environ)
        if root is None or not self.kept:
            return None
        folder = root / "history"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder / f"{name}-{SCHEMA}.duckdb"
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
            memory = duckdb.connect()
            self._fill(memory, there)
            memory.execute("SET enable_external_access = false")
            memory.execute("SET lock_configuration = true")
            return memory
        temporary = copy.with_name(f".{copy.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        try:
            if (former := _current(copy)) is not None:
                former.close()
                shutil.copyfile(copy, temporary)
            with errors(copy, "write"):
                with contextlib.closing(duckdb.connect(str(temporary))) as writable:
                    self._fill(writable, there)
                database = duckdb.connect(str(temporary), read_only=True, config=CLOSED)
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
        check_schema(database, self.path, create=True)
        database.execute("CREATE TABLE IF NOT EXISTS copied_file (name TEXT, changed BIGINT, size BIGINT, run_id TEXT)")
        if gone := [name for name, stat in _entered_files(database).items() if there.get(name) != stat]:
            with transaction(database):
                _remove(database, gone)
        new = sorted(there.items() - _entered_files(database).items())
        for first in range(0, len(new), BATCH):
            self._enter(database, dict(new[first : first + BATCH]))

    def _enter(self, database: DuckDBPyConnection, files: Mapping[str, _Stat]) -> None:
        """Enter the runs of these files in one transaction."""
        paths = [self.path / name for name in files]
        read = {Path(file).name: (run, version) for file, run, version in heads(database, paths, _HEAD)}
        refuse_newer(max((int(version) for _, version in read.values()), default=0), self.path)
        if others := files.keys() - read.keys():
            raise HistoryError(f"{str(self.path / min(others))!r} is no run of a history: move it out of the folder")
        try:
            _stage_files(database, _source(paths))
            with transaction(database):
                merged = "SELECT run FROM run WHERE run_id IN (SELECT unnest(parts) FROM stage_run)"
                remove_runs(database, [run for (run,) in database.execute(merged).fetchall()])
                database.execute(sql("ingest"))
                database.executemany(
                    "INSERT INTO copied_file VALUES (?, ?, ?, ?)",
                    [(name, *stat, read[name][0]) for name, stat in files.items()],
                )
            unstage(database)
        except duckdb.Error as problem:
            raise _foreign(paths, problem) from None


_HEAD = "filename, run_id, schema"


def _source(files: list[Path]) -> str:
    """Return the SQL for the rows of these files."""
    return f"read_parquet([{', '.join(map(quoted, files))}], union_by_name = true, filename = true)"


def heads(database: DuckDBPyConnection, files: list[Path], columns: str) -> list[tuple[Any, ...]]:
    """Return columns of the runs in these files. Raise HistoryError if one of them is another kind of file."""
    try:
        return [*database.execute(f"SELECT {columns} FROM {_source(files)} WHERE part = 'run'").fetchall()]
    except duckdb.Error as error:
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
    with contextlib.suppress(HistoryError, duckdb.Error):
        database = duckdb.connect(str(copy), read_only=True, config=CLOSED)
        try:
            check_schema(database, copy)
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
    remove_runs(database, [run for run, _ in rows])
    database.execute("DELETE FROM copied_file WHERE list_contains(?, name)", [files])
    database.execute(_FORGET)


def _remove_unused(copy: Path) -> None:
    """Remove copies of other folders that have not changed for a long time, and what killed readers left."""
    for pattern, seconds in (("*.duckdb", UNUSED), (".*.tmp*", LEFT)):
        for other in copy.parent.glob(pattern):
            with contextlib.suppress(OSError):
                if other != copy and other.stat().st_mtime < time.time() - seconds:
                    other.unlink()


def write_run(database: DuckDBPyConnection, record: HistoryRecord, target: Path) -> None:
    """Write the file of a run. Raise OSError, duckdb.Error."""
    columns = {"part": "VARCHAR", "schema": "INTEGER"}
    columns |= {name: type_ for stage in stages().values() for name, type_ in stage.items()}
    with tempfile.NamedTemporaryFile(suffix=".json") as lines:
        for kind in KINDS:
            for place, row in enumerate(record.rows[kind]):
                head = {"part": kind, "schema": SCHEMA, "run_id": record.run_id, "place": place}
                lines.write(msgspec.json.encode({**head, **row}) + b"\n")
        lines.flush()
        source = f"read_json({quoted(Path(lines.name))}, format = 'newline_delimited', columns = {columns})"
        write_rows(database, f"FROM {source}", target)


def write_rows(database: DuckDBPyConnection, query: str, target: Path) -> None:
    """Write rows under another name, and rename the file."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        create_exclusively(temporary).close()  # not through a link that was put there
        database.execute(f"COPY ({query}) TO {quoted(temporary)} (FORMAT parquet, COMPRESSION zstd)")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def run_file_name(run_id: str) -> str:
    """Return the name of the file of a run: readable, and different for different ids."""
    digest = hashlib.sha256(run_id.encode("utf-8", "backslashreplace")).hexdigest()[:10]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', run_id)[:60]}-{digest}{SUFFIX}"


# ---- the tables ----


@functools.cache
def sql(name: str) -> str:
    """Return the statements in a file of the folder `sql`."""
    return resources.files("harness.fleet").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


class Questions:
    """Named queries of an open database, from a file of the folder `sql`. Each follows a line ``-- name: NAME``.

    Values are given by name.
    """

    def __init__(self, database: DuckDBPyConnection, name: str) -> None:
        self.database = database
        database.execute(sql("words"))
        parts = re.split(r"^-- name: (\w+)\n", sql(name), flags=re.MULTILINE)
        texts = zip(parts[1::2], parts[2::2], strict=True)
        self.texts = {part: text.strip().removesuffix(";") for part, text in texts}

    def ask(self, question: str, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows of an answer."""
        return self.rows(self.texts[question], **values)

    def rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return [*self.database.execute(query, values or None).fetchall()]

    def table(self, question: str, **values: object) -> list[dict[str, Any]]:
        """Return rows whose values have the names of their columns."""
        cursor = self.database.execute(self.texts[question], values or None)
        names = [name for name, *_ in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _stage_files(database: DuckDBPyConnection, source: str) -> None:
    """Make the staging tables of the runs in Parquet files, which may lack columns. `source`: SQL for their rows."""
    database.execute(sql("stages"))
    for kind in KINDS:
        columns = ", ".join(f'"{column}"' for column in stages()[kind])
        every = f"(FROM stage_{kind} UNION ALL BY NAME FROM {source})"
        database.execute(f"INSERT INTO stage_{kind} BY NAME SELECT {columns} FROM {every} WHERE part = '{kind}'")


@functools.cache
def stages() -> Mapping[str, Mapping[str, str]]:
    """Return the columns of the staging tables with their types, by kind of row."""
    with contextlib.closing(duckdb.connect()) as database:
        database.execute(sql("stages"))
        query = "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ?"
        return {kind: dict(database.execute(query, [f"stage_{kind}"]).fetchall()) for kind in KINDS}


def unstage(database: DuckDBPyConnection) -> None:
    """Remove the staging tables."""
    for name in (*(f"stage_{kind}" for kind in KINDS), "fresh"):
        database.execute(f"DROP TABLE IF EXISTS {name}")


def remove_runs(database: DuckDBPyConnection, runs: Sequence[int]) -> None:
    """Remove all rows of these runs. The caller has begun the transaction."""
    if runs:
        for table in _OF_RUNS:
            database.execute(f"DELETE FROM {table} WHERE list_contains(?, run)", [list(runs)])


def schema_of(database: DuckDBPyConnection, path: Path) -> int:
    """Return the version of the schema; 0 for an empty database.

    Raise HistoryError if the database is not a history.
    """
    with contextlib.suppress(duckdb.Error):
        rows = dict(database.execute("SELECT name, value FROM meta WHERE name IN ('schema', 'what')").fetchall())
        if len(rows) == 2 and rows["schema"].isdecimal():  # the common case; the list of tables takes longer
            return int(rows["schema"])
    if not database.execute("SELECT 1 FROM duckdb_tables() WHERE NOT temporary LIMIT 1").fetchall():
        return 0
    raise HistoryError(f"{str(path)!r} is a DuckDB file of something else: expected a history; give another --db")


def check_schema(database: DuckDBPyConnection, path: Path, *, create: bool = False) -> None:
    """Raise HistoryError unless the database has the current schema. `create`: make an empty database a history."""
    version = schema_of(database, path)
    refuse_newer(version, path)
    if not version and not create:
        raise HistoryError(f"{str(path)!r} is an empty database: harness history add makes it a history")
    if not version:
        with transaction(database):
            database.execute(sql("tables"))
            database.execute("INSERT INTO meta VALUES ('schema', ?)", [str(SCHEMA)])
            outcomes = [(number, str(each), each.is_red, each.ran) for number, each in enumerate(Outcome)]
            database.executemany("INSERT INTO outcome_name VALUES (?, ?, ?, ?)", outcomes)


def refuse_newer(version: int, path: Path) -> None:
    """Raise HistoryError for a schema above the current one."""
    if version > SCHEMA:
        raise HistoryError(
            f"{str(path)!r} has schema {version}, and this harness reads schemas up to {SCHEMA}: "
            "use the harness that wrote it, or a newer one"
        )


@contextlib.contextmanager
def transaction(database: DuckDBPyConnection) -> Iterator[None]:
    """Commit everything that the block does, or nothing."""
    database.execute("BEGIN")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            database.execute("ROLLBACK")
        raise


# ---- DuckDB ----


def missing_text(path: Path) -> str:
    """Return the sentence about a history that does not exist."""
    return f"there is no history at {str(path)!r}: make one with harness history add DIR --db {path}"


@contextlib.contextmanager
def errors(path: Path, doing: Literal["open", "read", "write"]) -> Iterator[None]:
    """Turn an error of DuckDB in the block into a HistoryError: the history at `path` cannot be used."""
    try:
        yield
    except duckdb.Error as error:
        text = str(error)
        first = text.splitlines()[0] if text else ""
        said = f"cannot {doing} the history {str(path)!r}: {first}"
        if doing == "write":
            said += "; free space, or give another --db"
        elif doing == "open" and ("not a valid DuckDB" in text or "magic" in text.lower()):
            said = f"{str(path)!r} is no history: expected a folder with a Parquet file per run; give another --db"
        elif doing == "open" and ("newer" in text or "version number" in text):
            said = f"{str(path)!r} was written by a newer DuckDB: install that release ({first})"
        if "corrupt" in first.lower():
            advice = "restore it from a backup, or add its runs to a new one"
            said = f"the history {str(path)!r} is damaged: {first}; {advice}"
        raise HistoryError(said) from None


def quoted(path: Path) -> str:
    """Return the path as a string literal of SQL."""
    return "'" + str(path).replace("'", "''") + "'"
