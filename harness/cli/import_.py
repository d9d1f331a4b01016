"""``harness import``: results of another tool, from its JUnit XML, as a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import say


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
