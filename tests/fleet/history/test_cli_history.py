"""`harness history` as users run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.main import app
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_OK, EXIT_RED, Outcome
from harness.journal import journal
from tests.fleet.history import nights
from tests.fleet.matrix.runs import CASES, Machine


def history(*words: object, status: int = EXIT_OK, db: Path | None = None) -> str:
    env = {"COLUMNS": "400", "HARNESS_HISTORY": "" if db is None else str(db)}
    done = CliRunner().invoke(app, ["history", *map(str, words)], env=env)
    assert done.exit_code == status, (done.output, done.exception)
    return done.output


def refused(*words: object, db: Path | None = None) -> str:
    env = {"HARNESS_HISTORY": "" if db is None else str(db)}
    done = CliRunner().invoke(app, ["history", *map(str, words)], env=env)
    assert isinstance(done.exception, HarnessError), (done.output, done.exception)
    return str(done.exception)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return nights.regression(tmp_path).path


def test_two_run_directories_are_a_page_in_two_commands(tmp_path: Path) -> None:
    for number in range(2):
        nights.night(tmp_path / "results", number, {CASES[0]: Outcome.FAILED} if number else {})
    db, out = tmp_path / "nights.duckdb", tmp_path / "site"
    said = history("add", tmp_path / "results", "--db", db)
    assert said.endswith(f"{db}: 2 added\n")
    assert f"wrote 10 pages: {out / 'index.html'}" in history("export", "--db", db, "-o", out)
    assert "2 already there" in history("add", tmp_path / "results", "--db", db)


def test_the_report_names_the_begin_and_the_driver(db: Path) -> None:
    said = history("report", db=db)
    assert "1 group, 1 case, since 2025-10-12, 2 nights" in said
    assert "began: n1 · H100: night3-n1 (2025-10-12); driver was '570.1' and is '580.1'" in said
    assert "example: suites/a/test_a.py::one: wrong sum" in said


def test_the_report_names_what_made_a_night_red_without_a_red_case(tmp_path: Path) -> None:
    """All cases passed elsewhere after a node was lost, in this night and the one before."""
    for number in range(2):
        run = nights.night(tmp_path / "results", number)
        *lines, end = (run / journal.FILE_NAME).read_text().splitlines()
        finding = {
            "event": "finding",
            "t": json.loads(end)["t"],
            "kind": "node_lost",
            "message": "node h1 was lost: gone",
        }
        text = "\n".join(
            [*lines, json.dumps({**finding, "cases": []}), end.replace('"exit_status":0', '"exit_status":1')]
        )
        (run / journal.FILE_NAME).write_text(f"{text}\n")
    db, out = tmp_path / "nights.duckdb", tmp_path / "site"
    history("add", tmp_path / "results", "--db", db)
    said = history("report", db=db)
    assert "1 run, 1 red; 0 groups of failures" in said
    assert "finding: n1 · H100: node_lost: node h1 was lost: gone" in said
    history("export", "--db", db, "-o", out)
    assert "node h1 was lost: gone" in (out / "index.html").read_text()


def test_a_case_has_a_line_per_machine(db: Path) -> None:
    said = history("report", "--case", CASES[0], db=db)
    assert "n1 · H100: regressed since night3-n1 (2025-10-12)" in said
    assert "n2 · H100: green" in said


def test_a_run_is_compared_with_the_one_before(db: Path) -> None:
    said = history("report", "--run", "night3-n1", db=db)
    assert "night3-n1: 1 newly red, 0 fixed, 0 newly gated since night2-n1" in said
    assert "driver was '570.1' and is '580.1'" in said
    assert "0 newly red" in history("report", "--run", "night4-n1", db=db)


def test_bisect_names_the_pair_of_drivers(db: Path) -> None:
    key = history("sql", 'SELECT "group" FROM groups', db=db).splitlines()[1]
    said = history("bisect", key[:6], db=db)
    assert "driver: 570.1 is good, 580.1 is bad (changed where it began on 1 of 1 machine; all runs agree)" in said
    assert "# with driver 570.1: expected green" in said


def test_sql_prints_a_table_or_json(db: Path) -> None:
    query = "SELECT night, sum(red) AS red FROM runs GROUP BY night ORDER BY night DESC LIMIT 1"
    assert history("sql", query, db=db) == "night\tred\n2025-10-14\t1\n"
    assert json.loads(history("sql", query, "--json", db=db)) == {"night": "2025-10-14", "red": 1}


def test_prune_removes_old_runs(db: Path) -> None:
    assert "removed 0 runs" in history("prune", "--keep", "100y", db=db)


def test_a_run_that_cannot_be_read_does_not_keep_the_others_out(tmp_path: Path) -> None:
    nights.night(tmp_path / "results", 0)
    broken = tmp_path / "results" / "broken"
    broken.mkdir()
    (broken / "journal.ndjson").write_text("no journal\n")
    said = history("add", tmp_path / "results", "--db", tmp_path / "h.duckdb", status=EXIT_RED)
    assert "1 refused, 1 added" in said


def test_a_machine_has_the_name_that_it_is_given(tmp_path: Path) -> None:
    for number, host in enumerate(["pod-17", "pod-99"]):
        path = nights.night(tmp_path, number, machine=Machine(host, uuid="GPU-1"))
        history("add", path, "--machine", "lab", "--db", tmp_path / "h.duckdb")
    said = history("sql", "SELECT DISTINCT lane FROM runs", db=tmp_path / "h.duckdb")
    assert said == "lane\nlab · H100\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["report"], "no history is named: give --db PATH, or set HARNESS_HISTORY"),
        (["add", "{folder}/nothing", "--db", "{folder}/h"], "there is no folder '{folder}/nothing'"),
        (
            ["add", "{folder}/empty", "--db", "{folder}/h"],
            "there is no run in '{folder}/empty': expected journal.ndjson",
        ),
        (["report", "--db", "{folder}/h"], "there is no history at '{folder}/h'"),
        (["prune", "--keep", "soon", "--db", "{folder}/h"], "--keep='soon' is no duration: expected days, weeks"),
        (["prune", "--keep", "0d", "--db", "{folder}/h"], "--keep='0d' is no duration"),
        (["report", "--case", "one", "--db", "{db}"], "no case 'one': did you mean 'suites/a/test_a.py::one'?"),
        (["report", "--run", "nine", "--db", "{db}"], "the history has no run 'nine'"),
        (["bisect", "zz", "--db", "{db}"], "the history has no group 'zz'"),
        (["sql", "SELEC 1", "--db", "{db}"], "the query failed: Parser Error"),
        (["sql", "DELETE FROM run", "--db", "{db}"], "the query failed"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], text: str, tmp_path: Path, db: Path) -> None:
    (tmp_path / "empty").mkdir()
    names = {"folder": str(tmp_path), "db": str(db)}
    assert text.format(**names) in refused(*(word.format(**names) for word in words))


def test_a_file_that_is_no_archive_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello")
    said = history("add", file, "--db", tmp_path / "h.duckdb", status=EXIT_RED)
    assert "1 refused" in said


def test_a_run_is_compared_with_any_other(db: Path) -> None:
    assert "since night4-n1" in history("report", "--run", "night5-n1", db=db)
    assert "1 newly red, 0 fixed, 0 newly gated since night0-n1" in history(
        "report", "--run", "night5-n1", "--since", "night0-n1", db=db
    )
    assert "the history has no run 'nothing'" in refused("report", "--run", "night5-n1", "--since", "nothing", db=db)
    assert "--since needs --run" in refused("report", "--since", "night0-n1", db=db)
