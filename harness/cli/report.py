"""``harness report``, with one command per format, and the other commands on run directories: import, durations."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.console import group_with_default, make_console, say, say_lines, say_styled
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_RED
from harness.core.text import format_count

if TYPE_CHECKING:
    from harness.journal.ledger import Ledger
    from harness.journal.reader import JournalContents
    from harness.journal.stored_run import StoredRun
    from harness.reporting.junit import JunitReport

_STANDARD_OUTPUT = "-"
_RunDir = Annotated[Path, typer.Argument(metavar="DIR", help="The run directory: the folder of journal.ndjson.")]
_Out = Annotated[
    str, typer.Option("--out", "-o", metavar="FILE", help="The file to write. Default: -, standard output.")
]


class ReportError(HarnessError):
    """A report cannot be written as requested."""


app = typer.Typer(
    cls=group_with_default("show"),
    help=(
        "Print the results of a run and write its junit.xml: harness report DIR. Write one report of a run: junit, "
        "html, json, markdown, prometheus, or as FORMAT for that of a package. Make one run of shards: merge."
    ),
    no_args_is_help=True,
)


@app.command()
def show(
    run_dir: _RunDir,
    growth: Annotated[
        bool,
        typer.Option("--growth", help="Show the memory of every repeated case, not only of those that grew."),
    ] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit with 0 if the report was written, even if the run is red.")
    ] = False,
) -> None:
    """Write DIR/junit.xml from the journal and print the results. This also works for a run that was killed.

    For a run with --repeat, the command also prints the cases whose memory grew over their repetitions in one process.

    The exit status is that of the run: 0 green, 1 red, 2 interrupted, 3 internal error, 5 no case ran. A run that did
    not finish is red. Exit status 4: no report was written, because DIR has no journal of a run or junit.xml cannot be
    written.
    """
    from harness.journal import journal, reader
    from harness.journal.ledger import Ledger
    from harness.reporting import junit

    contents = reader.read_run_journal(run_dir / journal.FILE_NAME)
    ledger = Ledger.from_journal(contents)
    written = junit.write_junit(run_dir, ledger)
    _print_report(contents, ledger, written, run_dir, growth=growth)
    if not exit_zero:
        raise typer.Exit(ledger.run_exit_status())


@app.command()
def html(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The run directory: the folder of journal.ndjson.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The file to write. Default: RUN_DIR/report.html."),
    ] = None,
) -> None:
    """Write the HTML report of a run. This also works for a run that was killed.

    A run writes the same file at its end. The file is self-contained and needs no network. Outside RUN_DIR it has no
    links to the files of the run.

    Exit status 4: nothing was written, because RUN_DIR has no journal of a run or the file cannot be written.
    """
    from harness.core.text import format_bytes
    from harness.reporting.page import report

    path = report.write_html_report(run_dir, out=out)
    say(f"wrote {path} ({format_bytes(path.stat().st_size)})")


@app.command()
def junit(
    run_dir: _RunDir,
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The file to write; - for standard output. Default: DIR/junit.xml."
        ),
    ] = "",
    flavour: Annotated[
        str,
        typer.Option("--junit-flavour", metavar="NAME", help="default, jenkins or gitlab. Default: that of the run."),
    ] = "",
) -> None:
    """Write the JUnit report of a run, of any size. A run writes the same file at its end.

    Flavours: default suits most readers, and is valid for Jenkins' strict schema; jenkins is the same. gitlab fits what
    GitLab shows: whole ids as names, files, and earlier attempts in the text of a result.

    Exit status 4: nothing was written, because DIR has no journal of a run or the file cannot be written.
    """
    from harness.configuration.values import JUNIT_FLAVOURS
    from harness.reporting import junit as reports

    if flavour and flavour not in JUNIT_FLAVOURS:
        raise ReportError(f"--junit-flavour={flavour!r}: expected one of {', '.join(JUNIT_FLAVOURS)}")
    if out == _STANDARD_OUTPUT:
        reports.stream_junit(sys.stdout.buffer, run_dir, flavour=flavour)
    else:
        say(reports.write_junit(run_dir, flavour=flavour, out=Path(out) if out else None).text)


@app.command("json")
def as_json(run_dir: _RunDir, out: _Out = _STANDARD_OUTPUT) -> None:
    """Write the results of a run as one JSON document: facts, totals, findings, and each case with its attempts.

    The schema is harness/reporting/report.schema.json. Exit status 4: see harness report junit.
    """
    _write_format("json", run_dir, out)


@app.command()
def markdown(
    run_dir: _RunDir,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="The file to append to. Default: standard output.")
    ] = _STANDARD_OUTPUT,
    annotations: Annotated[
        bool,
        typer.Option("--annotations", help="Also print workflow commands that mark the lines that failed. Needs -o."),
    ] = False,
) -> None:
    """Write the results of a run as a job summary for GitHub Actions: red cases first, at most 1 MB.

    In a workflow: harness report markdown DIR --annotations -o "$GITHUB_STEP_SUMMARY". The command appends to FILE,
    because other commands of the step write to it too. Exit status 4: see harness report junit.
    """
    from harness.reporting import github

    if annotations and out == _STANDARD_OUTPUT:
        raise ReportError('--annotations prints to standard output: add -o FILE, for example -o "$GITHUB_STEP_SUMMARY"')
    with _results(run_dir) as (results, facts):
        _write(out, github.job_summary(results, facts), append=True)
        for command in github.workflow_commands(results) if annotations else ():
            say(command)


@app.command()
def prometheus(run_dir: _RunDir, out: _Out = _STANDARD_OUTPUT) -> None:
    """Write the numbers of a run for the textfile collector of Prometheus' node_exporter.

    FILE is replaced atomically, as the collector requires, and its name must end with .prom. Exit status 4: see harness
    report junit.
    """
    if out != _STANDARD_OUTPUT and not out.endswith(".prom"):
        raise ReportError(f"-o {out!r}: the textfile collector reads only files whose name ends with .prom")
    _write_format("prometheus", run_dir, out)


@app.command("as")
def as_format(
    name: Annotated[
        str, typer.Argument(metavar="FORMAT", help="json, markdown, prometheus, or a format that a package registers.")
    ],
    run_dir: _RunDir,
    out: _Out = _STANDARD_OUTPUT,
) -> None:
    """Write the results of a run in any format, also in one that a package registers (docs/reports.md).

    A run writes it itself with --report FORMAT:FILE. Exit status 4: there is no such format, or see harness report
    junit.
    """
    _write_format(name, run_dir, out)


def _write_format(name: str, run_dir: Path, out: str) -> None:
    from harness.reporting.formats import report_format

    chunks = report_format(name)
    with _results(run_dir) as (results, facts):
        _write(out, chunks(results, facts))


@contextmanager
def _results(run_dir: Path) -> Iterator[tuple[StoredRun, dict[str, Any] | None]]:
    """Yield the results of a run, and the facts of its environment.json (None if unreadable)."""
    from harness.journal import environment
    from harness.journal.environment import EnvironmentFileError
    from harness.journal.stored_run import StoredRun

    with StoredRun.of(run_dir) as results:
        try:
            facts = environment.read_environment(run_dir)
        except EnvironmentFileError as error:
            say(f"harness: {error}; the report omits it", err=True)
            facts = None
        yield results, facts


def _write(out: str, chunks: Iterable[bytes], *, append: bool = False) -> None:
    """Write to standard output, append to a file, or replace a file. Raise WriteError."""
    from harness.core.atomic import open_atomically
    from harness.core.errors import convert_to_write_error

    if out == _STANDARD_OUTPUT:
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    elif append:
        with convert_to_write_error(f"{out!r}; make the folder writable and free space there"), open(out, "ab") as file:
            file.writelines(chunks)
    else:
        with open_atomically(Path(out)) as file:
            file.writelines(chunks)


@app.command()
def merge(
    shards: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="The run directories of all shards, in any order.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="A new run directory for the merged run.")],
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit with 0 if the run was merged, even if it is red.")
    ] = False,
) -> None:
    """Merge the shards of a run into one run: OUT gets a journal, junit.xml, report.html and environment.json.

    Together the shards must have each case of the run exactly once, and must have run the same suites with the same
    torch, driver, seed and options. Otherwise the command reports what is missing, duplicate or different, one reason
    per line, writes nothing, and exits with status 1. Must-pass lists and the profile's minimum number of cases are
    checked here.

    The exit status is that of the merged run. Exit status 4: a DIR has no journal of a shard or a broken
    environment.json, or OUT cannot be written.
    """
    from harness.journal import environment, journal, reader
    from harness.journal import merge as merging
    from harness.journal.identity import make_run_id
    from harness.journal.ledger import Ledger
    from harness.reporting import junit
    from harness.reporting.page import report

    parts = [merging.part_of(str(path), reader.read_run_journal(path / journal.FILE_NAME)) for path in shards]
    problems = merging.merge_problems(parts)
    for problem in problems:
        say(f"harness: {problem}", err=True)
    if problems:
        raise typer.Exit(EXIT_RED)
    argv = ["harness", "report", "merge", *map(str, shards), "-o", str(out)]
    events = merging.merged_events(parts, run_id=make_run_id(), argv=argv, now=time.time())
    environments = {
        str(part.shard): facts for part in parts if (facts := environment.read_environment(Path(part.name)))
    }
    contents = merging.write_merged_run(out, events, environments)
    ledger = Ledger.from_journal(contents)
    written = junit.write_junit(out, ledger)
    report.write_html_report(out, contents)
    _print_report(contents, ledger, written, out, growth=False)
    say(f"merged {format_count(len(parts), 'shard')} into {out}")
    if not exit_zero:
        raise typer.Exit(ledger.run_exit_status())


def _print_report(
    contents: JournalContents, ledger: Ledger, written: JunitReport, run_dir: Path, *, growth: bool
) -> None:
    """Print the summary of the run as at its end, and the facts that only its journal has."""
    from harness.core.text import single_line
    from harness.reporting import repetitions, terminal

    console = make_console()
    blocks = repetitions.can_encode_blocks(console.encoding)

    def line(text: str, style: str | None = None) -> None:
        # No line breaks, so that the reproducing command stays on one line for copying.
        say_styled(console, text, style)

    if ledger.run is not None and ledger.run.imported is not None:
        line(f"run {ledger.run.imported.text}")
    for text in terminal.terminal_summary(ledger, run_dir, blocks=blocks):
        line(text, "bold red" if text.startswith(terminal.RED_WORDS) else None)
    for text in terminal.repetition_lines(ledger, blocks=blocks) if growth else ():
        line(text)
    for damaged in contents.damaged[:20]:
        line(
            f"line {damaged.number} of the journal is unreadable and was ignored: {single_line(damaged.reason)}",
            "yellow",
        )
    for unknown in contents.unknown[:20]:
        where = (
            f"line {unknown.number} of the journal has the unknown kind {single_line(unknown.kind)!r} and was ignored"
        )
        line(f"{where}: use a newer harness to read it", "yellow")
    if ledger.end is None:
        resume = f"--resume {shlex.quote(str(run_dir))}"
        line(
            f"the run did not finish, so it counts as red: to run the rest, repeat the command with {resume}", "yellow"
        )
    line(f"exit status {ledger.run_exit_status()}")
    line(written.text)


def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="JUnit XML of gtest, ctest, pytest and others.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The tool or suite: the first part of case ids.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="A new run directory.")],
    device: Annotated[
        str, typer.Option("--device", metavar="LABEL", help="The name of the device, such as 'NVIDIA H100 80GB HBM3'.")
    ] = "",
) -> None:
    """Make a run directory from JUnit files, for harness report, harness diff and harness matrix.

    The ids of cases are NAME/CLASS::CASE, or NAME/SUITE::CASE for a case without a class. DIR gets a journal,
    environment.json, junit.xml and report.html. These files name NAME as the tool that ran the cases, and have
    the SHA-256 of each FILE. harness package refuses DIR, because the harness did not run the cases.

    Exit status: 0 if the results were imported, also red ones; 4 if a FILE is no JUnit file or DIR cannot be written.
    """
    from harness.fleet import junit_import
    from harness.fleet.junit_import import Wanted
    from harness.journal import journal, reader
    from harness.reporting import junit
    from harness.reporting.page import report

    argv = ["harness", "import", *map(str, files), "--name", name, "-o", str(out)]
    argv += ["--device", device] if device else []
    result = junit_import.write(Wanted(files, name, device, argv), out)
    junit.write_junit(out)
    report.write_html_report(out, reader.read_run_journal(out / journal.FILE_NAME))
    for finding in result.findings:
        say(f"FINDING imported_totals: {finding}")
    say(f"imported {result.text}")
    say(f"results: {out}")


def durations(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...", help="Run directories of complete runs: two or more, in different orders."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write. Default: print it.")
    ] = None,
) -> None:
    """Write the durations of slow test files, from the journals of runs, as configs/durations.yaml.

    A run starts the longest cases first. Durations come from results/history.json, which runs maintain, and from this
    file for cases without history. Regenerate the file after large changes of the suites.

    Exit status 4: a RUN_DIR has no journal of a run, or no case ran in any of them.
    """
    from harness.core.atomic import write_atomically
    from harness.core.errors import HarnessError
    from harness.scheduling import durations
    from harness.scheduling.durations import DurationHistory

    runs = [DurationHistory.of_runs([path]).seconds for path in run_dirs]
    if not any(runs):
        raise HarnessError(f"no case ran in {', '.join(repr(str(path)) for path in run_dirs)}")
    slow = durations.measured_slow_files(runs)
    text = durations.slow_files_text(slow)
    if out is None:
        say_lines(text)
        return
    write_atomically(out, text.encode())
    cases = len({case for run in runs for case in run})
    say(f"wrote {out}: {len(slow.files)} slow test files, from {cases} cases in {len(runs)} runs")
