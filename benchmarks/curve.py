"""How the cost of a run grows with the number of cases: time, memory of its processes, size of its journal."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from measuring import Sample, run

#: Seconds between two samples of a run's processes.
_STEP = 0.25


@dataclass
class Memory:
    """The largest sampled resident size of each kind of process, in bytes."""

    peaks: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """Sample the pytest processes that this process has started, and their descendants."""
        for controller in psutil.Process().children():
            self._note("controller", controller)
            for child in _children(controller):
                zygote = _is_zygote(child)
                self._note("zygote" if zygote else "worker", child)
                for executor in _children(child) if zygote else ():
                    self._note("executor", executor)

    def _note(self, kind: str, process: psutil.Process) -> None:
        try:
            size = int(process.memory_info().rss)
        except psutil.Error:  # it has ended
            return
        self.peaks[kind] = max(size, self.peaks.get(kind, 0))


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.Error:
        return []


def _is_zygote(process: psutil.Process) -> bool:
    try:
        return "harness.zygote" in process.cmdline()
    except psutil.Error:
        return False


@contextmanager
def watched() -> Iterator[Memory]:
    """Sample the processes until the context ends."""
    memory, over = Memory(), threading.Event()

    def watch() -> None:
        while not over.wait(_STEP):
            memory.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield memory
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Point:
    """One run of this many cases. `memory`: the largest resident size by kind of process, in bytes."""

    way: str
    cases: int
    sample: Sample
    memory: Mapping[str, int]
    journal: int

    @classmethod
    def take(cls, way: str, cases: int, command: Sequence[str], project: Path, environment: Mapping[str, str]) -> Point:
        """Do one run. Raise CommandFailedError."""
        before = set(project.glob("results/*/journal.ndjson"))
        with watched() as memory:
            sample = run(command, project, says=f"{cases} passed", environment=environment)
        journals = set(project.glob("results/*/journal.ndjson")) - before
        return cls(way, cases, sample, memory.peaks, sum(file.stat().st_size for file in journals))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def print_curve(points: Sequence[Point]) -> None:
    """Print a line per run. Times are those of the whole run, including start-up, per case."""
    kinds = ("controller", "worker", "zygote", "executor")
    print(
        f"\n{'':30} {'cases':>7} {'ms each':>8} {'cpu ms':>8} {'journal':>9} {'B a case':>9}"
        + "".join(f"{kind:>11}" for kind in kinds)
    )
    for point in points:
        sizes = "".join(f"{point.memory.get(kind, 0) / 2**20:7.0f} MiB" for kind in kinds)
        print(
            f"{point.way:30} {point.cases:7} {point.sample.wall / point.cases * 1e3:8.3f}"
            f" {point.sample.cpu / point.cases * 1e3:8.3f} {point.journal / 2**20:5.1f} MiB"
            f" {point.journal / point.cases:9.0f}{sizes}"
        )
