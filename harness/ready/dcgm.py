"""NVIDIA's own diagnostics, ``dcgmi diag``, in a deep check of GPUs, if the program is installed.

Its JSON has no published schema (https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/errors.html), so
that only two things of it are used, wherever they are: the name of a test, and a status that is ``Fail``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from harness.core.disposable import DisposableRun, run_disposable
from harness.core.kill_ladder import LADDER
from harness.core.text import format_exit_code, list_first, single_line
from harness.ready.model import CheckRun, Problem
from harness.ready.request import Request
from harness.ready.rules import Finding, Rule, to_problems

PROGRAM = "dcgmi"
_NAME = "dcgm"
#: Seconds of the budget from which level 2 is run, which takes some two minutes; level 1 takes seconds.
MEDIUM_FROM = 600.0
_LIMITS = {1: 60.0, 2: 240.0}
_DEEPEST = 30


def run_dcgm(
    request: Request, budget: float, tell: Callable[[str], object] = lambda _: None
) -> tuple[list[CheckRun], list[Problem]]:
    """Run the diagnostics, for at most `budget` seconds. Without the program the check is skipped."""
    program = shutil.which(PROGRAM)
    if program is None:
        return [CheckRun(name=_NAME, state="skipped", text=f"{PROGRAM} is not installed")], []
    level = 2 if request.budget >= MEDIUM_FROM else 1
    tell(f"running {PROGRAM} diag at level {level}")
    limit = min(budget, _LIMITS[level])
    try:
        end = run_disposable([program, "diag", "-r", str(level), "-j"], limit, ladder=LADDER)
    except OSError as error:
        return _unknown(f"{PROGRAM} does not start: {error.strerror}", request.rules)
    return judge_dcgm(end, request.rules)


def judge_dcgm(end: DisposableRun, rules: Mapping[str, Rule]) -> tuple[list[CheckRun], list[Problem]]:
    """Judge the end and the output of the program. Pure."""
    if end.status is None:
        finding = Finding("unkillable", "processes that end when they are killed", f"{PROGRAM} diag")
        return [CheckRun(name=_NAME, state="problem", text=finding.found)], to_problems(_NAME, [finding], rules)
    if not end.in_time:
        return _unknown(f"{PROGRAM} diag did not end within {end.seconds:.0f} s", rules)
    try:
        results = json.loads(end.output)
    except (ValueError, RecursionError):
        last = end.last_error or single_line(end.output.decode(errors="replace"))
        return _unknown(f"{PROGRAM} diag ended with {format_exit_code(end.status)} and no JSON: {last}", rules)
    failed = list(dict.fromkeys(_failed(results, "", _DEEPEST)))
    if failed:
        finding = Finding(_NAME, "no failed test of dcgm", list_first(failed, 10), f"{PROGRAM} diag -r 2")
        run = CheckRun(name=_NAME, state="problem", text=finding.found, seconds=end.seconds)
        return [run], to_problems(_NAME, [finding], rules)
    if end.status != 0:
        return _unknown(f"{PROGRAM} diag ended with {format_exit_code(end.status)}, and no test failed", rules)
    return [CheckRun(name=_NAME, state="ok", seconds=end.seconds)], []


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


def _unknown(text: str, rules: Mapping[str, Rule]) -> tuple[list[CheckRun], list[Problem]]:
    finding = Finding("cannot_run", "a result of dcgm's diagnostics", text)
    return [CheckRun(name=_NAME, state="unknown", text=text)], to_problems(_NAME, [finding], rules)
