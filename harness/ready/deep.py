"""The deep part: NVIDIA's own diagnostics, and a run of the suites with the profile `ready` while the budget lasts.

The run is an ordinary one of pytest, in a process of its own, with journal, page and evidence. It gets SIGTERM when the
budget is used up, and then writes its reports; cases that did not run by then are no problem of the node.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.disposable import LADDER, DisposableRun, run_disposable
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_INTERRUPTED, EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED, Outcome
from harness.core.text import format_count, format_exit_code, list_first, single_line
from harness.devices.device import Device, masks_for
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


# NVIDIA's own diagnostics, ``dcgmi diag``, in a deep check of GPUs, if the program is installed.
#
# Its JSON has no published schema (https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/errors.html),
# so that only two things of it are used, wherever they are: the name of a test, and a status that is ``Fail``.

PROGRAM = "dcgmi"
_DCGM = "dcgm"
#: Seconds of the budget from which level 2 is run, which takes some two minutes; level 1 takes seconds.
MEDIUM_FROM = 600.0
_LIMITS = {1: 60.0, 2: 240.0}
_DEEPEST = 30


def run_dcgm(request: Request, budget: float, found: Findings, tell: Callable[[str], object] = lambda _: None) -> None:
    """Run the diagnostics, for at most `budget` seconds. Without the program the check is skipped."""
    program = shutil.which(PROGRAM)
    if program is None:
        found.add(_DCGM, state="skipped", text=f"{PROGRAM} is not installed")
        return
    level = 2 if request.budget >= MEDIUM_FROM else 1
    tell(f"running {PROGRAM} diag at level {level}")
    limit = min(budget, _LIMITS[level])
    try:
        end = run_disposable([program, "diag", "-r", str(level), "-j"], limit, ladder=LADDER)
    except OSError as error:
        found.add(_DCGM, [_no_result(f"{PROGRAM} does not start: {error.strerror}")], state="unknown")
    else:
        judge_dcgm(end, found)


def judge_dcgm(end: DisposableRun, found: Findings) -> None:
    """Judge the end and the output of the program. Pure."""
    if end.status is None:
        found.add(_DCGM, [unkillable(f"{PROGRAM} diag")])
        return
    how = f"{PROGRAM} diag ended with {format_exit_code(end.status)}"
    results = None
    with contextlib.suppress(ValueError, RecursionError):
        results = json.loads(end.output)
    failed = list(dict.fromkeys(_failed(results, "", _DEEPEST)))
    if not end.in_time:
        why = f"{PROGRAM} diag did not end within {end.seconds:.0f} s"
    elif results is None:
        why = f"{how} and no JSON: {end.last_error or single_line(end.output.decode(errors='replace'))}"
    elif failed:
        finding = Finding(_DCGM, "no failed test of dcgm", list_first(failed, 10), f"{PROGRAM} diag -r 2")
        found.add(_DCGM, [finding], seconds=end.seconds)
        return
    else:
        why = f"{how}, and no test failed" if end.status else ""
    found.add(_DCGM, [_no_result(why)] if why else [], state="unknown" if why else "ok", seconds=end.seconds)


def _no_result(why: str) -> Finding:
    return Finding("cannot_run", "a result of dcgm's diagnostics", why)


def _failed(value: Any, name: str, depth: int) -> Iterator[str]:
    """Yield the names of the tests with a status that is ``Fail``, with the GPU, as far as it is named."""
    if depth == 0:
        return
    if isinstance(value, dict):
        name = str(value.get("name", name))
        if str(value.get("status", "")).lower() == "fail":
            gpu = next((value[key] for key in ("gpu_id", "gpu_ids", "entity_id") if key in value), "")
            yield single_line(f"{name} (GPU {gpu})" if gpu != "" else name, 200)
    parts: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from _failed(part, name, depth - 1)
