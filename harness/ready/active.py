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

import msgspec

from harness.core.disposable import DisposableRun, run_disposable
from harness.core.figures import Floor, parse_floor
from harness.core.text import format_exit_code, list_first, single_line
from harness.devices.device import Device, masks_for
from harness.gating.profiles import Hardware
from harness.ready import hardware as speeds
from harness.ready import quick_tests
from harness.ready.model import Problem
from harness.ready.quick_tests import Line, Order, Plan, plan
from harness.ready.rules import Finding, Findings, State, unkillable

#: Of the budget: until when tests begin; how long one may take before it hangs; what the end of processes takes.
_START_SHARE, _HANG_SHARE, _LEAST_HANG, _MOST_HANG, _END_RESERVE = 0.6, 0.25, 4.0, 20.0, 5.0
#: Seconds until the process with the tests is killed, after it should have ended by itself.
_MARGIN = 8.0
#: Seconds that the plan leaves for the import of torch, from a disk that has it in memory.
_IMPORT = 6.0
#: From the end of a test to the state of its check, and the kind of problem, or none. Else the table of tests has it.
_ENDS: Mapping[str, tuple[State, str | None]] = {
    "ok": ("ok", None),
    "lacks": ("skipped", None),
    "cannot": ("unknown", "cannot_run"),
    "error": ("problem", "device_error"),
    "slow": ("problem", "far_too_slow"),
}


def run_active(
    devices: Sequence[Device],
    budget: float,
    found: Findings,
    *,
    environ: Mapping[str, str] | None = None,
    hardware: Hardware | None = None,
    seed: int = 0,
) -> None:
    """Test all GPUs at once, then together, for at most `budget` seconds. Add the checks and the problems.

    `devices`: of one kind, without those that have a fault. `environ`: the variables of the processes, with those of
    simulated devices and of faults; by default those of this process. `hardware`: has the floors of speed. No fault of
    a device raises an error. The call may take some seconds more than the budget if a process cannot be killed.
    """
    if not devices:
        return
    full = devices[0].backend.hardware
    whole = [device for device in devices if device.mig_parent is None]
    together = len(whole) if len(whole) == len(devices) else 0
    chosen = plan(max(0.0, _START_SHARE * budget - _IMPORT), together, full=full)
    environ = dict(os.environ if environ is None else environ)
    if not full:  # simulated devices compute with the processors, of which all of them need some
        environ.setdefault("OMP_NUM_THREADS", "1")
    if not chosen.run:
        for name, why in chosen.skipped.items():
            found.add(name, state="skipped", text=why)
        _nothing_ran(None, found, budget)
        return
    with tempfile.TemporaryDirectory(prefix="harness-ready-", ignore_cleanup_errors=True) as folder:
        order = make_order(devices, budget, chosen, folder, seed=seed, full=full)
        lines, run = carry_out(order, Path(folder), environ)
    labels = {device.uuid: label_of(device) for device in devices}
    judge_lines(lines, run, chosen, labels, found, budget)
    if full:
        written = {} if hardware is None else hardware.floors
        floors = {name: parse_floor(name, text) for name, text in written.items()}
        judge_speeds(measured_figures(lines), floors, {device.uuid: device.name for device in devices}, found)


def label_of(device: Device) -> str:
    """Return the name of a device in texts: ``GPU 3``."""
    return device.uuid if device.index is None else f"GPU {device.index}"


