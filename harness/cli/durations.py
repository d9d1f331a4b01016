"""``harness durations``: write the file that lists slow test files for runs without history."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import say, say_lines


def durations(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...", help="Run directories of complete runs: two or more, in different orders."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write. Default: print it.")
    ] = None,
) -> None:
    """Write the durations of slow test files, from the journals of runs, as configs/durations.yaml.

    A run starts the longest cases first. Durations come from results/history.json, which runs maintain, and from this
    file for cases without history. Regenerate the file after large changes of the suites.

    Exit status 4: a RUN_DIR has no journal of a run, or no case ran in any of them.
    """
    from harness.core.atomic import write_atomically
    from harness.core.errors import HarnessError
    from harness.scheduling import durations
    from harness.scheduling.durations import DurationHistory

    runs = [DurationHistory.of_runs([path]).seconds for path in run_dirs]
    if not any(runs):
        raise HarnessError(f"no case ran in {', '.join(repr(str(path)) for path in run_dirs)}")
    slow = durations.measured_slow_files(runs)
    text = durations.slow_files_text(slow)
    if out is None:
        say_lines(text)
        return
    write_atomically(out, text.encode())
    cases = len({case for run in runs for case in run})
    say(f"wrote {out}: {len(slow.files)} slow test files, from {cases} cases in {len(runs)} runs")
