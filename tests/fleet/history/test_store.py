"""A run enters a history completely and once, even if the process is killed; invalid histories are refused."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from harness.core.outcome import EXIT_USAGE, Outcome
from harness.fleet import record
from harness.fleet import store as stores
from harness.fleet.store import SCHEMA, Added, HistoryError, Store, run_file_name
from tests.fleet.history import nights
from tests.fleet.matrix.runs import CASES, Machine, lines, write
from tests.reporting import build

#: The views that docs/history.md describes.
VIEWS = ("runs", "results", "failures", "groups", "devices", "health", "findings", "cases")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "h")


def former(path: Path, runs: Sequence[Path]) -> Store:
    """Write the DuckDB file of an earlier release, with these runs."""
    folder = Store(path.with_suffix(".folder"))
    for run in runs:
        folder.add(record.read_history_record(run))
    with duckdb.connect(str(path)) as database:
        stores.check_schema(database, path, create=True)
        if runs:
            folder._fill(database, folder._there())
            shutil.rmtree(folder.path)
    return Store(path)


def rows(store: Store, query: str) -> list[tuple[Any, ...]]:
    with store.reading() as database:
        return database.execute(query).fetchall()


def test_a_run_is_entered_once(store: Store, tmp_path: Path) -> None:
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


def test_a_resumed_run_replaces_its_former_state(store: Store, tmp_path: Path) -> None:
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
def test_a_merged_run_is_not_counted_beside_its_shards(store: Store, tmp_path: Path, order: list[int]) -> None:
    paths = [nights.night(tmp_path, 0, {}, Machine(f"n{i}")) for i in (1, 2)] + [merged(tmp_path)]
    for place in order:
        store.add(record.read_history_record(paths[place]))
    assert rows(store, "SELECT run_id FROM runs") == [("merged",)]
    assert rows(store, "SELECT count(*) FROM results") == [(3,)]


def test_prune_removes_old_runs_and_names_that_nothing_uses(store: Store, tmp_path: Path) -> None:
    for number in range(4):
        store.add(
            record.read_history_record(nights.night(tmp_path, number, {f"suites/x.py::only{number}": Outcome.FAILED}))
        )
    now = datetime.fromtimestamp(nights.BEGIN + 3 * nights.DAY + 60, UTC)
    assert store.prune(timedelta(days=1), now) == 3
    assert store.prune(timedelta(days=1), now) == 0
    assert rows(store, "SELECT run_id FROM runs") == [(nights.run_id(3),)]
    assert rows(store, "SELECT \"case\" FROM cases WHERE suite = 'suites'") == [("suites/x.py::only3",)]


def test_hostile_texts_are_only_texts(store: Store, tmp_path: Path) -> None:
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


def add_all(store: Store, paths: list[Path], said: Any) -> None:
    """Enter the runs, and send a message after each."""
    made = [record.read_history_record(path) for path in paths]
    said.send("ready")
    for each in made:
        store.add(each)
        said.send("added")


class Adding:
    """A process that enters runs, and has read them."""

    def __init__(self, store: Store, paths: list[Path]) -> None:
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


def there(store: Store) -> bool:
    return store.path.exists() and bool(store.files())


@pytest.mark.acceptance
@pytest.mark.long
def test_a_killed_writer_leaves_whole_runs_only(store: Store, tmp_path: Path) -> None:
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
def test_two_writers_and_a_reader_wait_for_each_other(store: Store, tmp_path: Path) -> None:
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


def test_a_missing_history_names_the_command(store: Store) -> None:
    with pytest.raises(HistoryError, match=r"there is no history at .*: make one with harness history add"):
        rows(store, "FROM runs")


def junk(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)


def foreign(path: Path) -> None:
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE runs (a INTEGER)")


def newer(path: Path) -> None:
    former(path, [])
    with duckdb.connect(str(path)) as database:
        database.execute("UPDATE meta SET value = '99' WHERE name = 'schema'")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (junk, "is no history: expected a folder with a Parquet file per run; give another --db"),
        (foreign, "is a DuckDB file of something else: expected a history"),
        (newer, f"has schema 99, and this harness reads schemas up to {SCHEMA}: use the harness that wrote it"),
    ],
)
def test_a_file_that_is_no_history_is_refused(make: Callable[[Path], None], text: str, tmp_path: Path) -> None:
    path = tmp_path / "h.duckdb"
    make(path)
    before = path.read_bytes()
    made = record.read_history_record(nights.night(tmp_path, 0))
    for use in (lambda: rows(Store(path), "FROM runs"), lambda: Store(path).add(made)):
        with pytest.raises(HistoryError) as caught:
            use()
        assert str(path) in str(caught.value)
        assert text in str(caught.value)
    if make is not newer:
        assert path.read_bytes() == before


def test_a_folder_with_another_parquet_file_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "h")
    store.add(record.read_history_record(nights.night(tmp_path, 0)))
    with duckdb.connect() as database:
        database.execute(f"COPY (SELECT 1 AS a) TO '{store.path}/other.parquet'")
    with pytest.raises(HistoryError, match=r"other.parquet' is no run of a history: move it"):
        rows(store, "FROM runs")


def test_a_folder_of_a_newer_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "h")
    with monkeypatch.context() as patch:
        patch.setattr(stores, "SCHEMA", 99)
        store.add(record.read_history_record(nights.night(tmp_path, 0)))
    with pytest.raises(HistoryError, match="has schema 99"):
        rows(store, "FROM runs")


@pytest.mark.parametrize("place", ["host", "device"])
def test_the_most_memory_of_a_case_is_kept_within_nine_percent(store: Store, tmp_path: Path, place: str) -> None:
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
def test_sql_reaches_no_file_and_no_setting(store: Store, tmp_path: Path, query: str) -> None:
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


def test_names_of_files_are_safe_and_different() -> None:
    hostile = ["../../etc/passwd", "a/b", "a_b", "x" * 500, "\udc80"]
    names = [run_file_name(each) for each in hostile]
    assert len({*names}) == len(names)
    assert all("/" not in name and len(name) < 90 for name in names)


# ---- the file of an earlier release ----


def everything(store: Store) -> list[list[tuple[Any, ...]]]:
    """Return the rows of all views, without the numbers of runs."""
    return [rows(store, f"SELECT COLUMNS(lambda c: c <> 'run') FROM {view} ORDER BY ALL") for view in VIEWS]


def with_all_kinds_of_rows(folder: Path) -> list[Path]:
    """Write nights with red, gated and flaky cases, a finding, a sick device and a figure of memory."""
    paths = [nights.night(folder, number, {CASES[0]: Outcome.FAILED, CASES[1]: Outcome.GATED}) for number in (1, 2)]
    paths.append(nights.night(folder, 3, {CASES[0]: Outcome.WAIVED}, seed=18446744073709551615))
    with (paths[1] / "journal.ndjson").open("a") as file:
        sick = build.device("sick", device="GPU-n1", message="Xid 79")
        more = [build.finding("node h1 was lost", kind="node_lost"), sick]
        file.writelines(json.dumps(line) + "\n" for line in more)
    return [*paths, merged(folder)]


def test_the_file_of_an_earlier_release_is_read_and_becomes_a_folder_with_equal_rows(tmp_path: Path) -> None:
    runs = with_all_kinds_of_rows(tmp_path / "results")
    store = former(tmp_path / "nights.duckdb", runs)
    before = everything(store)
    assert all(before), "each view has rows"
    assert store.path.is_file(), "a reader changes nothing"
    said = store.adopt()
    changed = f"'{store.path}' is now a folder with a file for each of its 4 runs"
    assert said == f"{changed}; the former file is '{store.path}.old'"
    assert (store.path.is_dir(), store.adopt()) == (True, "")
    assert everything(store) == before
    assert [store.add(record.read_history_record(run)) for run in runs] == [Added.SAME] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cache",
        "nights.duckdb",
        "nights.duckdb.old",
        "results",
    ]


def test_files_without_the_columns_of_a_later_release_are_read(tmp_path: Path) -> None:
    store = nights.history(tmp_path, with_all_kinds_of_rows(tmp_path / "results"))
    before = everything(store)
    newer = "environment, levels, notes, unread, devices, found, parent, named, other, red"
    for file in store.files():
        earlier = f"SELECT * EXCLUDE (schema, {newer}), 1 AS schema FROM '{file}'"
        with duckdb.connect() as database:
            database.execute(
                f"COPY ({earlier} WHERE part NOT IN ('absent', 'second')) TO '{file}.new' (FORMAT parquet)"
            )
        Path(f"{file}.new").replace(file)
    assert everything(store) == before


def test_cases_keep_the_order_of_their_collection(tmp_path: Path) -> None:
    run = nights.night(tmp_path, 0, {"suites/z.py::first": Outcome.PASSED, "suites/a.py::last": Outcome.PASSED})
    store = former(tmp_path / "h.duckdb", [run])
    query = 'SELECT id FROM case_name ORDER BY "case"'
    before = rows(store, query)
    store.adopt()
    assert rows(store, query) == before
    assert before[-2:] == [("suites/z.py::first",), ("suites/a.py::last",)]


def test_a_file_in_a_folder_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = former(tmp_path / "h.duckdb", [nights.night(tmp_path, 0)])

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    assert rows(store, "SELECT count(*) FROM runs") == [(1,)]
    with pytest.raises(HistoryError, match=r"cannot make a folder of .*: Permission denied; make its folder writable"):
        store.adopt()
    assert store.path.is_file()


# ---- the copy of a folder ----


def test_a_reader_of_a_folder_enters_new_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "h")
    entered: list[list[str]] = []
    enter = Store._enter

    def noted(self: Store, database: Any, files: Any) -> None:
        entered.append([*files])
        enter(self, database, files)

    monkeypatch.setattr(Store, "_enter", noted)
    for number in range(3):
        store.add(record.read_history_record(nights.night(tmp_path, number)))
        assert rows(store, "SELECT count(*), count(DISTINCT run_id) FROM runs") == [(number + 1, number + 1)]
    assert rows(store, "SELECT count(*) FROM results") == [(9,)]
    assert entered == [[run_file_name(nights.run_id(number))] for number in range(3)]


def test_a_reader_of_a_folder_follows_files_that_change_and_go(tmp_path: Path) -> None:
    store = Store(tmp_path / "h")
    for number in range(3):
        store.add(record.read_history_record(nights.night(tmp_path, number)))
    assert rows(store, "SELECT sum(red) FROM runs") == [(0,)]
    shutil.rmtree(tmp_path / nights.run_id(1))
    store.add(record.read_history_record(nights.night(tmp_path, 1, {CASES[0]: Outcome.FAILED})))
    assert rows(store, "SELECT sum(red), count(*) FROM runs") == [(1, 3)]
    (store.path / run_file_name(nights.run_id(1))).unlink()
    assert rows(store, "SELECT sum(red), count(*) FROM runs") == [(0, 2)]


def test_shards_are_runs_again_when_their_merged_run_is_gone(tmp_path: Path) -> None:
    store = Store(tmp_path / "h")
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
    store = Store(tmp_path / "h")
    store.add(record.read_history_record(nights.night(tmp_path, 0)))
    assert store.copy is None
    assert rows(store, "SELECT count(*) FROM runs") == [(1,)]


def test_copies_that_nobody_uses_are_removed(tmp_path: Path, cache_of_the_test: Path) -> None:
    stores = [Store(tmp_path / name) for name in ("old", "new", "late")]
    made = record.read_history_record(nights.night(tmp_path, 0))
    for each in stores:
        each.add(made)
        rows(each, "FROM runs")
        if each is not stores[2]:
            assert each.copy is not None
            os.utime(each.copy, (0, 0) if each is stores[0] else None)
    assert len([*cache_of_the_test.rglob("*.duckdb")]) == 2
    left = [cache_of_the_test / "history" / f".{name}.duckdb.1-2.tmp" for name in ("killed", "present")]
    for path in left:
        path.touch()
    os.utime(left[0], (0, 0))
    stores[1].add(record.read_history_record(nights.night(tmp_path, 1)))
    rows(stores[1], "FROM runs")
    assert [path.exists() for path in left] == [False, True]
    assert rows(stores[0], "SELECT count(*) FROM runs") == [(1,)]


def test_a_copy_that_is_damaged_or_of_another_kind_is_made_anew(tmp_path: Path) -> None:
    store = nights.regression(tmp_path)
    expected = rows(store, "SELECT count(*) FROM results")
    assert store.copy is not None
    intact = store.copy.read_bytes()
    for damaged in (b"", b"junk" * 5000, intact[:4096] + bytes(4096) + intact[8192:], intact[: len(intact) // 2]):
        store.copy.write_bytes(damaged)
        assert rows(store, "SELECT count(*) FROM results") == expected
    assert not [*store.copy.parent.glob(".*")], "nothing else is left"


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    store = nights.regression(tmp_path)
    file = store.files()[0]
    intact = file.read_bytes()
    for damaged in (b"", b"junk" * 500, intact[: len(intact) // 2], intact[:4] + bytes(64) + intact[68:]):
        file.write_bytes(damaged)
        with pytest.raises(HistoryError, match=r"Parquet file that is no run of a history|cannot read the history"):
            rows(store, "SELECT * FROM results")
    former_file = former(tmp_path / "h.duckdb", [nights.night(tmp_path / "r", 0)]).path
    intact = former_file.read_bytes()
    former_file.write_bytes(intact[:4096] + bytes(4096) + intact[8192:])
    with pytest.raises(HistoryError, match="is damaged: Corrupt database file"):
        rows(Store(former_file), "SELECT * FROM results")


def test_a_full_disk_is_one_sentence(store: Store, tmp_path: Path) -> None:
    run = nights.night(tmp_path, 0)
    target = store.path
    target.mkdir()
    for most in (100, 20_000):
        command = ["prlimit", f"--fsize={most}", "--", sys.executable, "-m", "harness", "history", "add", str(run)]
        done = subprocess.run(
            [*command, "--db", str(target)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        assert "Traceback" not in done.stderr
        if done.returncode:
            assert done.returncode == EXIT_USAGE
            assert f"harness: cannot write the history '{target}" in done.stderr
            assert len(done.stderr.splitlines()) == 1
    assert store.add(record.read_history_record(run)) in (Added.NEW, Added.SAME)
