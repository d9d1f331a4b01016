"""``harness matrix``: many runs on many machines as one page and one JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def matrix(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Run directories, or folders with run directories up to two levels below."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("matrix.html"),
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write everything as JSON to this file.")
    ] = None,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit with 0 if the page was written, even if something is red.")
    ] = False,
) -> None:
    """Put many runs on many machines side by side: cases by machines, and what the failures have in common.

    A machine is a host with its kind of device, driver and torch; its runs count together. Each failure gets a class:
    everywhere, one torch, one driver, one kind of device, one host, one device, mixed or flake, with how sure that is,
    what cannot be told apart from it, and what to run next. Cells without a result are counted by reason.

    Exit status: 0 if nothing is red, 1 if a run is (also if it did not finish or its journal has unreadable lines), 5
    if no case ran, 4 if a DIR has no run or a file cannot be written.
    """
    import gc

    from harness.matrix import folders as run_folders
    from harness.matrix import model, page, text
    from harness.matrix.fleet import Fleet, exit_status
    from harness.matrix.reading import read_all
    from harness.reporting.atomic import write_atomically

    found = run_folders.find(folders)
    gc.disable()  # millions of small values, and no circles among them
    fleet = Fleet(found.notes)
    for run in read_all(found.runs):
        fleet.add(run)
    made = fleet.matrix()
    write_atomically(out, page.render(made))
    if json_out is not None:
        write_atomically(json_out, model.as_json(made))
    sys.stdout.write(text.text(made))
    print(f"wrote {out}" + (f" and {json_out}" if json_out is not None else ""))
    if not exit_zero and (status := exit_status(made)):
        raise typer.Exit(status)
