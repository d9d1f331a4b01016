"""A temporary store of run directories, for questions about runs that are in no history."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import duckdb
from duckdb import DuckDBPyConnection

from harness.core.errors import HarnessError, WriteError, convert_to_write_error
from harness.core.text import escape_invalid_xml, single_line
from harness.fleet.record import history_record
from harness.fleet.run import is_plain, read_run
from harness.fleet.store import Store, heads, write_run
from harness.journal import environment, journal


class NothingReadError(HarnessError):
    """None of the runs can be read."""


class ReaderDiedError(HarnessError):
    """A process that reads runs ended before it was done."""


@dataclass(frozen=True, slots=True)
class RunsRead:
    """A store with runs. `names`: the given paths by run id. `notes`: sentences about runs that were left out."""

    database: DuckDBPyConnection
    names: Mapping[str, str]
    notes: tuple[str, ...]


@contextlib.contextmanager
def reading(run_dirs: Sequence[Path], notes: Iterable[str] = (), processes: int | None = None) -> Generator[RunsRead]:
    """Yield a temporary store with the runs in these directories. Raise NothingReadError, ReaderDiedError.

    Several processes read, by default one per core. `notes`: sentences about runs that were left out before.
    """
    said = list(notes)
    with tempfile.TemporaryDirectory(prefix="harness-matrix-") as folder:
        store = Store(Path(folder), kept=False)
        files = {store.path / f"{number:06}.parquet": path for number, path in enumerate(run_dirs)}
        said += filter(None, _in_processes(files, processes))
        names = _chosen({file: files[file] for file in store.files()}, said)
        if not names:
            raise NothingReadError(f"no run can be read: {'; '.join(said[:3])}; give other folders")
        with store.reading() as database:
            yield RunsRead(database, names, tuple(said))


def _in_processes(files: Mapping[Path, Path], processes: int | None) -> Iterator[str]:
    """Write the files of these run directories. Yield a sentence for each that cannot be read, otherwise ""."""
    wanted = min(processes or len(os.sched_getaffinity(0)), len(files))
    if wanted < 2:
        yield from map(_write, files.values(), files)
        return
    # Not forked: the open files and threads of the caller are unknown.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(wanted, mp_context=context, initializer=gc.disable) as pool:
            yield from pool.map(_write, files.values(), files)
    except BrokenProcessPool:
        message = "a process that reads runs was killed, perhaps for lack of memory: try again with fewer runs"
        raise ReaderDiedError(message) from None


def _write(run_dir: Path, file: Path) -> str:
    """Write the file of one run. Return a sentence if it cannot be read. Symbolic links are not followed."""
    left_out = f"{escape_invalid_xml(str(run_dir))} was left out"
    if not is_plain(run_dir / journal.FILE_NAME):
        return f"{left_out}: {journal.FILE_NAME} is a symbolic link or no regular file"
    try:
        record = history_record(read_run(run_dir, environments=is_plain(run_dir / environment.FILE_NAME)))
        with convert_to_write_error("a temporary file; free space in the folder for temporary files (TMPDIR)"):
            write_run(_database(), record, file)
    except duckdb.IOException as error:
        raise WriteError(f"cannot write a temporary file: {single_line(str(error))}; free space (TMPDIR)") from None
    except WriteError:
        raise
    except (HarnessError, duckdb.Error) as error:
        return f"{left_out}: {single_line(str(error))}"
    return ""


@functools.cache
def _database() -> DuckDBPyConnection:
    """Return the database of this process."""
    return duckdb.connect(config={"threads": 1})


def _chosen(files: Mapping[Path, Path], notes: list[str]) -> dict[str, str]:
    """Return the names of the runs, and remove the files of copies, of earlier states and of shards of merged runs."""
    if not files:
        return {}
    rows = heads(_database(), list(files), "filename, run_id, print, parts")
    read = {Path(file): (run_id, print_, parts or ()) for file, run_id, print_, parts in rows}
    name_of = {file: escape_invalid_xml(str(path)) for file, path in files.items()}
    kept: dict[str, Path] = {}
    for file in files:
        run_id, print_, _ = read[file]
        other = kept.setdefault(run_id, file)
        if other is file:
            continue
        # A journal only grows, so the longer one is the later state of a run.
        earlier, later = sorted([other, file], key=lambda each: _journal_size(files[each]))
        if read[other][1] == print_:
            notes.append(f"{name_of[file]} was left out: it is a copy of {name_of[other]}")
        else:
            kept[run_id] = later
            notes.append(f"{name_of[earlier]} was left out: it is an earlier state of {name_of[later]}")
    merged = {part: run_id for run_id, file in kept.items() for part in read[file][2]}
    for run_id in sorted(kept.keys() & merged.keys()):
        whole = name_of[kept[merged[run_id]]]
        notes.append(f"{name_of[kept.pop(run_id)]} was left out: it is a shard of the merged run {whole}")
    for file in files.keys() - set(kept.values()):
        file.unlink()
    return {run_id: name_of[file] for run_id, file in kept.items()}


def _journal_size(run_dir: Path) -> int:
    """Return the size of a journal; 0 if it is gone."""
    try:
        return (run_dir / journal.FILE_NAME).stat().st_size
    except OSError:
        return 0
