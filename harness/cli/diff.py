"""``harness diff``: what changed between runs."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_RED


class DiffError(HarnessError):
    """The directories cannot be compared with each other."""


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
    """Compare a run with one or more earlier ones: regressions, new findings and flakes, gated, missing, slower cases.

    Differences of machine and software come first. With several runs in the baseline, a case that was red in some of
    them is told with the number of runs: "red in 0 of 30 runs, now failed". A case is slower only if its durations over
    many repetitions say so (--repeat, or many runs).

    Findings are compared as cases are: two are the same if their kind is, and their text but for the numbers in it, or
    one of their cases. A run that is red for no case and no finding is told, too.

    Exit status: 0 without a regression, 1 with one, with a case that has no verdict now, or with a finding that not
    every run of the baseline has, 4 if a directory is not that of a run or too few are given.
    """
    from harness.journal import record
    from harness.tools.diff import comparison
    from harness.tools.diff import text as comparison_text

    if len(run_dirs) < 2:
        raise DiffError(f"{str(run_dirs[0])!r} alone cannot be compared: give a baseline and a new run, or more runs")
    if len({path.resolve() for path in run_dirs}) < len(run_dirs):
        raise DiffError("a run cannot be compared with itself: give each directory once")
    *baseline, new = (record.read_run_record(path) for path in run_dirs)
    found = comparison.compare_runs(baseline, new)
    write = {
        Form.TEXT: comparison_text.comparison_text,
        Form.JSON: comparison_text.comparison_json,
        Form.MARKDOWN: comparison_text.comparison_markdown,
    }
    sys.stdout.write(write[form](found))
    if found.is_worse(strict=strict):
        raise typer.Exit(EXIT_RED)
