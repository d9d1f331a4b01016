"""What a run can measure on a registered device: the probes of a disposable process, and their meanings."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.backends.backend import Backend
from harness.core.disposable import run_disposable
from harness.core.text import format_exit_code, single_line
from harness.devices.backend_probes import MISSING, WORKS, WRONG

#: Seconds for all probes. The first import of torch may come from a network file system.
LIMIT = 300.0


@dataclass(frozen=True, slots=True)
class Meaning:
    """The effect of a probed feature on a run if present, the effect if missing, and what to implement."""

    has: str
    lacks: str
    implement: str


#: By name of a probe, in order.
MEANINGS: Mapping[str, Meaning] = {
    "import": Meaning(
        "cases are collected once, and executors are forks",
        "no run starts, or executors must collect the cases themselves (--start=cold)",
        "a package that registers the device with torch when it is imported, and first uses it for a tensor",
    ),
    "count": Meaning(
        "one worker per device with -n auto",
        "no run starts",
        "`device_count` in the device's module, or a method of a `Backend`",
    ),
    "mask": Meaning(
        "each worker has a device for itself",
        "all workers compute on the first device, in turn",
        "a variable that the driver reads when a process first uses it: Backend(mask=…)",
    ),
    "fork": Meaning(
        "a fresh process per crash costs milliseconds",
        "executors must collect the cases themselves (--start=cold)",
        "start threads at the first use of a device, not at the import",
    ),
    "memory": Meaning("cases run", "no case runs", "empty, copy_ and the copy to the CPU for torch's types"),
    "synchronize": Meaning(
        "a sticky error is attributed to its case",
        "a sticky error makes the next cases red",
        "`synchronizeDevice` in the device guard, or `synchronize` in the device's module",
    ),
    "stream": Meaning("the cases of streams run", "the cases of streams are red", "the streams of the device guard"),
    "event": Meaning("the cases of events run", "the cases of events are red", "the events of the device guard"),
    "statistics": Meaning(
        "leaks of device memory are found",
        "leaks of device memory are not found; tensors are still counted",
        "a c10::DeviceAllocator, or `counters` of a `Backend`",
    ),
    "seeds": Meaning(
        "each case has the same random numbers in each run",
        "random numbers of the device differ between runs",
        "`manual_seed_all` in the device's module, or `seed` of a `Backend`",
    ),
    "pinned": Meaning(
        "the cases of pinned memory run",
        "the cases of pinned memory are red",
        "a host allocator: `getPinnedMemoryAllocator` of the device's hooks",
    ),
    "conjugate": Meaning(
        "conjugated tensors are copied",
        "a case that copies a conjugated tensor is red, or ends its process",
        "a fallthrough of `_copy_from` for the keys Conjugate and Negative, and both marks in `_copy_from`",
    ),
    "autocast": Meaning(
        "the cases of autocast run",
        "the cases of `amp` are red",
        "`get_amp_supported_dtype` in the device's module, and operators for the key AutocastPrivateUse1",
    ),
    "convolution": Meaning(
        "the cases of convolutions run",
        "the cases of convolutions are red",
        "`convolution_overrideable` and its backward",
    ),
    "crash": Meaning(
        "the case after a crash runs on a good device",
        "a crash of one case may make the next ones red",
        "release what a process held when the driver sees its end",
    ),
}


@dataclass(frozen=True, slots=True)
class Checked:
    """One line of the report."""

    name: str
    state: str
    found: str

    @property
    def meaning(self) -> Meaning:
        return MEANINGS[self.name]

    @property
    def then(self) -> str:
        """The consequence for a run."""
        return self.meaning.has if self.state == WORKS else self.meaning.lacks


def check_backend(backend: Backend, environ: Mapping[str, str] | None = None) -> list[Checked]:
    """Make all probes. If the device cannot be counted, stop."""
    environ = os.environ if environ is None else environ
    results, ended = _probe(backend, environ)
    if ended:
        unfinished = next(name for name in MEANINGS if name not in {result.name for result in results})
        results.append(Checked(unfinished, WRONG, ended))
        return results
    if len(results) < len(MEANINGS) - 1 or any(result.name == "memory" and result.state != WORKS for result in results):
        return results
    return [*results, _after_crash(backend, environ)]


def failed(results: Sequence[Checked]) -> bool:
    """Return whether anything is wrong. A missing feature is no failure, since the device may lack it."""
    return any(result.state == WRONG for result in results)


def report_lines(results: Sequence[Checked]) -> list[str]:
    """Return the lines of the report: each probe, its meaning for a run, and what to implement."""
    lines = []
    for result in results:
        lines.append(f"{result.state:8}{result.name:12}{result.found}")
        lines.append(f"{'':20}a run: {result.then}")
        if result.state != WORKS:
            lines.append(f"{'':20}implement: {result.meaning.implement}")
    counts = ", ".join(f"{sum(probe.state == state for probe in results)} {state}" for state in (WORKS, MISSING, WRONG))
    return [*lines, f"{len(results)} of {len(MEANINGS)} probes: {counts}"]


def _probe(backend: Backend, environ: Mapping[str, str]) -> tuple[list[Checked], str]:
    """Return the results of the process with the probes, and how it ended if it did not complete them."""
    with tempfile.TemporaryDirectory(prefix="harness-probes-") as folder:
        place = Path(folder, "probes.json")
        status, errors = _start(backend, environ, str(place))
        results: list[Checked] = []
        with contextlib.suppress(OSError, ValueError):
            results = [Checked(**fields) for fields in json.loads(place.read_text(encoding="utf-8"))]
    if status == 0:
        return results, ""
    how = f"did not end within {LIMIT:.0f} s" if status is None else f"ended with {format_exit_code(status)}"
    return results, f"the process {how}{f'; last output: {errors}' if errors else ''}"


def _after_crash(backend: Backend, environ: Mapping[str, str]) -> Checked:
    """Crash a process that uses the device, then use the device in another process."""
    status, _ = _start(backend, environ, "crash")
    if status != -signal.SIGSEGV:
        how = "did not end" if status is None else f"ended with {format_exit_code(status)}"
        return Checked("crash", WRONG, f"a process that was to crash by SIGSEGV {how}")
    results, ended = _probe(backend, environ)
    after = next((result for result in results if result.name == "memory"), None)
    if after is None or after.state != WORKS:
        return Checked("crash", WRONG, f"after a crash: {ended or (after.found if after else 'no device')}")
    return Checked("crash", WORKS, "a new process copies correctly after another one has crashed")


def _start(backend: Backend, environ: Mapping[str, str], argument: str) -> tuple[int | None, str]:
    """Run the program with the probes. Return its status (None if it had to be killed) and its last error line."""
    paths = os.pathsep.join(filter(None, [*sys.path, environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "harness.devices.backend_probes", backend.kind, argument]
    run = run_disposable(command, LIMIT, environ={**environ, "PYTHONPATH": paths})
    return run.status if run.in_time else None, single_line(run.last_error)
