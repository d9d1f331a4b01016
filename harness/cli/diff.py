"""``harness diff``: compare runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import say_lines
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_RED


class DiffError(HarnessError):
    """The directories cannot be compared."""


class Form(StrEnum):
    """The output format of a comparison."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def diff(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="BASELINE... NEW", help="Run directories, oldest first. The last one is the new run."),
    ],
    form: Annotated[Form, typer.Option("--format", help="text, json, or markdown (for a job summary).")] = Form.TEXT,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Count new flakes, newly gated, missing and slower cases as regressions too."),
    ] = False,
) -> None:
    """Compare a run with one or more earlier runs: regressions, new findings and flakes, gated, missing and slower
    cases.

    The output begins with differences of machine and software. If the baseline has several runs, a case that was red in
    some of them is reported with counts: "red in 0 of 30 runs, now failed". A case counts as slower only if many
    repetitions show it (--repeat, or many runs).

    Two findings are the same if they have the same kind and either the same text, apart from numbers, or a case in
    common. The command also reports a run that is red without a red case or a finding.

    Exit status: 0 no regression; 1 a regression, a case that has no verdict now, or a finding that some run of the
    baseline lacks; 4 a directory has no run, or fewer than two directories are given.
    """
    from harness.fleet import comparison
    from harness.fleet.run import read_run

    if len(run_dirs) < 2:
        raise DiffError(f"{str(run_dirs[0])!r} alone cannot be compared: give a baseline and a new run, or more runs")
    if len({path.resolve() for path in run_dirs}) < len(run_dirs):
        raise DiffError("a run cannot be compared with itself: give each directory once")
    *baseline, new = (comparison.run_record(read_run(path)) for path in run_dirs)
    compared = comparison.compare_runs(baseline, new)
    write = {
        Form.TEXT: comparison.comparison_text,
        Form.JSON: comparison.comparison_json,
        Form.MARKDOWN: comparison.comparison_markdown,
    }
    say_lines(write[form](compared))
    if compared.is_worse(strict=strict):
        raise typer.Exit(EXIT_RED)
