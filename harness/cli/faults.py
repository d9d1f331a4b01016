"""``harness faults list`` and ``harness faults run``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.backends.table import BACKENDS
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_RED

if TYPE_CHECKING:
    from harness.catalog.catalog import CatalogEntry

SUITES = "suites"
#: The device into which faults are injected by default: every machine has it.
DEFAULT_DEVICE = "soft"
#: Short options of pytest that take a value.
_VALUED = ("-c", "-k", "-m", "-n", "-o", "-p", "-r", "-W")

app = typer.Typer(
    help="Faults of devices: list them, and find out which cases detect them.",
    no_args_is_help=True,
)


class NothingToRunError(HarnessError):
    """A campaign cannot start: no cases, an unknown device or fault, or an existing results folder."""


_Device = Annotated[
    str,
    typer.Option("--device", metavar="KIND", help="soft (software device), simcuda (simulated CUDA) or cuda (GPUs)."),
]


@app.command("list")
def list_(
    device: _Device = DEFAULT_DEVICE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: what each fault breaks, by name.")] = False,
) -> None:
    """List the faults that --inject accepts, and what each of them breaks."""
    import json

    texts = _faults(device)
    if as_json:
        print(json.dumps(dict(texts), indent=2))
        return
    width = max(map(len, texts))
    for name, breaks in texts.items():
        print(f"{name:{width}}  {breaks}")


@app.command()
def run(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- PYTEST_ARGUMENTS]",
            help="Arguments for pytest after --: cases, or options such as -n 2. Default: all suites that have cases "
            "for the device.",
            show_default=False,
        ),
    ] = None,
    device: _Device = DEFAULT_DEVICE,
    names: Annotated[
        str, typer.Option("--faults", metavar="NAME,...", help="Only these faults. NAME:probability is also accepted.")
    ] = "",
    first: Annotated[bool, typer.Option("--first", help="End each run with a fault at its first red case.")] = False,
    case_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Limit for cases without a timeout mark. For all cases if the fault hangs."
        ),
    ] = 10.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of every run.")] = 1,
    results_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the results. Default: results/faults-<time>.")
    ] = None,
) -> None:
    """Run cases on a device without faults, then once per fault. Print which cases catch which fault.

    Exit status 1: a fault is not caught by any case, or a case is red without a fault.
    """
    from harness.sim.native import faults
    from harness.tools.diagnosis import campaign

    texts = _faults(device)
    try:
        chosen = [faults.parse_injection(name, device) for name in names.split(",")] if names else []
    except faults.InjectionError as error:
        raise NothingToRunError(f"--faults={names!r}: expected {error}") from None
    cases, given = _split(arguments or [])
    if not (cases or any(map(_names_cases, given))):
        cases = _suites(device)
    results = (results_dir or Path("results") / f"faults-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    if results.exists():
        raise NothingToRunError(f"--results-dir={str(results)!r} exists already: name a new folder")
    options = [f"--case-timeout={case_timeout:g}", f"--seed={seed}"]
    result = campaign.run_orders(
        chosen or [faults.Injection(name) for name in texts],
        campaign.Runs(tuple(cases), (*given, *options), results, device).run,
        results,
        device=device,
        first=first,
        log=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(campaign.orders_text(result), end="")
    print(f"results: {results}")
    if not result.green:
        raise typer.Exit(EXIT_RED)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split pytest arguments into those that name cases and the options.

    A path that may be the value of an option counts as an option: every run gets it.
    """
    cases: list[str] = []
    options: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        value = before in _VALUED or (before.startswith("--") and "=" not in before)
        (cases if _names_cases(argument) and not value else options).append(argument)
    return cases, options


def _names_cases(argument: str) -> bool:
    """Return whether a pytest argument names cases: an existing file or folder, or a case in it."""
    return not argument.startswith("-") and Path(argument.partition("::")[0]).exists()


def _faults(device: str) -> Mapping[str, str]:
    """Return the faults of a kind of device with their effects, by name. Raise NothingToRunError if it has none."""
    from harness.sim.native import faults

    if device not in faults.injectable_kinds():
        raise NothingToRunError(f"--device={device!r}: expected one of {', '.join(faults.injectable_kinds())}")
    return faults.fault_catalogue(device)


def _suites(device: str) -> list[str]:
    """Return the folders of the suites with cases for the device. Raise NothingToRunError if there are none."""
    from harness.catalog import catalog

    entries = catalog.collect_catalog([SUITES])
    folders = sorted({f"{SUITES}/{entry.suite}" for entry in entries if _is_for(entry, device)})
    if not folders:
        raise NothingToRunError(f"no suite in {SUITES} has cases that require an accelerator: name cases after --")
    return folders


def _is_for(entry: CatalogEntry, device: str) -> bool:
    wanted: Sequence[object] = [mark.get(name) for mark in entry.requires for name in ("accelerator", "device")]
    return True in wanted or bool({device, BACKENDS[device].torch_type} & set(wanted))
