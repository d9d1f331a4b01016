"""``harness diff``: what changed between runs."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.outcome import EXIT_RED


class Form(StrEnum):
    """How a comparison is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def diff(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="BASELINE... NEW", help="Run directories, the oldest first. The last is the new run."),
    ],
    form: Annotated[Form, typer.Option("--format", help="text, json, or markdown (for a job summary).")] = Form.TEXT,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="New flakes, newly gated, missing and slower cases are regressions, too."),
    ] = False,
) -> None:
    """Compare a run with one or more earlier ones: regressions, new flakes, newly gated, missing and slower cases.

    Differences of machine and software come first. With several runs in the baseline, a case that was red in some of
    them is told with the number of runs: "red in 0 of 30 runs, now failed". A case is slower only if its durations over
    many repetitions say so (--repeat, or many runs). Cases of older runs that configs/renamed.json names are compared
    by their new names.

    Exit status: 0 without a regression, 1 with one or with a case that has no verdict now, 4 if a directory is not that
    of a run.
    """
    from harness.gating.renamed import Renamed
    from harness.reporting import comparison, comparison_text, record

    if len(run_dirs) < 2:
        raise typer.BadParameter("expected two run directories or more: a baseline and a new run")
    if len({path.resolve() for path in run_dirs}) < len(run_dirs):
        raise typer.BadParameter("a run cannot be compared with itself: each directory may be given once")
    renamed = Renamed.load(Path("configs"))
    *baseline, new = (record.read(path, renamed) for path in run_dirs)
    found = comparison.compare(baseline, new)
    write = {
        Form.TEXT: comparison_text.text,
        Form.JSON: comparison_text.as_json,
        Form.MARKDOWN: comparison_text.markdown,
    }
    sys.stdout.write(write[form](found))
    worse = [
        found.regressions,
        found.lost,
        *((found.flakes, found.gated, found.missing, found.slower) if strict else ()),
    ]
    if any(worse):
        raise typer.Exit(EXIT_RED)
