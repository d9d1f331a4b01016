"""The commands ``harness faults list`` and ``harness faults run``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.backends import soft
from harness.errors import HarnessError
from harness.outcome import EXIT_RED

if TYPE_CHECKING:
    from harness.reporting.catalog import Entry

SUITES = "suites"

app = typer.Typer(
    help="Faults that the software device can have: list them, and find out which cases notice them.",
    no_args_is_help=True,
)


class NothingToRunError(HarnessError):
    """There are no cases for a campaign."""


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: what each fault breaks, by its name.")] = False,
) -> None:
    """List the faults that --inject takes, with what each breaks."""
    import json

    from harness.softdevice import faults

    known = faults.catalogue()
    if as_json:
        print(json.dumps(dict(known), indent=2))
        return
    width = max(map(len, known))
    for name, breaks in known.items():
        print(f"{name:{width}}  {breaks}")


@app.command()
def run(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- PYTEST_ARGUMENTS]",
            help="For pytest, behind --: cases, or options such as -n 2. Without cases, the suites that have some for "
            "accelerators.",
            show_default=False,
        ),
    ] = None,
    names: Annotated[
        str, typer.Option("--faults", metavar="NAME,...", help="Only these faults; NAME:probability is one as well.")
    ] = "",
    first: Annotated[bool, typer.Option("--first", help="End the run with a fault once a case is red.")] = False,
    case_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="For cases without a timeout mark; with a fault that hangs, each.")
    ] = 10.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of every run.")] = 1,
    results_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to keep it all, else results/faults-<time>.")
    ] = None,
) -> None:
    """Run cases on the software device, without a fault and with each, and tell which cases catch which.

    Exit status 1 when a fault is caught by no case, or a case is red without one.
    """
    from harness.diagnosis import campaign
    from harness.softdevice import faults

    try:
        chosen = [faults.parse(name) for name in names.split(",")] if names else []
    except faults.InjectionError as error:
        raise NothingToRunError(f"--faults={names!r}: expected {error}") from None
    given = list(arguments or [])
    cases = [] if any(_names_cases(argument) for argument in given) else _suites()
    results = (results_dir or Path("results") / f"faults-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    if results.exists():
        raise NothingToRunError(f"--results-dir={str(results)!r} is there already: name another folder")
    options = [f"--case-timeout={case_timeout:g}", f"--seed={seed}"]
    found = campaign.conduct(
        chosen or [faults.Injection(name) for name in faults.catalogue()],
        campaign.Runs((*cases, *given, *options), results).run,
        results,
        first=first,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(campaign.as_text(found), end="")
    print(f"recorded in {results}")
    if not found.green:
        raise typer.Exit(EXIT_RED)


def _names_cases(argument: str) -> bool:
    """Whether an argument for pytest says what to run: a file or folder that there is, or a case in it."""
    return not argument.startswith("-") and Path(argument.partition("::")[0]).exists()


def _suites() -> list[str]:
    """The folders of the suites that have cases for accelerators. Raises NothingToRunError."""
    from harness.reporting import catalog

    entries = catalog.catalog([SUITES])
    folders = sorted({f"{SUITES}/{entry.suite}" for entry in entries if _for_accelerators(entry)})
    if not folders:
        raise NothingToRunError(f"no suite in {SUITES} has cases that require an accelerator: name cases behind --")
    return folders


def _for_accelerators(entry: Entry) -> bool:
    wanted: Sequence[object] = [mark.get(name) for mark in entry.requires for name in ("accelerator", "device")]
    return True in wanted or soft.BACKEND.kind in wanted
