"""A run enters a history completely and once, even if the process is killed; invalid histories are refused."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

import duckdb

from harness.core.outcome import EXIT_USAGE, Outcome
from harness.fleet import record, schema
from harness.fleet import store as stores
from harness.fleet.database import Added, HistoryError
from harness.fleet.folder import FolderStore, open_store, run_file_name
from harness.fleet.store import FileStore
from tests.fleet.history import nights
from tests.fleet.matrix.runs import CASES, Machine, lines, write
from tests.reporting import build


@pytest.fixture(params=["file", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore | FolderStore:
    return FileStore(tmp_path / "h.duckdb") if request.param == "file" else FolderStore(tmp_path / "h")


def rows(store: FileStore | FolderStore, query: str) -> list[tuple[Any, ...]]:
    with store.reading() as database:
        return database.execute(query).fetchall()


def test_a_run_is_entered_once(store: FileStore | FolderStore, tmp_path: Path) -> None:
    made = record.read_history_record(nights.night(tmp_path, 0, {CASES[0]: Outcome.FAILED, CASES[1]: Outcome.GATED}))
    assert [store.add(made), store.add(made)] == [Added.NEW, Added.SAME]
    assert rows(store, "SELECT run_id, cases, ran, passed, red, gated, driver, torch FROM runs") == [
        (nights.run_id(0), 3, 2, 1, 1, 1, "570.1", "2.13.0")
    ]
    assert rows(store, 'SELECT "case", outcome, device, reason FROM results ORDER BY ALL') == [
        (CASES[0], "failed", "GPU-n1", None),
        (CASES[1], "gated", "GPU-n1", "memory: wanted >=40GiB, found 24.0GiB"),
        (CASES[2], "passed", "GPU-n1", None),
    ]
    (failure,) = rows(store, "SELECT message, reproduce, title FROM failures")
    assert failure == ("failed happened", f"pytest {CASES[0]} --seed=7", "failure: failed happened")


def test_a_resumed_run_replaces_its_former_state(store: FileStore | FolderStore, tmp_path: Path) -> None:
    path = nights.night(tmp_path, 0, {CASES[0]: Outcome.NOT_RUN})
    store.add(record.read_history_record(path))
    resumed = [
        build.run(run_id=nights.run_id(0), part=2, t=nights.BEGIN, host="n1"),
        build.start(CASES[0]),
        build.finish(CASES[0]),
        build.end(),
    ]
    with (path / "journal.ndjson").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in resumed)
    assert store.add(record.read_history_record(path)) is Added.AGAIN
    assert rows(store, "SELECT count(*), sum(red), sum(passed) FROM runs") == [(1, 0, 3)]
    assert rows(store, "SELECT count(*) FROM results") == [(3,)]
    assert rows(store, "SELECT count(*) FROM failures") == [(0,)]


def merged(folder: Path) -> Path:
    parts = [build.shard(shard=f"{i}/2", run_id=nights.run_id(0, f"n{i}"), host=f"n{i}") for i in (1, 2)]
    first, *rest = lines(Machine(), dict.fromkeys(CASES, Outcome.PASSED), run_id="merged", t=nights.BEGIN)
    return write(folder / "merged", [first, *parts, *rest], Machine())


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [0, 2, 1]])
def test_a_merged_run_is_not_counted_beside_its_shards(
    store: FileStore | FolderStore, tmp_path: Path, order: list[int]
) -> None:
    paths = [nights.night(tmp_path, 0, {}, Machine(f"n{i}")) for i in (1, 2)] + [merged(tmp_path)]
    for place in order:
        store.add(record.read_history_record(paths[place]))
    assert rows(store, "SELECT run_id FROM runs") == [("merged",)]
    assert rows(store, "SELECT count(*) FROM results") == [(3,)]


def test_prune_removes_old_runs_and_names_that_nothing_uses(store: FileStore | FolderStore, tmp_path: Path) -> None:
    for number in range(4):
        store.add(
            record.read_history_record(nights.night(tmp_path, number, {f"suites/x.py::only{number}": Outcome.FAILED}))
        )
    now = datetime.fromtimestamp(nights.BEGIN + 3 * nights.DAY + 60, UTC)
    assert store.prune(timedelta(days=1), now) == 3
    assert store.prune(timedelta(days=1), now) == 0
    assert rows(store, "SELECT run_id FROM runs") == [(nights.run_id(3),)]
    assert rows(store, "SELECT \"case\" FROM cases WHERE suite = 'suites'") == [("suites/x.py::only3",)]


def test_hostile_texts_are_only_texts(store: FileStore | FolderStore, tmp_path: Path) -> None:
    name = "suites/a/test_a.py::x['); DROP TABLE run; --]"
    message = "'; DELETE FROM run; -- \x00\udc80 ünïcode"
    path = nights.night(tmp_path, 0, {name: Outcome.FAILED}, messages={name: message}, run_id="a'b")
    store.add(record.read_history_record(path))
    ((case, text),) = rows(store, 'SELECT "case", message FROM failures')
    assert case == name
    assert text == "'; DELETE FROM run; -- \\x00\\udc80 ünïcode"


# ---- kills and second writers ----

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["duckdb", "harness.fleet.record", "harness.fleet.store", __name__])


def add_all(store: FileStore | FolderStore, paths: list[Path], said: Any) -> None:
    """Enter the runs, and send a message after each."""
    made = [record.read_history_record(path) for path in paths]
    said.send("ready")
    for each in made:
        store.add(each)
        said.send("added")


class Adding:
    """A process that enters runs, and has read them."""

    def __init__(self, store: FileStore | FolderStore, paths: list[Path]) -> None:
        self._words, other = FORKS.Pipe(duplex=False)
        self.process = FORKS.Process(target=add_all, args=(store, paths, other))
        self.process.start()
        other.close()
        assert self._words.recv() == "ready"

    def end(self) -> int:
        """Wait for the end. Return the number of runs that it entered."""
        self.process.join(120)
        added = 0
        while True:
            try:
                added += self._words.recv() == "added"
            except EOFError:
                self._words.close()
                return added


def there(store: FileStore | FolderStore) -> bool:
    return bool(store.files()) if isinstance(store, FolderStore) and store.path.exists() else store.path.exists()


@pytest.mark.acceptance
@pytest.mark.long
def test_a_killed_writer_leaves_whole_runs_only(store: FileStore | FolderStore, tmp_path: Path) -> None:
    """After ten kills, each some milliseconds later than the previous one, nothing is lost and nothing is duplicate."""
    cases = {f"suites/a/test_a.py::case{i}": Outcome.FAILED if i % 3 else Outcome.PASSED for i in range(300)}
    paths = [nights.night(tmp_path, number, cases) for number in range(6)]
    for attempt in range(10):
        adding = Adding(store, paths)
        time.sleep(0.024 * attempt)
        adding.process.kill()
        said = adding.end()
        found = []
        if there(store):
            found = rows(store, "SELECT r.run_id, r.cases, count(*) FROM runs r JOIN results USING (run) GROUP BY ALL")
        assert len(found) >= said
        assert {(whole, there) for _, whole, there in found} <= {(303, 303)}
    assert Adding(store, paths).end() == len(paths)
    assert rows(store, "SELECT count(*), count(DISTINCT run_id) FROM runs") == [(6, 6)]
    assert rows(store, "SELECT count(*) FROM results") == [(6 * 303,)]
    assert rows(store, "SELECT count(*) FROM failures") == [(6 * 200,)]


@pytest.mark.nightly
@pytest.mark.acceptance
def test_two_writers_and_a_reader_wait_for_each_other(store: FileStore | FolderStore, tmp_path: Path) -> None:
    paths = [nights.night(tmp_path, number) for number in range(12)]
    store.add(record.read_history_record(nights.night(tmp_path, 20)))
    writers = [Adding(store, paths[:8]), Adding(store, paths[4:])]
    while any(each.process.is_alive() for each in writers):
        ((runs, twice),) = rows(store, "SELECT count(*), count(*) - count(DISTINCT run_id) FROM runs")
        assert runs >= 1
        assert twice == 0
    assert [each.end() for each in writers] == [8, 8]
    assert rows(store, "SELECT count(*), count(DISTINCT run_id) FROM runs") == [(13, 13)]


# ---- refusals ----


def test_a_missing_history_names_the_command(store: FileStore | FolderStore) -> None:
    with pytest.raises(HistoryError, match=r"there is no history at .*: make one with harness history add"):
        rows(store, "FROM runs")


def junk(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)


def foreign(path: Path) -> None:
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE runs (a INTEGER)")


def newer(path: Path) -> None:
    store = FileStore(path)
    with store.writing() as database:
        database.execute("UPDATE meta SET value = '99' WHERE name = 'schema'")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (junk, "is no history: expected a DuckDB file or a folder; give another --db"),
        (foreign, "is a DuckDB file of something else: expected a history"),
        (newer, f"has schema 99, and this harness reads schemas up to {schema.SCHEMA}: use the harness that wrote it"),
    ],
)
def test_a_file_that_is_no_history_is_refused(make: Callable[[Path], None], text: str, tmp_path: Path) -> None:
    path = tmp_path / "h.duckdb"
    make(path)
    before = path.read_bytes()
    made = record.read_history_record(nights.night(tmp_path, 0))
    for use in (lambda: rows(FileStore(path), "FROM runs"), lambda: FileStore(path).add(made)):
        with pytest.raises(HistoryError) as caught:
            use()
        assert str(path) in str(caught.value)
        assert text in str(caught.value)
    if make is not newer:
        assert path.read_bytes() == before


def test_a_folder_with_another_parquet_file_is_refused(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "h")
    store.add(record.read_history_record(nights.night(tmp_path, 0)))
    with duckdb.connect() as database:
        database.execute(f"COPY (SELECT 1 AS a) TO '{store.path}/other.parquet'")
    with pytest.raises(HistoryError, match=r"other.parquet' is no run of a history: move it"):
        rows(store, "FROM runs")


def test_a_folder_of_a_newer_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path / "h")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "SCHEMA", 99)
        store.add(record.read_history_record(nights.night(tmp_path, 0)))
    with pytest.raises(HistoryError, match="has schema 99"):
        rows(store, "FROM runs")


@pytest.mark.parametrize("place", ["host", "device"])
def test_the_most_memory_of_a_case_is_kept_within_nine_percent(
    store: FileStore | FolderStore, tmp_path: Path, place: str
) -> None:
    path = nights.night(tmp_path, 0, {CASES[1]: Outcome.GATED})
    file = path / "journal.ndjson"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["event"] == "finish" and line["case"] == CASES[0]:
            line["memory"] = {place: 3 << 40} if place == "device" else {place: 1025}
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    store.add(record.read_history_record(path))
    found = rows(store, f'SELECT "case", {place}_memory FROM results ORDER BY "case"')
    assert [case for case, _ in found] == [*CASES]
    (most, *others) = [size for _, size in found]
    exact = {"host": 1025, "device": 3 << 40}[place]
    assert exact <= most <= 1.091 * exact
    assert others == [None, None]


@pytest.mark.parametrize(
    "query",
    [
        "COPY run TO '{folder}/out.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('{folder}/history.duckdb.lock')",
        "ATTACH '{folder}/other.duckdb'",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "INSTALL httpfs",
        "LOAD httpfs",
    ],
)
def test_sql_reaches_no_file_and_no_setting(store: FileStore | FolderStore, tmp_path: Path, query: str) -> None:
    store.add(record.read_history_record(nights.night(tmp_path, 0)))
    with store.reading() as database, pytest.raises(duckdb.Error):
        database.execute(query.format(folder=tmp_path))
    assert not (tmp_path / "out.csv").exists()
    assert not (tmp_path / "other.duckdb").exists()


def test_sql_changes_nothing(tmp_path: Path) -> None:
    store = nights.history(tmp_path, [nights.night(tmp_path, 0)])
    with store.reading() as database, pytest.raises(duckdb.Error):
        database.execute("DELETE FROM run")
    assert rows(store, "SELECT count(*) FROM runs") == [(1,)]


def test_the_kind_of_store_follows_from_the_path(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    kinds = {"new.duckdb": FileStore, "new/": FolderStore, "there": FolderStore}
    assert {name: type(open_store(f"{tmp_path}/{name}")) for name in kinds} == kinds


def test_names_of_files_are_safe_and_different() -> None:
    hostile = ["../../etc/passwd", "a/b", "a_b", "x" * 500, "\udc80"]
    names = [run_file_name(each) for each in hostile]
    assert len({*names}) == len(names)
    assert all("/" not in name and len(name) < 90 for name in names)


def test_a_writer_that_never_ends_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PATIENCE", 0.2)
    store = FileStore(tmp_path / "h.duckdb")
    ready = FORKS.Event()
    made = record.read_history_record(nights.night(tmp_path, 0))
    process = FORKS.Process(target=hold, args=(store.path, ready))
    process.start()
    try:
        assert ready.wait(30)
        with pytest.raises(HistoryError, match=r"another process has written to .* wait for it to end"):
            store.add(made)
    finally:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    assert store.add(made) is Added.NEW


def hold(path: Path, ready: Any) -> None:
    with FileStore(path).writing():
        ready.set()
        time.sleep(60)


# ---- the copy of a folder ----


def test_a_reader_of_a_folder_enters_new_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path / "h")
    entered: list[list[str]] = []
    enter = FolderStore._enter

    def noted(self: FolderStore, database: Any, files: Any) -> None:
        entered.append([*files])
        enter(self, database, files)

    monkeypatch.setattr(FolderStore, "_enter", noted)
    for number in range(3):
        store.add(record.read_history_record(nights.night(tmp_path, number)))
        assert rows(store, "SELECT count(*), count(DISTINCT run_id) FROM runs") == [(number + 1, number + 1)]
    assert rows(store, "SELECT count(*) FROM results") == [(9,)]
    assert entered == [[run_file_name(nights.run_id(number))] for number in range(3)]


def test_a_reader_of_a_folder_follows_files_that_change_and_go(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "h")
    for number in range(3):
        store.add(record.read_history_record(nights.night(tmp_path, number)))
    assert rows(store, "SELECT sum(red) FROM runs") == [(0,)]
    shutil.rmtree(tmp_path / nights.run_id(1))
    store.add(record.read_history_record(nights.night(tmp_path, 1, {CASES[0]: Outcome.FAILED})))
    assert rows(store, "SELECT sum(red), count(*) FROM runs") == [(1, 3)]
    (store.path / run_file_name(nights.run_id(1))).unlink()
    assert rows(store, "SELECT sum(red), count(*) FROM runs") == [(0, 2)]


def test_shards_are_runs_again_when_their_merged_run_is_gone(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "h")
    shards = [nights.night(tmp_path, 0, {}, Machine(f"n{i}")) for i in (1, 2)]
    for path in [merged(tmp_path), *shards]:
        store.add(record.read_history_record(path))
    assert rows(store, "SELECT count(*) FROM runs") == [(1,)]
    (whole,) = [path for path in store.files() if "merged" in path.name]
    whole.unlink()
    assert rows(store, "SELECT count(*) FROM runs") == [(2,)]


def test_a_folder_is_read_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "file"))
    store = FolderStore(tmp_path / "h")
    store.add(record.read_history_record(nights.night(tmp_path, 0)))
    assert store.copy is None
    assert rows(store, "SELECT count(*) FROM runs") == [(1,)]


def test_copies_that_nobody_uses_are_removed(tmp_path: Path, cache_of_the_test: Path) -> None:
    stores = [FolderStore(tmp_path / name) for name in ("old", "new", "late")]
    made = record.read_history_record(nights.night(tmp_path, 0))
    for each in stores:
        each.add(made)
        rows(each, "FROM runs")
        if each is not stores[2]:
            assert each.copy is not None
            os.utime(each.copy.path, (0, 0) if each is stores[0] else None)
    assert len([*cache_of_the_test.rglob("*.duckdb")]) == 2
    assert rows(stores[0], "SELECT count(*) FROM runs") == [(1,)]


def test_a_damaged_file_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB names the damaged "block", which is no lock: waiting for a lock would take two minutes."""
    store = nights.regression(tmp_path)
    intact = store.path.read_bytes()
    made = record.read_history_record(nights.night(tmp_path, 9))
    monkeypatch.setattr(stores, "PATIENCE", float("inf"))
    for place in range(4096, len(intact), len(intact) // 6):
        store.path.write_bytes(intact[:place] + bytes(64) + intact[place + 64 :])
        for act in (lambda: rows(store, "SELECT * FROM results"), lambda: store.add(made)):
            with contextlib.suppress(HistoryError):
                act()
    store.path.write_bytes(intact[:4096] + bytes(4096) + intact[8192:])
    with pytest.raises(HistoryError, match="is damaged: Corrupt database file"):
        rows(store, "SELECT * FROM results")


def test_a_full_disk_is_one_sentence(store: FileStore | FolderStore, tmp_path: Path) -> None:
    run = nights.night(tmp_path, 0)
    target = tmp_path / "h.duckdb" if isinstance(store, FileStore) else tmp_path / "h"
    target.mkdir() if isinstance(store, FolderStore) else None
    for most in (100, 20_000):
        command = ["prlimit", f"--fsize={most}", "--", sys.executable, "-m", "harness.cli", "history", "add", str(run)]
        done = subprocess.run(
            [*command, "--db", str(target)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        assert "Traceback" not in done.stderr
        if done.returncode:
            assert done.returncode == EXIT_USAGE
            assert f"harness: cannot write the history '{target}" in done.stderr
            assert len(done.stderr.splitlines()) == 1
    assert store.add(record.read_history_record(run)) in (Added.NEW, Added.SAME)
