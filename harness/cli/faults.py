"""``harness faults list``."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.console import say, say_lines
from harness.core.errors import HarnessError

app = typer.Typer(help="Faults of devices that --inject accepts.", no_args_is_help=True)


class NoFaultsError(HarnessError):
    """The kind of device has no faults."""


@app.callback()
def _group() -> None:
    """Keep the word `list` in the command line: typer leaves out the name of an only command."""


@app.command("list")
def list_(
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
