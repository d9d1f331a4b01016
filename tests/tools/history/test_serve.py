"""The server of the pages: a real one, in a thread, on a free port of this machine."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("uvicorn")

import duckdb

from harness.tools.history import serve as serving
from harness.tools.history.database import HistoryError
from harness.tools.history.folder import open_store
from harness.tools.history.pages import page_file_name
from harness.tools.history.record import read_history_record
from harness.tools.history.serve import Reader, render_page, serve
from harness.tools.history.store import FileStore
from tests.tools.history import nights
from tests.tools.history.serving import Server, served
from tests.tools.matrix.runs import CASES


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with served(tmp_path) as found:
        yield found


def test_every_link_leads_to_a_page_and_none_elsewhere(server: Server) -> None:
    seen, wanted = set(), ["/"]
    while wanted:
        path = wanted.pop()
        if path in seen:
            continue
        seen.add(path)
        text = server.page(path)
        if "/assets/" in path:
            continue
        assert "\u202e" not in text
        assert re.findall("<script[^>]*>", text) == re.findall(r'<script src="(?:\.\./)?assets/[\w.-]+" defer>', text)
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            if not link.startswith(("#", "data:")):
                assert not urlsplit(link).netloc, link
                wanted.append(urljoin(path, link).partition("#")[0])
    assert {path.split("/")[1] for path in seen} >= {"assets", "cases", "groups", "devices", "runs", "reports"}


def test_there_is_a_page_for_a_case_that_never_failed(server: Server) -> None:
    assert CASES[2] in server.page(f"/{page_file_name('cases', CASES[2])}")


@pytest.mark.parametrize(
    ("words", "found"),
    [("THREE", CASES[2]), ("night1", "night1-n1"), ("img", "&lt;img src=x"), ("gpu-n1", "GPU-n1"), ("zzz", "0 names")],
)
def test_a_search_finds_names(server: Server, words: str, found: str) -> None:
    assert found in server.page(f"/search.html?q={quote(words)}")


@pytest.mark.parametrize(
    ("name", "words", "rows"),
    [
        ("runs", "night1", 2),
        ("runs", "NIGHT1 n2", 1),
        ("groups", "img", 1),
        ("groups", "nothing", 0),
        ("devices", "GPU-n1", 1),
        ("cases", "alert", 1),
    ],
)
def test_a_list_is_filtered_by_all_words(server: Server, name: str, words: str, rows: int) -> None:
    text = server.page(f"/{name}.html?filter={quote(words)}")
    assert text.count("<tr>") - 1 == rows
    assert f'value="{words}"' in text


def test_what_is_searched_for_is_inert(server: Server) -> None:
    for address in ("/search.html?q=", "/runs.html?filter="):
        text = server.page(f"{address}{quote('<script>alert(1)</script>')}")
        assert "<script>" not in text
        assert "&lt;script&gt;" in text


def test_two_runs_are_compared(server: Server) -> None:
    run = f"/{page_file_name('runs', 'night1-n1')}"
    assert "is newly red" not in server.page(run)
    assert "No case is newly red" in server.page(f"{run}?since=night1-n1")
    answer, text = server.get(f"{run}?since=nothing")
    assert (answer.status, text) == (
        404,
        "the history has no run 'nothing': see harness history sql 'FROM runs'\n",
    )


def test_the_report_of_a_run_is_served_and_no_other_file(server: Server) -> None:
    name = page_file_name("runs", "night1-n1").partition("/")[2]
    assert "the run's own page" in server.page(f"/reports/{name}")
    for path in ("/reports/..%2f..%2fetc%2fpasswd", "/reports/0123456789abcdef.html", "/../etc/passwd"):
        assert server.get(path)[0].status == 404


def test_a_name_of_elsewhere_is_refused(server: Server) -> None:
    assert server.get("/", host="evil.example")[0].status == 400


def test_only_reading_is_possible(server: Server) -> None:
    assert server.get("/", method="POST")[0].status == 405


def test_headers_allow_no_inline_script_and_no_other_origin(server: Server) -> None:
    answer, _ = server.get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_scripts_are_kept_by_the_browser_and_there_is_no_other_file(server: Server) -> None:
    (path,) = re.findall(r'src="(assets/[\w.-]+-history\.js)"', server.page("/"))
    answer, text = server.get(f"/{path}")
    assert answer.headers["Content-Type"].startswith("text/javascript")
    assert "immutable" in answer.headers["Cache-Control"]
    assert "shared" in text
    assert server.get("/assets/history.js")[0].status == 404


def test_a_run_that_is_added_is_there_at_once(server: Server, tmp_path: Path) -> None:
    assert "2025-10-11" not in server.page("/")
    server.store.add(read_history_record(nights.night(tmp_path, 2)))
    assert "2025-10-11" in server.page("/")


def test_an_open_file_is_read_once_and_makes_way_for_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = nights.regression(tmp_path)
    made = read_history_record(nights.night(tmp_path, 9))
    opened = 0
    reading = FileStore.reading

    def counted(self: FileStore) -> contextlib.AbstractContextManager[duckdb.DuckDBPyConnection]:
        nonlocal opened
        opened += 1
        return reading(self)

    monkeypatch.setattr(FileStore, "reading", counted)
    reader = Reader(store)
    for _ in range(3):
        render_page(reader, "index.html")
    assert opened == 1
    done = threading.Event()

    def write() -> None:
        store.add(made)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():  # requests that keep coming
        render_page(reader, "index.html")
    writer.join()
    assert b"2025-10-18" in render_page(reader, "index.html")
    reader.close()


def test_a_file_that_nobody_reads_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IDLE", 0.0)
    store = nights.regression(tmp_path)
    reader = Reader(store)
    render_page(reader, "index.html")
    with store.writing():  # waits for the reader
        pass
    assert not store.is_wanted()
    reader.close()


def test_a_file_is_wanted_while_a_writer_has_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "h.duckdb")
    assert not store.is_wanted()
    with store.writing():
        assert store.is_wanted()
    assert not store.is_wanted()


def test_a_folder_of_files_is_served(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}/history/")
    store.add(read_history_record(nights.night(tmp_path, 0)))
    reader = Reader(store)
    with reader.pages() as (made, _, _):
        assert b"2025-10-09" in made.index()
    store.add(read_history_record(nights.night(tmp_path, 1)))
    with reader.pages() as (made, _, _):
        assert b"2025-10-10" in made.index()
    reader.close()


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    store = nights.regression(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HistoryError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            serve(store, "127.0.0.1", port, [])


def test_a_history_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="there is no history"):
        serve(FileStore(tmp_path / "nothing.duckdb"), "127.0.0.1", 0, [])
