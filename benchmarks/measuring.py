"""Wall and processor time of commands, the load from other processes meanwhile, and properties of the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement, in seconds. `others` is the share of the machine's cores (0 to 1) that other processes used."""

    wall: float
    cpu: float
    others: float
    load: float


@dataclass(frozen=True, slots=True)
class Patience:
    """How to measure on a busy machine.

    Before a measurement, wait up to `seconds` until other processes use less than `share` of the machine. If they use
    more during it, repeat it, up to `tries` times in total, and keep the least disturbed measurement.
    """

    share: float
    seconds: float
    tries: int

    def measure(self, once: Callable[[], Sample]) -> Sample:
        """Return the least disturbed of up to `tries` measurements."""
        best: Sample | None = None
        for _ in range(self.tries):
            self._wait()
            sample = once()
            if best is None or sample.others < best.others:
                best = sample
            if best.others <= self.share:
                break
        assert best is not None
        return best

    def _wait(self) -> None:
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline and psutil.cpu_percent(interval=0.5) > 100 * self.share:
            continue


class CommandFailedError(Exception):
    """A measured command failed."""


def run(
    command: Sequence[str],
    folder: Path,
    *,
    says: str = "",
    environment: Mapping[str, str] | None = None,
    output: Path | None = None,
) -> Sample:
    """Run `command` in `folder` to its end. Its processor time includes all its child processes.

    Its output goes to the file `output`, by default in `folder`.

    Raise CommandFailedError unless it exits with 0 and its output contains `says`.
    """
    load = os.getloadavg()[0]
    output = output or folder / "output"
    with output.open("wb") as file:
        busy, begun = _busy(), time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall, busy = time.perf_counter() - begun, _busy() - busy
        process.returncode = os.waitstatus_to_exitcode(status)
    text = output.read_text(errors="backslashreplace")
    if process.returncode != 0 or says not in text:
        found = f"ended with {process.returncode}, expected 0 and the output {says!r}"
        raise CommandFailedError(f"{' '.join(command)!r} in {folder} {found}:\n{text[-2000:]}")
    cpu = usage.ru_utime + usage.ru_stime
    others = max(0.0, busy - cpu) / (wall * (os.cpu_count() or 1))
    return Sample(wall, cpu, min(1.0, others), load)


def _busy() -> float:
    """Return the processor seconds that the whole machine has been busy since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


@dataclass(frozen=True, slots=True)
class Line:
    """Time as a linear function of the number of cases: `startup` seconds, plus `each` seconds per case."""

    startup: float
    each: float

    @classmethod
    def through(cls, few: int, few_seconds: float, many: int, many_seconds: float) -> Line:
        """Return the line through two measurements."""
        each = (many_seconds - few_seconds) / (many - few)
        return cls(startup=few_seconds - few * each, each=each)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def machine_facts() -> dict[str, Any]:
    """Return the properties on which the figures depend: processor, cores, memory, versions, date, command."""
    versions = {}
    for name in ("gpu-conformance-harness", "torch", "pytest", "pytest-xdist", "execnet", "numpy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "none"
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(psutil.virtual_memory().total),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
