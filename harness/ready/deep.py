"""The deep part: a run of the suites with the profile `ready`, for as long as the budget lasts.

It is an ordinary run with pytest, in a process of its own, with journal, page and evidence. It gets SIGTERM when the
budget is used up, and then writes its reports; cases that did not run by then are no problem of the node.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.core.disposable import DisposableRun, run_disposable
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_INTERRUPTED, EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED, Outcome
from harness.core.text import format_count, format_exit_code, list_first
from harness.devices.device import Device
from harness.devices.visibility import masks_for
from harness.journal.ledger import Ledger
from harness.ready.model import CheckRun, Problem
from harness.ready.request import Request
from harness.ready.rules import Finding, Rule, to_problems

PROFILE = "ready"
#: Seconds of the budget in which a run that was asked to end does so: cases in hand end, reports are written.
ENDING = 15.0
_LADDER = ((signal.SIGTERM, ENDING), (signal.SIGKILL, 10.0))
_NAME = "suites"


def run_suites(
    request: Request, gpus: Sequence[Device], budget: float, tell: Callable[[str], object] = lambda _: None
) -> tuple[list[CheckRun], list[Problem]]:
    """Run the suites on these GPUs for `budget` seconds."""
    if not gpus:
        return [CheckRun(name=_NAME, state="skipped", text="no GPU can be tested")], []
    if budget <= 2 * ENDING:
        return [CheckRun(name=_NAME, state="skipped", text="the budget is used up")], []
    run_dir = (request.folder / f"{PROFILE}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}").absolute()
    tell(f"running the suites for at most {budget:.0f} s, in {run_dir}")
    try:
        command = [sys.executable, "-m", "pytest", *request.suites(_options(request, run_dir))]
        # pytest's own masks must name the GPUs that can be tested: one of the others could stop the whole run.
        environ = {**os.environ, **(masks_for(gpus) if request.device != "simcuda" else {})}
        end = run_disposable(command, budget - ENDING, environ=environ, ladder=_LADDER)
    except (OSError, HarnessError) as error:
        return _unknown(f"the run does not start: {error}", request.rules)
    return judge_run(end, _ledger(run_dir), run_dir, request.rules)


def _options(request: Request, run_dir: Path) -> list[str]:
    options = ["--profile", PROFILE, "--device", request.device, "-n", "auto", "--results-dir", str(run_dir)]
    options += ["--hardware", request.hardware[0]] if request.hardware else []
    return [*options, "--leak-check=off", "--grace", "5", *(f"--inject={fault}" for fault in request.inject)]


def _ledger(run_dir: Path) -> Ledger | None:
    try:
        return Ledger.of(run_dir)
    except (OSError, HarnessError):
        return None


def judge_run(
    end: DisposableRun, ledger: Ledger | None, run_dir: Path, rules: Mapping[str, Rule]
) -> tuple[list[CheckRun], list[Problem]]:
    """Judge a run: red cases are a problem, and so is a run that did not get to any. Pure."""
    if end.status is None:
        found = Finding("unkillable", "processes that end when they are killed", f"pytest in {run_dir}")
        return _check("problem", found.found, end), to_problems(_NAME, [found], rules)
    if ledger is None:
        return _unknown(f"the run left no journal: {format_exit_code(end.status)}; {end.last_error}", rules)
    red = [verdict for verdict in ledger.red if verdict.outcome is not Outcome.NOT_RUN]
    ran = sum(verdict.outcome.ran for verdict in ledger.verdicts)
    left = sum(verdict.outcome is Outcome.NOT_RUN for verdict in ledger.verdicts)
    counts = f"{format_count(ran, 'case')} ran" + (f", {left} did not within the budget" if left else "")
    if red:
        names = list_first([f"{verdict.case}: {verdict.outcome}" for verdict in red])
        finding = Finding("suites", "no red case", f"{len(red)} of {counts}: {names}", f"harness report {run_dir}")
        return _check("problem", finding.found, end), to_problems(_NAME, [finding], rules)
    if ran and end.status in (EXIT_OK, EXIT_RED, EXIT_INTERRUPTED, EXIT_NOTHING_RAN, 128 + signal.SIGTERM):
        return _check("ok", counts, end), []
    return _unknown(f"{counts}; {format_exit_code(end.status)}; {end.last_error}", rules)


def _check(state: str, text: str, end: DisposableRun) -> list[CheckRun]:
    return [CheckRun(name=_NAME, state=state, text=text, seconds=round(end.seconds, 1))]  # type: ignore[arg-type]


def _unknown(text: str, rules: Mapping[str, Rule]) -> tuple[list[CheckRun], list[Problem]]:
    finding = Finding("cannot_run", "a run of the suites", text)
    return [CheckRun(name=_NAME, state="unknown", text=text)], to_problems(_NAME, [finding], rules)
