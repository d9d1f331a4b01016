"""The commands ``harness report DIR``, ``harness report html`` and ``harness report merge``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from harness import cli_console
from harness.outcome import EXIT_RED
from harness.text import counted

if TYPE_CHECKING:
    from harness.reporting.journal import JournalContents
    from harness.reporting.junit import Report
    from harness.reporting.ledger import Ledger


class _ShowByDefault(TyperGroup):
    """``harness report DIR`` is ``harness report show DIR``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, "--help"}
        return super().parse_args(ctx, args if not args or args[0] in known else ["show", *args])


app = typer.Typer(
    cls=_ShowByDefault,
    help=(
        "Print the results of a run and write its junit.xml: harness report DIR. Write its report.html: html. "
        "Make one run of shards: merge."
    ),
    no_args_is_help=True,
)


@app.command()
def show(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="The run directory: the folder of journal.ndjson.")],
    growth: Annotated[
        bool,
        typer.Option("--growth", help="Show the memory of every repeated case, not only of those that grew."),
    ] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit with 0 if the report was written, even if the run is red.")
    ] = False,
) -> None:
    """Write DIR/junit.xml from the journal and print the results. This also works for a run that was killed.

    For a run with --repeat, it also prints the cases whose memory grew over their repetitions in one process.

    The exit status is that of the run: 0 green, 1 red, 2 interrupted, 3 internal error, 5 nothing ran. A run that did
    not finish is red. Exit status 4: no report was written, because DIR has no journal of a run or junit.xml cannot be
    written.
    """
    from harness.reporting import journal, junit
    from harness.reporting.ledger import Ledger

    contents = journal.read_run(run_dir / journal.FILE_NAME)
    ledger = Ledger.from_journal(contents)
    written = junit.write(run_dir, ledger)
    _print_report(contents, ledger, written, growth=growth)
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

    A run writes the same file at its end. It is one file without references to others, and needs no network. A file
    elsewhere than in RUN_DIR has no links to the files of the run.

    Exit status 4: nothing was written, because RUN_DIR has no journal of a run or the file cannot be written.
    """
    from harness.reporting.page import report

    path = report.write(run_dir, out=out)
    print(f"wrote {path} ({path.stat().st_size} bytes)")


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
    """Make one run of the shards of a run: OUT gets a journal, junit.xml, report.html and environment.json.

    The shards must have all cases of the run, each once, and must have run the same suites with the same torch, driver,
    seed and options. Otherwise a line says what is missing, double or different, nothing is written, and the exit
    status is 1. Must-pass lists and the profile's least number of cases are checked here.

    The exit status is that of the merged run. Exit status 4: a DIR has no journal of a shard or a broken
    environment.json, or OUT cannot be written.
    """
    import secrets

    from harness.reporting import environment, journal, junit
    from harness.reporting import merge as merging
    from harness.reporting.ledger import Ledger
    from harness.reporting.page import report

    parts = [merging.part_of(str(path), journal.read_run(path / journal.FILE_NAME)) for path in shards]
    problems = merging.problems(parts)
    for problem in problems:
        print(f"harness: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(EXIT_RED)
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    argv = ["harness", "report", "merge", *map(str, shards), "-o", str(out)]
    events = merging.merged(parts, run_id=run_id, argv=argv, now=time.time())
    environments = {str(part.shard): known for part in parts if (known := environment.read(Path(part.name)))}
    contents = merging.write(out, events, environments)
    ledger = Ledger.from_journal(contents)
    written = junit.write(out, ledger)
    report.write(out, contents)
    _print_report(contents, ledger, written, growth=False)
    print(f"merged {counted(len(parts), 'shard')} into {out}")
    if not exit_zero:
        raise typer.Exit(ledger.run_exit_status())


def _print_report(contents: JournalContents, ledger: Ledger, written: Report, *, growth: bool) -> None:
    from harness.reporting import plot
    from harness.reporting.repetitions import repetitions
    from harness.text import clean, one_line

    console = cli_console.make()

    def line(text: str, style: str | None = None) -> None:
        # No line breaks: the reproducing command must stay on one line to be copied.
        console.print(clean(text), style=style, soft_wrap=True)

    for verdict in ledger.red:
        line(f"{verdict.outcome.upper()} {verdict.case}", "bold red")
        line(f"    {one_line(verdict.message)}")
        if verdict.reproduce:
            line(f"    reproduce: {one_line(verdict.reproduce, 4096)}")
    for finding in ledger.findings:
        line(f"FINDING {finding.kind}: {one_line(finding.message)}", "bold red")
        if finding.reproduce:
            line(f"    reproduce: {finding.reproduce}")
    for bisected in ledger.bisected:
        line(f"ORDER {bisected.case} is {bisected.outcome} after {', '.join(bisected.culprits)}", "bold")
        line(f"    reproduce: {one_line(bisected.reproduce, 4096)}")
    repeated = repetitions(ledger)
    for each in repeated:
        if each.grows or growth:
            line(f"{each.word} {each.case}", "bold" if each.grows else None)
            for text in (each.text, *each.plot(blocks=plot.fits(console.encoding))):
                line(f"    {text}")
    if growth and not repeated:
        line(
            "the journal has no memory readings of repeated cases: "
            "run with --repeat=12 or more, and without --leak-check=off",
            "yellow",
        )
    for damaged in contents.damaged[:20]:
        line(
            f"line {damaged.number} of the journal is unreadable and was ignored: {one_line(damaged.reason)}", "yellow"
        )
    for unknown in contents.unknown[:20]:
        what = f"line {unknown.number} of the journal has the unknown kind {one_line(unknown.kind)!r} and was ignored"
        line(f"{what}: use a newer harness to read it", "yellow")
    for result in ledger.lists:
        line(result.text)
    for change in ledger.forced:
        line(f"RESUMED BY FORCE {change}", "bold")
    if ledger.end is None:
        line("the run did not finish, so it counts as red: run it again", "yellow")
    counts = ", ".join(f"{number} {outcome}" for outcome, number in ledger.counts.items()) or "no cases"
    cost = ledger.cost
    line(f"{counts} ({len(ledger.verdicts)} in all); exit status {ledger.run_exit_status()}")
    line(
        f"isolation: {counted(cost.executors, 'executor')} in {cost.startup:.1f} s of start-up, "
        f"{counted(cost.restarts, 'restart')}, {counted(cost.retries, 'retry', 'retries')}"
    )
    line(f"wrote {written.path} ({written.size} bytes, long texts cut to {written.text_limit} characters)")
