"""The deep part: a run of the suites with the profile `ready`, for as long as the budget lasts.

It is an ordinary run with pytest, in a process of its own, with journal, page and evidence. It gets SIGTERM when the
budget is used up, and then writes its reports; cases that did not run by then are no problem of the node.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.disposable import DisposableRun, run_disposable
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_INTERRUPTED, EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED, Outcome
from harness.core.text import format_count, format_exit_code, list_first
from harness.devices.device import Device
from harness.devices.visibility import masks_for
from harness.journal.ledger import Ledger
from harness.ready.rules import Finding, Findings, unkillable

if TYPE_CHECKING:
    from harness.ready.node import Request

PROFILE = "ready"
#: Seconds of the budget in which a run that was asked to end does so: cases in hand end, reports are written.
ENDING = 15.0
_LADDER = ((signal.SIGTERM, ENDING), (signal.SIGKILL, 10.0))
_NAME = "suites"


def run_suites(
    request: Request,
    gpus: Sequence[Device],
    budget: float,
    found: Findings,
    tell: Callable[[str], object] = lambda _: None,
) -> None:
    """Run the suites on these GPUs for `budget` seconds."""
    if not gpus or budget <= 2 * ENDING:
        found.add(_NAME, state="skipped", text="the budget is used up" if gpus else "no GPU can be tested")
        return
    run_dir = (request.folder / f"{PROFILE}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}").absolute()
    tell(f"running the suites for at most {budget:.0f} s, in {run_dir}")
    try:
        command = [sys.executable, "-m", "pytest", *request.suites(_options(request, run_dir))]
        # pytest's own masks must name the GPUs that can be tested: one of the others could stop the whole run.
        environ = {**os.environ, **(masks_for(gpus) if request.device != "simcuda" else {})}
        end = run_disposable(command, budget - ENDING, environ=environ, ladder=_LADDER)
    except (OSError, HarnessError) as error:
        found.add(_NAME, [_no_run(f"the run does not start: {error}")], state="unknown")
    else:
        judge_run(end, _ledger(run_dir), run_dir, found)


def _options(request: Request, run_dir: Path) -> list[str]:
    options = ["--profile", PROFILE, "--device", request.device, "-n", "auto", "--results-dir", str(run_dir)]
    options += ["--hardware", request.hardware[0]] if request.hardware else []
    return [*options, "--leak-check=off", "--grace", "5", *(f"--inject={fault}" for fault in request.inject)]


def _ledger(run_dir: Path) -> Ledger | None:
    try:
        return Ledger.of(run_dir)
    except (OSError, HarnessError):
        return None


def judge_run(end: DisposableRun, ledger: Ledger | None, run_dir: Path, found: Findings) -> None:
    """Judge a run: red cases are a problem, and so is a run that did not get to any. Pure."""
    seconds = round(end.seconds, 1)
    if end.status is None:
        found.add(_NAME, [unkillable(f"pytest in {run_dir}")], seconds=seconds)
        return
    how = f"{format_exit_code(end.status)}; {end.last_error}"
    if ledger is None:
        found.add(_NAME, [_no_run(f"the run left no journal: {how}")], state="unknown", seconds=seconds)
        return
    red = [verdict for verdict in ledger.red if verdict.outcome is not Outcome.NOT_RUN]
    ran = sum(verdict.outcome.ran for verdict in ledger.verdicts)
    left = sum(verdict.outcome is Outcome.NOT_RUN for verdict in ledger.verdicts)
    counts = f"{format_count(ran, 'case')} ran" + (f", {left} did not within the budget" if left else "")
    if red:
        names = list_first([f"{verdict.case}: {verdict.outcome}" for verdict in red])
        finding = Finding("suites", "no red case", f"{len(red)} of {counts}: {names}", f"harness report {run_dir}")
        found.add(_NAME, [finding], seconds=seconds)
    elif ran and end.status in (EXIT_OK, EXIT_RED, EXIT_INTERRUPTED, EXIT_NOTHING_RAN, 128 + signal.SIGTERM):
        found.add(_NAME, text=counts, seconds=seconds)
    else:
        found.add(_NAME, [_no_run(f"{counts}; {how}")], state="unknown", seconds=seconds)


def _no_run(why: str) -> Finding:
    return Finding("cannot_run", "a run of the suites", why)
