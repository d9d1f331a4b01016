"""The `harness` command. Each command imports what it needs itself, so that ``harness --help`` answers at once."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import HarnessError
from harness.outcome import EXIT_USAGE

if TYPE_CHECKING:
    from rich.console import Console

    from harness.reporting.catalog import Entry
    from harness.reporting.journal import JournalContents
    from harness.reporting.junit import Report
    from harness.reporting.ledger import Ledger

app = typer.Typer(
    help="Conformance cases for GPUs, drivers and PyTorch: what is here, what there is to run, what a run found.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Format(StrEnum):
    """How a list is printed."""

    TABLE = "table"
    JSON = "json"


def main() -> None:
    """Run the command line. An error that the harness knows is one line on stderr and exit status 4."""
    try:
        app()
    except HarnessError as error:
        print(f"harness: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


@app.command()
def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with sizes in bytes.")] = False,
) -> None:
    """List the devices of this machine, and what a case finds on the first that is usable. CUDA stays asleep."""
    import json

    from harness.devices import present
    from harness.devices.capabilities import detect
    from harness.devices.inventory import discover

    inventory = discover()
    usable = next(device for device in inventory.devices if device.fault is None)  # the CPU where there is no GPU
    capabilities = detect(inventory, usable)
    if as_json:
        print(json.dumps(present.as_json(inventory, capabilities), indent=2))
        return
    console = _console()
    for table in present.as_tables(inventory, capabilities):
        console.print(table)


@app.command()
def catalog(
    paths: Annotated[list[str] | None, typer.Argument(help="Folders, files or case ids, else suites.")] = None,
    format_: Annotated[Format, typer.Option("--format", help="How to print the list.")] = Format.TABLE,
) -> None:
    """List every case: what it checks, what it requires, what it covers. Runs none."""
    from harness.reporting import catalog as cases

    entries = cases.catalog(paths or ["suites"])
    if format_ is Format.JSON:
        print(cases.as_json(entries))
    else:
        _print_catalog(entries)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="The run directory: the folder of journal.ndjson.")],
) -> None:
    """Write DIR/junit.xml anew from the journal, also of a run that was killed, and say what the run found.

    The exit status tells whether the report was written, not whether the run was green.
    """
    from harness.reporting import journal, junit
    from harness.reporting.ledger import Ledger

    contents = journal.read(run_dir / journal.FILE_NAME)
    ledger = Ledger.from_journal(contents)
    written = junit.write(run_dir, ledger)
    _print_report(contents, ledger, written)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def _print_catalog(entries: list[Entry]) -> None:
    from rich.table import Table

    from harness.text import clean

    table = Table()
    for name in ("case", "requires", "covers", "timeout", "description"):
        table.add_column(name, overflow="fold")  # an id that ends in dots cannot be run
    for entry in entries:
        requires = "; ".join(", ".join(f"{name}={value}" for name, value in mark.items()) for mark in entry.requires)
        covers = ", ".join(map(str, entry.covers))
        timeout = "" if entry.timeout is None else str(entry.timeout)
        table.add_row(entry.id, clean(requires), clean(covers), clean(timeout), entry.description)
    console = _console()
    console.print(table)
    console.print(f"{len(entries)} cases in {len({entry.suite for entry in entries})} suites")


def _print_report(contents: JournalContents, ledger: Ledger, written: Report) -> None:
    from harness.text import clean, one_line

    console = _console()

    def line(text: str, style: str | None = None) -> None:
        # Lines stay whole: the reproducing command is there to be copied.
        console.print(clean(text), style=style, soft_wrap=True)

    for verdict in ledger.red:
        line(f"{verdict.outcome.upper()} {verdict.case}", "bold red")
        line(f"    {one_line(verdict.message)}")
        if verdict.reproduce:
            line(f"    reproduce: {one_line(verdict.reproduce, 4096)}")
    for finding in ledger.findings:
        line(f"FINDING {finding.kind}: {one_line(finding.message)}", "bold red")
    for damaged in contents.damaged[:20]:
        line(f"unreadable line {damaged.number} of the journal: {one_line(damaged.reason)}", "yellow")
    for unknown in contents.unknown[:20]:
        line(f"line {unknown.number} of the journal is of unknown kind {one_line(unknown.kind)!r}, left out", "yellow")
    if ledger.end is None:
        line("the run did not come to its own end", "yellow")
    counts = ", ".join(f"{number} {outcome}" for outcome, number in ledger.counts.items()) or "no cases"
    cost = ledger.cost
    line(f"{counts} ({len(ledger.verdicts)} in all); exit status {ledger.exit_status()}")
    line(
        f"isolation: {cost.executors} executors in {cost.startup:.1f} s of start-up, "
        f"{cost.restarts} restarts, {cost.retries} retries"
    )
    line(f"wrote {written.path} ({written.size} bytes, texts cut to {written.text_limit} characters)")


if __name__ == "__main__":
    main()
