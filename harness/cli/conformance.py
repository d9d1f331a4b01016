"""``harness conformance``: what a run shows about its device, level by level."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import say
from harness.core.atomic import write_atomically
from harness.core.errors import HarnessError, convert_to_write_error
from harness.core.outcome import EXIT_RED
from harness.core.text import format_count


class ConformanceError(HarnessError):
    """The run has no result to state."""


def conformance(
    run_dir: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="The run directory.", show_default=False)
    ] = None,
    level: Annotated[
        list[str] | None, typer.Option("--level", metavar="NAME", help="Only this level; may be repeated.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the statement as JSON to this file.")
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Write conformance.json into RUN, which harness package packs and harness verify proves."
        ),
    ] = False,
    update_lists: Annotated[
        bool,
        typer.Option("--update-lists", help="Write the lists of all levels from the cases in suites, instead."),
    ] = False,
) -> None:
    """State which levels of conformance the device of a run passed or failed, and which do not apply.

    The levels are those of configs/conformance, here or of this installation. Exit status 1: a level is failed or
    incomplete.
    """
    from harness.gating import levels

    configs = _configs()
    if update_lists:
        from harness.catalog.catalog import collect_catalog

        collected = collect_catalog(levels.folders(configs))
        # The cases of a run without options.
        entries = {entry.id: entry.requires for entry in collected if not entry.extended}
        for listed in levels.update_lists(configs, entries):
            say(f"{listed.name}: {format_count(len(listed.ids), 'case')}, {listed.hash}")
        return
    if run_dir is None:
        raise ConformanceError("no run is named: give its directory, such as results/20261126-120000-abcdef")
    from harness.journal import environment
    from harness.journal.ledger import Ledger
    from harness.tools import conformance as tool

    ledger = Ledger.of(run_dir)
    try:
        facts = json.loads((run_dir / environment.FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConformanceError(f"cannot read {environment.FILE_NAME} of {str(run_dir)!r}") from error
    chosen = levels.load_levels(configs, level or ())
    statement = tool.make_statement(ledger, tool.software_of(facts), chosen)
    for line in tool.statement_lines(statement):
        say(line)
    if output is not None:
        output.write_text(json.dumps(statement.as_json(), indent=2) + "\n", encoding="utf-8")
    if keep:
        with convert_to_write_error(f"{str(run_dir)!r}"):
            write_atomically(run_dir / tool.FILE_NAME, tool.kept_bytes(statement, chosen))
    if any(result.state in (tool.FAILED, tool.INCOMPLETE) for result in statement.levels):
        raise typer.Exit(EXIT_RED)


def _configs() -> Path:
    """Return the folder of configurations, here or of this installation."""
    if Path("configs/conformance").is_dir():
        return Path("configs")
    from harness.cli.installed import Home

    return Home.find().folder / "configs"