def make_order(devices: Sequence[Device], budget: float, chosen: Plan, folder: str, *, seed: int, full: bool) -> Order:
    """Return the order for the process with the tests."""
    return Order(
        kind=devices[0].kind,
        gpus=tuple(quick_tests.Gpu(device.uuid, label_of(device), masks_for([device])) for device in devices),
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
            data = file.read(quick_tests.MOST_BYTES)
    except FileNotFoundError:
        data = b""
    return list(quick_tests.decode(data)), run


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
        found.add(name, state="skipped", text=why)
    imported = next((line for line in lines if line.what == "imported"), None)
    if imported is None:
        _judge_start(lines, run, found)
        for name in chosen.run:
            found.add(name, state="unknown", text="the process with the tests has not started them")
        return
    found.add("import_torch", seconds=imported.seconds)
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
        wanted = "the process with the tests ends by itself"
        found.problem("active", Finding(kind, wanted, f"it {how}; {run.last_error}"))


def _judge_start(lines: Sequence[Line], run: DisposableRun, found: Findings) -> None:
    kind, why = "cannot_run", next((line.text for line in lines if line.what == "failed"), "")
    if not why and run.status is None:
        kind, why = "unkillable", "the process that imports it cannot be killed"
    elif not why and run.in_time:
        how = format_exit_code(run.status or 0)
        why = f"the process that imports it ended with {how}: {single_line(run.last_error)}"
    why = why or f"no end of the import within {run.seconds:.0f} s"
    finding = Finding(kind, "torch is imported, so that the GPUs can be tested", why)
    found.add("import_torch", [finding], state="unknown", seconds=run.seconds)


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
    before, end = len(found.problems), story.end
    for name in tests:
        if name in story.done:
            _judge_done(story.done[name], gpu, found)
        elif name == story.open:
            _judge_open(name, gpu, story, found, budget)
        elif name not in story.left and end is None:
            text = "nothing is known of it: the process with the tests has ended"
            found.add(name, gpu=gpu, state="unknown", text=text)
        else:
            found.add(name, gpu=gpu, state="skipped", text=_why_left(story.left.get(name), end, budget))
    out_of_time = end is not None and end.state == "budget"
    if not story.done and (story.left or out_of_time) and len(found.problems) == before:
        _nothing_ran(gpu, found, budget)
    if len(found.problems) > before and not (end is not None and end.status is None):
        return  # whatever the end of the process was, it follows from the failure
    if end is None:
        found.problem(
            "active", Finding("cannot_run", "the tests of the GPU have an end", "nothing is known of it"), gpu
        )
    elif end.status is None:
        if len(found.problems) == before or found.problems[-1].kind != "unkillable":
            found.problem(
                end.name,
                unkillable(f"the process hangs in {end.name}, and SIGKILL does not end it: it waits in the kernel"),
                gpu,
            )
    elif end.status != 0 and not story.open and not out_of_time:
        kind, how = "crash", f"{format_exit_code(end.status)}; last output: {end.text or 'none'}"
        if end.state == "hang":
            kind, how = "hang", f"did not end within {end.seconds:.0f} s"
        wanted = "the process of a GPU ends with status 0"
        found.problem("process_exit", Finding(kind, wanted, f"{end.name}: {how}"), gpu)


def _why_left(left: Line | None, end: Line | None, budget: float) -> str:
    """Return why a test was not begun. `left`: the line that says so; `end`: that of the process, if there is none."""
    if left is not None and left.state:
        why = "an earlier test" if left.state == "after" else "an error of the device"
        return f"not tried after the failure of {why}"
    if left is None and end is not None and end.state != "budget":
        return "not reached, since the process of this GPU ended before"
    return f"not reached within the budget of {budget:.0f} s"


def _nothing_ran(gpu: str | None, found: Findings, budget: float) -> None:
    """Add the problem of a GPU of which nothing is known: a budget that is too small must not make it ready."""
    why = f"none was reached within {budget:.0f} s; give more with --budget"
    found.problem("active", Finding("cannot_run", "at least one test of each GPU within the budget", why), gpu)


def _judge_done(line: Line, gpu: str, found: Findings) -> None:
    entry = quick_tests.ENTRIES[line.name]
    state, kind = _ENDS.get(line.state, ("problem", entry.kind))
    if line.state == "slow" and entry.group:
        kind = entry.kind
    finding = [Finding(kind, entry.promise, line.text)] if kind else []
    found.add(line.name, finding, gpu, state=state, text=line.text, seconds=line.seconds)


def _judge_open(name: str, gpu: str, story: _Story, found: Findings, budget: float) -> None:
    """Judge a test that has begun and not ended."""
    end, entry = story.end, quick_tests.ENTRIES[name]
    where = f" at {story.place}" if story.place else ""
    state: State = "problem"
    kind = finding = None
    if end is None:
        state, kind, why = "unknown", "cannot_run", f"nothing is known of its end{where}"
    elif end.status is None:
        why, finding = (
            f"hangs{where}, and cannot be killed",
            unkillable(f"the process hangs in {name}, and SIGKILL does not end it: it waits in the kernel"),
        )
    elif end.state == "hang" and end.starved > end.seconds / 2:
        why = f"no end within {end.seconds:.0f} s{where}, but for {end.starved:.0f} s no processor was free"
        state, kind = "unknown", "cannot_run"
    elif end.state == "hang":
        kind, why = "hang", f"no end within {end.seconds:.0f} s{where}"
    elif end.state == "budget":
        state, why = "skipped", f"the budget of {budget:.0f} s ended while it ran{where}"
    elif end.state == "others":
        state, why = "unknown", "it waited for a GPU that has failed"
    else:
        why = f"the process ended with {format_exit_code(end.status)}{where}; last output: {end.text or 'none'}"
        kind = "crash"
    if kind is not None:
        finding = Finding(kind, entry.promise, why)
    seconds = 0.0 if end is None else end.seconds
    found.add(name, [finding] if finding else [], gpu, state=state, text=why, seconds=seconds)


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
        found.add(name, state="skipped", text=why)
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
        found.add(name, state=state, seconds=seconds, text=text)
        return
    causes = {gpu: problem for gpu, problem in failed.items() if problem.kind != "hang"} or _behind(failed, begun)
    first = next(iter(causes.values()))
    cause = next(iter(causes)) if len(causes) == 1 and len(begun) > 2 else None
    kind = "group_hang" if first.kind == "hang" and cause is None else first.kind
    who = list_first([labels[each] for each in causes], 8)
    finding = Finding(kind, entry.promise, first.found, f"seen by {who}, of {len(begun)} GPUs")
    found.problem(name, finding, cause)
    found.add(name, state="unknown" if kind == "cannot_run" else "problem", seconds=seconds, text=first.found)


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
        finding = [Finding("slow", each.wanted, each.why)] if each.why else []
        unit = speeds.unit_of(each.name)
        found.add(each.name, finding, each.gpu, value=each.value, floor=each.bound, unit=unit)
