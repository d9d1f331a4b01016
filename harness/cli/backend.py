"""``harness backend`` and ``harness faults``: kinds of devices, and their faults."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from harness.cli.console import say, say_lines
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_RED

app = typer.Typer(
    help="Devices: list the kinds that are registered, and check what a run can measure on one.", no_args_is_help=True
)


@app.command("list")
def list_() -> None:
    """List the kinds of devices: those of this project, and the installed registrations."""
    from harness.backends import table

    for kind in table.known_kinds():
        say(kind if kind in table.own_kinds() else f"{kind}  (registered by an installed package)")


@app.command()
def check(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A kind that is registered or that torch knows, or a file (--backend)."),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: state, finding and meaning of each probe.")
    ] = False,
) -> None:
    """Probe a device in disposable processes, and print what each finding means for a run.

    Exit status 1: something is wrong, so that a run would be wrong or impossible. An optional part that is
    missing is no error.
    """
    from harness.backends import table
    from harness.core.errors import HarnessError
    from harness.tools import backend_check

    backend = table.activate(name)
    if backend.inventory:
        raise HarnessError(f"{name!r} has an inventory of its own, and needs no check: harness devices --device={name}")
    results = backend_check.check_backend(backend)
    if as_json:
        say_lines(
            json.dumps(
                [{**asdict(result), "run": result.then, **asdict(result.meaning)} for result in results], indent=2
            )
        )
    else:
        for line in backend_check.report_lines(results):
            say(line)
    if backend_check.failed(results):
        raise typer.Exit(EXIT_RED)


faults = typer.Typer(help="Faults of devices that --inject accepts.", no_args_is_help=True)


class NoFaultsError(HarnessError):
    """The kind of device has no faults."""


@faults.callback()
def _group() -> None:
    """Keep the word `list` in the command line: typer leaves out the name of an only command."""


@faults.command("list")
def list_faults(
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="KIND", help="soft (software device), simcuda (simulated CUDA) or cuda (GPUs)."
        ),
    ] = "soft",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: what each fault breaks, by name.")] = False,
) -> None:
    """List the faults that --inject accepts, and what each of them breaks."""
    import json

    from harness.sim.native import faults

    if device not in faults.injectable_kinds():
        raise NoFaultsError(f"--device={device!r}: expected one of {', '.join(faults.injectable_kinds())}")
    texts = faults.fault_catalogue(device)
    if as_json:
        say_lines(json.dumps(dict(texts), indent=2))
        return
    width = max(map(len, texts))
    for name, breaks in texts.items():
        say(f"{name:{width}}  {breaks}")
