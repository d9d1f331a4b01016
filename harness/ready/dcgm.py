"""NVIDIA's own diagnostics, ``dcgmi diag``, in a deep check of GPUs, if the program is installed.

Its JSON has no published schema (https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/errors.html), so
that only two things of it are used, wherever they are: the name of a test, and a status that is ``Fail``.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from harness.core.disposable import LADDER, DisposableRun, run_disposable
from harness.core.text import format_exit_code, list_first, single_line
from harness.ready.rules import Finding, Findings, unkillable

if TYPE_CHECKING:
    from harness.ready.node import Request

PROGRAM = "dcgmi"
_NAME = "dcgm"
#: Seconds of the budget from which level 2 is run, which takes some two minutes; level 1 takes seconds.
MEDIUM_FROM = 600.0
_LIMITS = {1: 60.0, 2: 240.0}
_DEEPEST = 30


def run_dcgm(request: Request, budget: float, found: Findings, tell: Callable[[str], object] = lambda _: None) -> None:
    """Run the diagnostics, for at most `budget` seconds. Without the program the check is skipped."""
    program = shutil.which(PROGRAM)
    if program is None:
        found.add(_NAME, state="skipped", text=f"{PROGRAM} is not installed")
        return
    level = 2 if request.budget >= MEDIUM_FROM else 1
    tell(f"running {PROGRAM} diag at level {level}")
    limit = min(budget, _LIMITS[level])
    try:
        end = run_disposable([program, "diag", "-r", str(level), "-j"], limit, ladder=LADDER)
    except OSError as error:
        found.add(_NAME, [_no_result(f"{PROGRAM} does not start: {error.strerror}")], state="unknown")
    else:
        judge_dcgm(end, found)


def judge_dcgm(end: DisposableRun, found: Findings) -> None:
    """Judge the end and the output of the program. Pure."""
    if end.status is None:
        found.add(_NAME, [unkillable(f"{PROGRAM} diag")])
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
        finding = Finding(_NAME, "no failed test of dcgm", list_first(failed, 10), f"{PROGRAM} diag -r 2")
        found.add(_NAME, [finding], seconds=end.seconds)
        return
    else:
        why = f"{how}, and no test failed" if end.status else ""
    found.add(_NAME, [_no_result(why)] if why else [], state="unknown" if why else "ok", seconds=end.seconds)


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
