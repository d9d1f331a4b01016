"""The active tests of a node: orders them, reads what came back, and judges it.

`run_active` is the edge; `judge_lines` decides over plain values, and a table of tests holds it. No torch is imported
here: the tests run in processes of their own (`harness.ready.worker`).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from harness.core.disposable import DisposableRun, run_disposable
from harness.core.figures import Floor, parse_floor
from harness.core.text import format_exit_code, list_first, single_line
from harness.devices.device import Device
from harness.devices.visibility import masks_for
from harness.gating.hardware import Hardware
from harness.ready import floors as speeds
from harness.ready import orders, quick_tests
from harness.ready.model import MOST_TEXT, CheckRun, Problem
from harness.ready.orders import Line, Order
from harness.ready.plan import Plan, plan
from harness.ready.rules import RULES, Rule, make_problem

#: Of the budget: until when tests begin; how long one may take before it hangs; what the end of processes takes.
_START_SHARE, _HANG_SHARE, _LEAST_HANG, _MOST_HANG, _END_RESERVE = 0.6, 0.25, 4.0, 20.0, 5.0
#: Seconds until the process with the tests is killed, after it should have ended by itself.
_MARGIN = 8.0
#: Seconds that the plan leaves for the import of torch, from a disk that has it in memory.
_IMPORT = 6.0

State = Literal["ok", "problem", "unknown", "skipped"]


@dataclass(slots=True)
class Findings:
    """Checks and problems as they are found. `rules`: the table of verdicts and next steps."""

    rules: Mapping[str, Rule] = field(default_factory=lambda: RULES)
    checks: list[CheckRun] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def check(self, name: str, gpu: str | None, state: State, *, seconds: float = 0.0, text: str = "") -> None:
        """Record a check that measures nothing."""
        text = single_line(text, MOST_TEXT)
        self.checks.append(CheckRun(name=name, gpu=gpu, state=state, seconds=seconds, text=text))

    def problem(self, kind: str, check: str, gpu: str | None, wanted: str, found: str, detail: str = "") -> None:
        """Record a problem."""
        made = make_problem(kind, check=check, gpu=gpu, wanted=wanted, found=found, detail=detail, rules=self.rules)
        self.problems.append(made)


def run_active(
    devices: Sequence[Device],
    budget: float,
    *,
    environ: Mapping[str, str] | None = None,
    hardware: Hardware | None = None,
    rules: Mapping[str, Rule] = RULES,
    seed: int = 0,
) -> tuple[list[CheckRun], list[Problem]]:
    """Test all GPUs at once, then together, for at most `budget` seconds. Return the checks and the problems.

    `devices`: of one kind, without those that have a fault. `environ`: the variables of the processes, with those of
    simulated devices and of faults; by default those of this process. `hardware`: has the floors of speed. No fault of
    a device raises an error. The call may take some seconds more than the budget if a process cannot be killed.
    """
    if not devices:
        return [], []
    full = devices[0].backend.hardware
    whole = [device for device in devices if device.mig_parent is None]
    tests = quick_tests.quick_tests(full=full)
    chosen = plan(tests, max(0.0, _START_SHARE * budget - _IMPORT), len(whole) if len(whole) == len(devices) else 0)
    environ = dict(os.environ if environ is None else environ)
    if not full:  # simulated devices compute with the processors, of which all of them need some
        environ.setdefault("OMP_NUM_THREADS", "1")
    found = Findings(rules)
    if not chosen.run:
        for name, why in chosen.skipped.items():
            found.check(name, None, "skipped", text=why)
        _nothing_ran(None, found, budget)
        return found.checks, found.problems
    with tempfile.TemporaryDirectory(prefix="harness-ready-", ignore_cleanup_errors=True) as folder:
        order = make_order(devices, budget, chosen, folder, seed=seed, full=full)
        lines, run = carry_out(order, Path(folder), environ)
    labels = {device.uuid: label_of(device) for device in devices}
    judge_lines(lines, run, chosen, labels, found, budget)
    if full:
        written = {} if hardware is None else hardware.floors
        floors = {name: parse_floor(name, text) for name, text in written.items()}
        judge_speeds(measured_figures(lines), floors, {device.uuid: device.name for device in devices}, found)
    return found.checks, found.problems


def label_of(device: Device) -> str:
    """Return the name of a device in texts: ``GPU 3``."""
    return device.uuid if device.index is None else f"GPU {device.index}"


def make_order(devices: Sequence[Device], budget: float, chosen: Plan, folder: str, *, seed: int, full: bool) -> Order:
    """Return the order for the process with the tests."""
    return Order(
        kind=devices[0].kind,
        gpus=tuple(orders.Gpu(device.uuid, label_of(device), masks_for([device])) for device in devices),
        solo=tuple(name for name in chosen.run if not quick_tests.ENTRIES[name].group),
        group=tuple(name for name in chosen.run if quick_tests.ENTRIES[name].group),
        folder=folder,
        start_until=_START_SHARE * budget,
        hang=min(_MOST_HANG, max(_LEAST_HANG, _HANG_SHARE * budget)),
        end=max(budget - _END_RESERVE, _START_SHARE * budget),
        seed=seed,
        full=full,
        whole_exit=devices[0].backend.hardware,
    )


def carry_out(order: Order, folder: Path, environ: Mapping[str, str]) -> tuple[list[Line], DisposableRun]:
    """Run the process with the tests; return its lines, and how it ended."""
    written, result = folder / "order.json", folder / "lines.ndjson"
    written.write_bytes(msgspec.json.encode(msgspec.structs.replace(order, parent=os.getpid())))
    command = [sys.executable, "-m", "harness.ready.worker", str(written), str(result)]
    began = time.monotonic()
    try:
        run = run_disposable(command, order.end + _MARGIN, environ=environ)
    except OSError as error:
        run = DisposableRun(127, True, time.monotonic() - began, errors=str(error).encode())
    try:
        with result.open("rb") as file:
            data = file.read(orders.MOST_BYTES)
    except FileNotFoundError:
        data = b""
    return list(orders.decode(data)), run


@dataclass(slots=True)
class _Story:
    """The lines about one GPU in one phase."""

    done: dict[str, Line] = field(default_factory=dict)
    open: str = ""
    place: str = ""
    places: int = 0
    left: dict[str, Line] = field(default_factory=dict)
    end: Line | None = None


def judge_lines(
    lines: Sequence[Line], run: DisposableRun, chosen: Plan, labels: Mapping[str, str], found: Findings, budget: float
) -> None:
    """Add a check per GPU and test, and a problem per failure. `labels`: the GPUs by UUID."""
    for name, why in chosen.skipped.items():
        found.check(name, None, "skipped", text=why)
    imported = next((line for line in lines if line.what == "imported"), None)
    if imported is None:
        _judge_start(lines, run, found)
        for name in chosen.run:
            found.check(name, None, "unknown", text="the process with the tests has not started them")
        return
    found.check("import_torch", None, "ok", seconds=imported.seconds)
    solo = [name for name in chosen.run if not quick_tests.ENTRIES[name].group]
    stories = {gpu: _story(lines, gpu, "solo") for gpu in labels}
    for gpu, story in stories.items():
        _judge_gpu(gpu, story, solo, found, budget)
    bad = {problem.gpu for problem in found.problems}
    good = [gpu for gpu in labels if gpu not in bad]
    left = [line for line in lines if line.what == "left" and line.phase == "group" and not line.gpu]
    for name in chosen.run:
        if quick_tests.ENTRIES[name].group:
            _judge_group(name, lines, good, labels, left, found)
    if run.status != 0:
        how = "could not be killed" if run.status is None else f"ended with {format_exit_code(run.status)}"
        kind = "unkillable" if run.status is None else "cannot_run"
        found.problem(kind, "active", None, "the process with the tests ends by itself", f"it {how}; {run.last_error}")


def _judge_start(lines: Sequence[Line], run: DisposableRun, found: Findings) -> None:
    failed = next((line.text for line in lines if line.what == "failed"), "")
    wanted = "torch is imported, so that the GPUs can be tested"
    if failed:
        found.problem("cannot_run", "import_torch", None, wanted, failed)
    elif run.status is None:
        found.problem("unkillable", "import_torch", None, wanted, "the process that imports it cannot be killed")
    elif not run.in_time:
        found.problem("cannot_run", "import_torch", None, wanted, f"no end of the import within {run.seconds:.0f} s")
    else:
        how = f"the process that imports it ended with {format_exit_code(run.status)}: {single_line(run.last_error)}"
        found.problem("cannot_run", "import_torch", None, wanted, how)
    found.check("import_torch", None, "unknown", seconds=run.seconds, text=found.problems[-1].found)


def _story(lines: Sequence[Line], gpu: str, phase: str, name: str = "") -> _Story:
    story = _Story()
    for line in lines:
        if (
            line.gpu != gpu
            or line.phase != phase
            or (name and line.name not in (name, "process start", "process exit"))
        ):
            continue
        if line.what == "test":
            story.open, story.place = line.name, ""
        elif line.what == "place":
            story.place, story.places = line.text, story.places + 1
        elif line.what == "done":
            story.done[line.name], story.open = line, ""
        elif line.what == "left":
            story.left |= dict.fromkeys(line.names, line)
        elif line.what == "end":
            story.end = line
    return story


def _judge_gpu(gpu: str, story: _Story, tests: Sequence[str], found: Findings, budget: float) -> None:
    before = len(found.problems)
    for name in tests:
        if name in story.done:
            _judge_done(story.done[name], gpu, found)
        elif name == story.open:
            _judge_open(name, gpu, story, found, budget)
        elif name in story.left and story.left[name].state:
            why = "an earlier test" if story.left[name].state == "after" else "an error of the device"
            found.check(name, gpu, "skipped", text=f"not tried after the failure of {why}")
        elif name in story.left:
            found.check(name, gpu, "skipped", text=f"not reached within the budget of {budget:.0f} s")
        elif story.end is None:
            found.check(name, gpu, "unknown", text="nothing is known of it: the process with the tests has ended")
        elif story.end.state != "budget":
            found.check(name, gpu, "skipped", text="not reached, since the process of this GPU ended before")
        else:
            found.check(name, gpu, "skipped", text=f"not reached within the budget of {budget:.0f} s")
    if not story.done and not story.open and story.left and len(found.problems) == before:
        _nothing_ran(gpu, found, budget)
    end = story.end
    if len(found.problems) > before and not (end is not None and end.status is None):
        return  # whatever the end of the process was, it follows from the failure
    if end is None:
        found.problem("cannot_run", "active", gpu, "the tests of the GPU have an end", "nothing is known of it")
    elif end.status is None:
        if len(found.problems) == before or found.problems[-1].kind != "unkillable":
            _unkillable(end.name, gpu, found)
    elif end.status != 0 and not story.open:
        how = f"{format_exit_code(end.status)}; last output: {end.text or 'none'}"
        kind, wanted = "crash", "the process of a GPU ends with status 0"
        if end.state == "hang":
            kind, how = "hang", f"did not end within {end.seconds:.0f} s"
        found.problem(kind, "process_exit", gpu, wanted, f"{end.name}: {how}")


def _nothing_ran(gpu: str | None, found: Findings, budget: float) -> None:
    """Add the problem of a GPU of which nothing is known: a budget that is too small must not make it ready."""
    wanted = "at least one test of each GPU within the budget"
    found.problem(
        "cannot_run", "active", gpu, wanted, f"none was reached within {budget:.0f} s; give more with --budget"
    )


def _judge_done(line: Line, gpu: str, found: Findings) -> None:
    entry = quick_tests.ENTRIES[line.name]
    seconds = line.seconds
    if line.state == "ok":
        found.check(line.name, gpu, "ok", seconds=seconds)
    elif line.state == "lacks":
        found.check(line.name, gpu, "skipped", seconds=seconds, text=line.text)
    elif line.state == "cannot":
        found.check(line.name, gpu, "unknown", seconds=seconds, text=line.text)
        found.problem("cannot_run", line.name, gpu, entry.promise, line.text)
    else:
        own = {"error": "device_error", "slow": entry.kind if entry.group else "far_too_slow"}
        kind = own.get(line.state, entry.kind)
        found.check(line.name, gpu, "problem", seconds=seconds, text=line.text)
        found.problem(kind, line.name, gpu, entry.promise, line.text)


def _judge_open(name: str, gpu: str | None, story: _Story, found: Findings, budget: float) -> None:
    """Judge a test that has begun and not ended."""
    end, entry = story.end, quick_tests.ENTRIES[name]
    where = f" at {story.place}" if story.place else ""
    if end is None:
        found.check(name, gpu, "unknown", text=f"nothing is known of its end{where}")
        found.problem("cannot_run", name, gpu, entry.promise, f"nothing is known of its end{where}")
    elif end.status is None:
        found.check(name, gpu, "problem", seconds=end.seconds, text=f"hangs{where}, and cannot be killed")
        _unkillable(name, gpu, found)
    elif end.state == "hang" and end.starved > end.seconds / 2:
        why = f"no end within {end.seconds:.0f} s{where}, but for {end.starved:.0f} s no processor was free"
        found.check(name, gpu, "unknown", seconds=end.seconds, text=why)
        found.problem("cannot_run", name, gpu, entry.promise, why)
    elif end.state == "hang":
        kind = "group_hang" if entry.group and gpu is None else "hang"
        why = f"no end within {end.seconds:.0f} s{where}"
        found.check(name, gpu, "problem", seconds=end.seconds, text=why)
        found.problem(kind, name, gpu, entry.promise, why)
    elif end.state == "budget":
        why = f"the budget of {budget:.0f} s ended while it ran{where}"
        found.check(name, gpu, "skipped", seconds=end.seconds, text=why)
    elif end.state == "others":
        found.check(name, gpu, "unknown", seconds=end.seconds, text="it waited for a GPU that has failed")
    else:
        why = f"the process ended with {format_exit_code(end.status)}{where}; last output: {end.text or 'none'}"
        found.check(name, gpu, "problem", seconds=end.seconds, text=why)
        found.problem("crash", name, gpu, entry.promise, why)


def _unkillable(name: str, gpu: str | None, found: Findings) -> None:
    found.problem(
        "unkillable",
        name,
        gpu,
        "a process that is killed ends",
        f"the process hangs in {name}, and SIGKILL does not end it: it waits in the kernel",
    )


def _judge_group(
    name: str,
    lines: Sequence[Line],
    good: Sequence[str],
    labels: Mapping[str, str],
    left: Sequence[Line],
    found: Findings,
) -> None:
    """Judge a test of several GPUs: a check for the node, and one problem, with the GPU if one is the cause."""
    stories = {gpu: _story(lines, gpu, "group", name) for gpu in good}
    begun = {gpu: story for gpu, story in stories.items() if name in story.done or story.open or story.end}
    entry = quick_tests.ENTRIES[name]
    if not begun:
        line = next((line for line in left if name in line.names), None)
        why = "not reached within the budget"
        if line is not None and line.state == "others":
            why = "not tried after the failure of an earlier test of the group"
        elif len(good) < 2:
            why = f"it needs two GPUs without a problem, and there {'is 1' if len(good) == 1 else 'are 0'}"
        found.check(name, None, "skipped", text=why)
        return
    own = {gpu: Findings(found.rules) for gpu in begun}
    for gpu, story in begun.items():
        if name in story.done:
            _judge_done(story.done[name], gpu, own[gpu])
        else:
            _judge_open(name, gpu, story, own[gpu], 0.0)
    failed = {gpu: each.problems[0] for gpu, each in own.items() if each.problems}
    seconds = max((check.seconds for each in own.values() for check in each.checks), default=0.0)
    if not failed:
        states = {check.state for each in own.values() for check in each.checks}
        state: State = "ok" if states == {"ok"} else "skipped" if states & {"skipped"} else "unknown"
        text = next((check.text for each in own.values() for check in each.checks if check.state != "ok"), "")
        found.check(name, None, state, seconds=seconds, text=text)
        return
    causes = {gpu: problem for gpu, problem in failed.items() if problem.kind != "hang"} or _behind(failed, begun)
    first = next(iter(causes.values()))
    cause = next(iter(causes)) if len(causes) == 1 and len(begun) > 2 else None
    kind = "group_hang" if first.kind == "hang" and cause is None else first.kind
    who = list_first([labels[each] for each in causes], 8)
    found.check(name, None, "unknown" if kind == "cannot_run" else "problem", seconds=seconds, text=first.found)
    found.problem(kind, name, cause, entry.promise, first.found, detail=f"seen by {who}, of {len(begun)} GPUs")


def _behind(failed: Mapping[str, Problem], stories: Mapping[str, _Story]) -> dict[str, Problem]:
    """Return the GPUs that hang at the earliest place: those for which the others wait."""
    least = min(stories[gpu].places for gpu in failed)
    return {gpu: problem for gpu, problem in failed.items() if stories[gpu].places == least}


def measured_figures(lines: Sequence[Line]) -> dict[str, dict[str, float]]:
    """Return the figures of each GPU by name."""
    measured: dict[str, dict[str, float]] = {}
    for line in lines:
        if line.what == "done" and line.figures:
            measured.setdefault(line.gpu, {}).update(line.figures)
    return measured


def judge_speeds(
    measured: Mapping[str, Mapping[str, float]],
    floors: Mapping[str, Floor],
    models: Mapping[str, str],
    found: Findings,
) -> None:
    """Add a check for each figure, and a problem for each that is too slow."""
    for each in speeds.judge_figures(measured, floors, models):
        found.checks.append(
            CheckRun(
                name=each.name,
                gpu=each.gpu,
                state="problem" if each.why else "ok",
                text=each.why,
                value=each.value,
                floor=each.bound,
                unit=speeds.unit_of(each.name),
            )
        )
        if each.why:
            found.problem("slow", each.name, each.gpu, each.wanted, each.why)
