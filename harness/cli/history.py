"""``harness history``: runs over nights in a database, what changed, and pages of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import say, say_lines
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_RED

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from harness.fleet.answers import Answers
    from harness.fleet.store import Store

_DAYS = {"d": 1, "w": 7, "y": 365}
_KEEP = re.compile(r"([1-9][0-9]{0,4})([dwy])")
#: The rows of one fetch.
_ROWS = 1000


class KeepError(HarnessError):
    """A duration is not valid."""


app = typer.Typer(
    help="Keep runs over nights in a database, and report what changed. The database is --db, or HARNESS_HISTORY.",
    no_args_is_help=True,
)

Db = Annotated[
    str,
    typer.Option(
        "--db",
        metavar="PATH",
        envvar="HARNESS_HISTORY",
        show_envvar=False,
        help="The history: a folder with a Parquet file per run. Default: HARNESS_HISTORY.",
    ),
]


def _store(db: str) -> Store:
    from harness.fleet.store import HistoryError, Store

    if not db:
        raise HistoryError("no history is named: give --db PATH, or set HARNESS_HISTORY")
    return Store(Path(db))


def _store_to_change(db: str) -> Store:
    """Return the store. One of an earlier release gets the form of this one, which standard error reports."""
    store = _store(db)
    if note := store.adopt(lambda line: say(f"harness: {line}", err=True)):
        say(f"harness: {note}", err=True)
    return store


@contextlib.contextmanager
def answering(db: str) -> Generator[Answers]:
    """Yield answers from the history `db`. Raise HistoryError if there is none."""
    from harness.fleet.answers import Answers

    with _store(db).reading() as database:
        yield Answers(database)


@app.command()
def add(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Run directories, folders with run directories up to four levels below, or archives of harness "
            "package.",
        ),
    ],
    db: Db = "",
    machine: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The machine's name, where the host's name differs each night, as in containers."
        ),
    ] = "",
) -> None:
    """Add runs to the history: run directories, merged and cluster runs, imported runs, evidence archives.

    A run is added once. A run that was resumed since then replaces its former state, and a merged run replaces its
    shards. Evidence is verified first.

    Exit status: 0 if the history has all runs; 1 if a run cannot be read, and the history has the others; 4 if a DIR
    has no run or the history cannot be written.
    """
    from harness.core.text import format_count
    from harness.fleet import record
    from harness.fleet.run import find_runs_and_archives
    from harness.fleet.store import HistoryError

    store = _store_to_change(db)
    run_paths = find_runs_and_archives(paths)
    counts: dict[str, int] = {}
    for path in run_paths.paths:
        try:
            made = record.read_history_record(path, machine)
        except HarnessError as error:
            say(f"harness: {' '.join(str(error).split())}", err=True)
            counts["refused"] = counts.get("refused", 0) + 1
            continue
        result = store.add(made).value
        counts[result] = counts.get(result, 0) + 1
        if len(run_paths.paths) <= 20:
            cases = format_count(len(made.rows["verdict"]), "case")
            say(f"{path}: run {made.run_id}, {cases}: {result}")
    for note in run_paths.notes:
        say(note)
    if not counts:
        raise HistoryError(f"no run in {', '.join(repr(str(path)) for path in paths)}: give run directories")
    say(f"{db}: {', '.join(f'{number} {word}' for word, number in counts.items())}")
    if "refused" in counts:
        raise typer.Exit(EXIT_RED)


@app.command()
def report(
    db: Db = "",
    case: Annotated[str, typer.Option(metavar="ID", help="Report on this case.")] = "",
    run: Annotated[str, typer.Option(metavar="ID", help="Report what is new in this run.")] = "",
    since: Annotated[
        str, typer.Option(metavar="ID", help="With --run: the run to compare it with. Default: the one before.")
    ] = "",
) -> None:
    """Print the last night: red groups with age and spread, machines, suspicious devices, flaky and slower cases.

    Exit status: 0, also if something is red; 4 if there is no such history, case or run.
    """
    from harness.fleet import reports
    from harness.fleet.store import HistoryError

    if since and not run:
        raise HistoryError("--since needs --run: give the run to compare")
    with answering(db) as answers:
        if case:
            text = reports.case_text(answers, case)
        else:
            text = reports.run_text(answers, run, since) if run else reports.front_text(answers)
    say_lines(text)


@app.command()
def bisect(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The key of a group, or its beginning.")],
    db: Db = "",
) -> None:
    """Print the pair of drivers, releases of torch, commits or other facts between which a group of failures began.

    The last lines are the commands that decide it. Nothing runs.

    Exit status: 0; 4 if the history has no such group.
    """
    from harness.fleet import reports

    with answering(db) as answers:
        say_lines(reports.bisect_text(answers, group))


@app.command()
def export(
    db: Db = "",
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder to write.")] = Path("site"),
) -> None:
    """Write static pages: the last night, and each red group, case, device and run of the last 90 nights.

    The pages load nothing from elsewhere. They can be put on any web server. FOLDER may exist; pages of an earlier
    export are replaced.

    Exit status: 0; 4 if there is no history or FOLDER cannot be written.
    """
    from harness.core.text import format_count
    from harness.fleet.pages import export_site

    with answering(db) as answers:
        pages = export_site(answers, out)
    say(f"wrote {format_count(pages, 'page')}: {out / 'index.html'}")


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL of DuckDB, such as 'FROM runs LIMIT 5'.")],
    db: Db = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
) -> None:
    """Run SQL, read-only: the query cannot change the history, and can reach no file and no network.

    docs/history.md describes the views runs, results, failures, groups, devices, health, findings and cases.

    Exit status: 0; 4 if there is no history, or the query has an error.
    """
    with answering(db) as answers:
        _print_rows(answers.database, query, as_json=as_json)


@app.command()
def prune(
    keep: Annotated[str, typer.Option("--keep", metavar="DURATION", help="How long runs are kept: 400d, 12w or 2y.")],
    db: Db = "",
) -> None:
    """Remove the runs that began before the last DURATION.

    Exit status: 0; 4 if the duration is not valid or there is no history.
    """
    from datetime import UTC, datetime

    from harness.core.text import format_count

    removed = _store_to_change(db).prune(_parsed_keep(keep), datetime.now(UTC))
    say(f"{db}: removed {format_count(removed, 'run')}")


def _parsed_keep(text: str) -> timedelta:
    """Return the duration ``400d``, ``12w`` or ``2y``. Raise KeepError."""
    match = _KEEP.fullmatch(text.strip())
    if match is None:
        raise KeepError(f"--keep={text!r} is no duration: expected days, weeks or years, such as 400d, 12w or 2y")
    return timedelta(days=int(match[1]) * _DAYS[match[2]])


def _print_rows(database: DuckDBPyConnection, query: str, *, as_json: bool) -> None:
    """Print the rows: as one table with tabs and a header, or as JSON. Raise HistoryError if the query fails."""
    import json

    import duckdb

    from harness.fleet.store import HistoryError
    from harness.reporting.page.inert import inert_line as inert

    try:
        cursor = database.execute(query)
        names = [column[0] for column in cursor.description or ()]
        if not as_json:
            say("\t".join(names))
        while rows := cursor.fetchmany(_ROWS):
            for row in rows:
                if as_json:
                    say(json.dumps(dict(zip(names, row, strict=True)), default=str))
                else:
                    cells = ("" if value is None else inert(str(value).replace("\t", " "), 10_000) for value in row)
                    say("\t".join(cells))
    except duckdb.Error as error:
        raise HistoryError(f"the query failed: {str(error).strip()}; docs/history.md describes the views") from None
