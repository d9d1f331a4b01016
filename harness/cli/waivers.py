"""``harness waivers lint`` and ``harness waivers update``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import say, say_lines
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_RED
from harness.core.text import format_count

if TYPE_CHECKING:
    from harness.gating.lint import Marks
    from harness.gating.requirements import Condition
    from harness.gating.waivers import Waiver

CONFIGS, SUITES = Path("configs"), Path("suites")
WAIVERS, HARDWARE = CONFIGS / "waivers", CONFIGS / "hardware"

app = typer.Typer(help="Waivers (known failures): check waiver files, and propose entries.", no_args_is_help=True)


class InputError(HarnessError):
    """An input of the check (cases, hardware, waiver files) is missing or unreadable."""


class OutputError(HarnessError):
    """The proposals cannot be written to the file."""


@app.command()
def lint(
    files: Annotated[
        list[Path] | None, typer.Argument(help=f"Waiver files, or folders. Default: {WAIVERS}.", show_default=False)
    ] = None,
    catalog: Annotated[
        Path | None,
        typer.Option(
            help=f"Cases: a folder to collect, or JSON of 'harness catalog'. Default: {SUITES}, if it exists."
        ),
    ] = None,
    hardware: Annotated[
        Path | None, typer.Option(help=f"Folder of hardware files. Default: {HARDWARE}, if it exists.")
    ] = None,
) -> None:
    """Check waiver files, also against the existing cases and hardware files. Exit status 1: there are errors."""
    from harness.gating.configfile import ConfigError
    from harness.gating.lint import lint_waivers as remarks_on
    from harness.gating.waiverfile import load_waivers

    here = Path.cwd()
    paths = dict.fromkeys(path.resolve() for given in files or [WAIVERS] for path in _files(given))
    waivers: list[Waiver] = []
    errors = 0
    for path in paths:
        try:
            waivers += load_waivers([path], here)
        except ConfigError as error:
            for line in str(error).splitlines():
                errors += 1
                _print_line(f"error: {line}")
    cases = _catalog(catalog or (SUITES if SUITES.is_dir() else None))
    kinds = _hardware(hardware or (HARDWARE if HARDWARE.is_dir() else None))
    notes = 0
    for remark in remarks_on(waivers, today=date.today(), catalog=cases, hardware=kinds):
        errors += remark.error
        notes += not remark.error
        _print_line(f"{'error' if remark.error else 'note'}: {remark.source}: {remark.kind}: {remark.text}")
    against = "no catalogue" if cases is None else format_count(len(cases), "case")
    declared = "no declared hardware" if kinds is None else f"{format_count(len(kinds), 'kind')} of hardware"
    checked = f"{format_count(len(waivers), 'waiver')} in {format_count(len(paths), 'file')}"
    _print_line(f"{checked}, {against}, {declared}: {format_count(errors, 'error')}, {format_count(notes, 'note')}")
    raise typer.Exit(EXIT_RED if errors else 0)


@app.command()
def update(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory: the folder of journal.ndjson.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A new file for the proposals. Default: stdout.")
    ] = None,
) -> None:
    """Propose waivers for the red cases of RUN, and name waivers to remove. No existing file is changed."""
    from harness.journal import journal, reader
    from harness.tools import proposals

    contents = reader.read_run_journal(run / journal.FILE_NAME)
    proposal = proposals.propose_waivers(contents, proposals.read_machine(run), date.today())
    text = proposals.proposals_yaml(proposal, f"proposed by: harness waivers update {run}")
    if output is None:
        say_lines(text)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise OutputError(f"{str(output)!r} exists already and is not replaced: name a new file") from None
    except OSError as error:
        raise OutputError(f"cannot write {str(output)!r}") from error
    proposed, remarks = format_count(len(proposal.entries), "waiver"), format_count(len(proposal.remarks), "remark")
    _print_line(f"wrote {output}: {proposed} to check, {remarks}")


def _print_line(text: str) -> None:
    say(" ".join(text.split()))


def _files(path: Path) -> list[Path]:
    """Return the waiver files that an argument names. Raise InputError if the default folder does not exist."""
    if path.is_dir():
        return sorted(path.glob("*.yaml"))
    if path == WAIVERS:
        raise InputError(f"there is no folder {str(path)!r} here: name waiver files")
    return [path]


def _catalog(path: Path | None) -> Mapping[str, Marks] | None:
    """Return the ``requires`` marks of each case by id; None without a path. Raise InputError for an invalid mark."""
    if path is None:
        return None
    from harness.gating import requirements

    if path.suffix == ".json":
        from harness.catalog.catalog import read_catalog

        cases: Mapping[str, Marks] = {case.id: case.requires for case in read_catalog(path)}
    else:
        from harness.catalog.catalog import collect_catalog

        cases = {entry.id: entry.requires for entry in collect_catalog([str(path)])}
    for case_id, marks in cases.items():
        try:
            for mark in marks:
                requirements.parse_requirements(mark)
        except HarnessError as error:
            raise InputError(f"case {case_id!r} of {str(path)!r} has an invalid 'requires' mark") from error
    return cases


def _hardware(folder: Path | None) -> Mapping[str, Sequence[Condition]] | None:
    """Return the declared properties of each kind of hardware, by name; None without a folder."""
    if folder is None:
        return None
    from harness.gating.configfile import load_config
    from harness.gating.lint import declared_conditions
    from harness.gating.profiles import Hardware

    if not folder.is_dir():
        raise InputError(f"{str(folder)!r} is not a folder: give a folder of hardware files")
    declared = {path.stem: load_config(path, Hardware).value for path in sorted(folder.glob("*.yaml"))}
    return {name: declared_conditions({**kind.device, **kind.offers}) for name, kind in declared.items()}
