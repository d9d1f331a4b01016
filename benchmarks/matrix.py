"""The cost of ``harness matrix``: time and memory for many runs of many cases, and the size of its output.

The journals are generated: nothing runs. They contain planted faults, and the script reports whether each is classed
correctly. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from measuring import machine_facts

from harness.core.caseid import digest_of_ids
from harness.journal import environment, journal
from harness.journal.events import SCHEMA

_BEGIN = 1_760_000_000.0
_SUITES = ("autocast", "autograd", "compile", "distributed", "graphs", "memory", "optimizers", "profiler", "streams")
_TREE = "sha256:" + "5e" * 32
_OLD_TREE = "sha256:" + "0d" * 32


@dataclass(frozen=True, slots=True)
class Host:
    """A fictitious machine with four devices of one kind."""

    name: str
    device: str
    driver: str
    torch: str
    uuids: tuple[str, ...]

    @property
    def memory(self) -> int:
        return {"NVIDIA L4": 22, "NVIDIA A10": 22, "NVIDIA A100-SXM4-40GB": 39}.get(self.device, 79)


_KINDS = (
    ("NVIDIA A10", "550.127.08"),
    ("NVIDIA A100-SXM4-40GB", "550.127.08"),
    ("NVIDIA A100-SXM4-80GB", "570.133.20"),
    ("NVIDIA H100 80GB HBM3", "570.133.20"),
    ("NVIDIA H100 80GB HBM3", "580.95.05"),
    ("NVIDIA H200", "570.133.20"),
    ("NVIDIA H200", "580.95.05"),
    ("NVIDIA L4", "550.127.08"),
)
_TORCHES = ("2.12.1+cu128", "2.13.0+cu128")


def hosts(number: int) -> list[Host]:
    """Return this many machines: each kind of device in turn, with its driver, and both versions of torch."""
    made = []
    for place in range(number):
        device, driver = _KINDS[place % len(_KINDS)]
        uuids = tuple(f"GPU-{place:08x}-0000-4000-8000-{chip:012x}" for chip in range(4))
        torch = _TORCHES[place // len(_KINDS) % 2]
        made.append(Host(f"node{place + 1:02}", device, driver, torch, uuids))
    return made


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault planted in every `each`-th case, from case `first` on, and its expected class."""

    kind: str
    first: int
    each: int
    message: str

    def covers(self, case: int) -> bool:
        return case % self.each == self.first

    def is_red(self, host: Host, uuid: str, dice: random.Random) -> bool:
        match self.kind:
            case "everywhere":
                return True
            case "one_driver":
                return host.driver == "580.95.05"
            case "one_torch":
                return host.torch == _TORCHES[1]
            case "one_device":
                return host.device == "NVIDIA A10"
            case "one_host":
                return host.name == "node12"
            case "one_uuid":
                return uuid == "GPU-00000003-0000-4000-8000-000000000002"
            case "mixed":
                return host.device == "NVIDIA H200" and host.torch == _TORCHES[1]
            case _:
                return dice.random() < 0.06


def faults(cases: int) -> tuple[Fault, ...]:
    """Return one fault of each class; in larger matrices in some dozens of cases."""
    each = max(100, cases // 20)
    return (
        Fault("everywhere", 7, each, "AssertionError: Tensor-likes are not close!"),
        Fault("one_driver", 13, each, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        Fault("one_torch", 21, each, "RuntimeError: expected scalar type Half but found Float"),
        Fault("one_device", 34, each, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"),
        Fault("one_host", 42, each, "OSError: [Errno 28] No space left on device"),
        Fault("one_uuid", 55, each, "AssertionError: 3 of 4194304 elements differ"),
        Fault("mixed", 66, each, "triton.CompilationError: invalid element type"),
        Fault("flake", 78, each, "TimeoutError: the stream did not become ready within 5.0 s"),
    )


def cases_of(number: int) -> list[str]:
    """Return this many case ids."""
    forms = ("eager", "compiled", "captured", "no_grad")
    return [
        f"suites/{_SUITES[n % len(_SUITES)]}/test_{n % 7}.py::test_contract_{n // 4}[{forms[n % 4]}-float32]"
        for n in range(number)
    ]


def run_lines(host: Host, run: int, cases: Sequence[str], *, old_tree: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the journal of a run on a machine, with four workers. An old tree has no cases of `distributed`."""
    dice = random.Random(f"{host.name}-{run}")
    planted = faults(len(cases))
    ids = [case for case in cases if not (old_tree and "/distributed/" in case)]
    begun = _BEGIN + 86_400 * run + dice.random() * 3600
    identity = {"suite files": _OLD_TREE if old_tree else _TREE, "torch": host.torch, "driver": host.driver}
    facts = {"argv": ["pytest", "suites/"], "seed": run, "isolation": "batch", "host": host.name, "pid": 4242}
    facts |= {"run_id": f"{run:02}-{host.name}", "fail_on_flaky": False, "rootdir": "/opt/conformance"}
    yield {"event": "run", "t": begun, "schema": SCHEMA, "devices": host.uuids, **facts, "identity": identity}
    listed = {"count": len(ids), "hash": digest_of_ids(ids), "ids": ids}
    for worker in range(4):
        more = listed if not worker else {**listed, "ids": []}
        yield {"event": "collected", "t": begun + 1, "worker": f"gw{worker}", **more}
    for worker, uuid in enumerate(host.uuids):
        life = {"executor": f"gw{worker}-e1", "worker": f"gw{worker}", "pid": 4300 + worker, "devices": [uuid]}
        yield {"event": "executor", "t": begun + 2, **life, "state": "started", "startup": 0.02}
    clock = begun + 3
    for place, case in enumerate(cases):
        if old_tree and "/distributed/" in case:
            continue
        worker = (place + run) % 4
        uuid, seconds = host.uuids[worker], dice.lognormvariate(-3, 1)
        line: dict[str, Any] = {"case": case, "attempt": 1, "worker": f"gw{worker}", "executor": f"gw{worker}-e1"}
        line |= {"devices": [uuid], "seed": dice.getrandbits(32)}
        clock += seconds / 4
        gate = {"capability": "memory", "wanted": ">=40GiB", "found": f"{host.memory}.0GiB"}
        if place % 30 == 3 and host.memory < 40:
            yield {
                "event": "finish",
                "t": clock,
                **line,
                "outcome": "gated",
                "final": True,
                "duration": 0,
                "gate": gate,
            }
            continue
        yield {"event": "start", "t": clock, **line, "pid": 4300 + worker}
        fault = next((each for each in planted if each.covers(place)), None)
        ended: dict[str, Any] = {"outcome": "passed", "final": True, "duration": seconds}
        ended["phases"] = {"setup": seconds / 10, "call": seconds / 2, "teardown": seconds / 20}
        if fault is not None and fault.is_red(host, uuid, dice):
            ended |= {"outcome": "failed", "message": fault.message, "detail": 30 * "  File ..., in test\n"}
            ended["reproduce"] = f"pytest '{case}' --seed={line['seed']}"
        yield {"event": "finish", "t": clock + seconds, **line, **ended}
    for worker, uuid in enumerate(host.uuids):
        life = {"executor": f"gw{worker}-e1", "worker": f"gw{worker}", "pid": 4300 + worker, "devices": [uuid]}
        yield {"event": "executor", "t": clock + 1, **life, "state": "ended", "exit_status": 0}
    yield {"event": "end", "t": clock + 2, "exit_status": 1, "duration": clock + 2 - begun}


def write(folder: Path, machines: int, runs: int, cases: int) -> None:
    """Write run directories of `runs` runs, on this many machines in turn."""
    ids = cases_of(cases)
    park = hosts(machines)
    for number in range(runs):
        host, run = park[number % machines], number // machines
        old = machines > 8 and host.name == "node09"
        run_dir = folder / host.name / f"run{run}"
        run_dir.mkdir(parents=True)
        lines = [json.dumps(line, separators=(",", ":")) for line in run_lines(host, run, ids, old_tree=old)]
        if host.name == "node16" and run == 1:  # this one was killed, in the middle of a line
            lines = [*lines[: 2 * len(lines) // 3], '{"event":"finish","t":17']
        (run_dir / journal.FILE_NAME).write_text("\n".join(lines) + "\n")
        devices = [{"uuid": each, "kind": "cuda", "name": host.device, "index": n} for n, each in enumerate(host.uuids)]
        known = {"schema": environment.SCHEMA, "host": host.name, "driver": host.driver, "devices": devices}
        environment.write_environment(run_dir, {**known, "versions": {"torch": host.torch}})


class Peak:
    """The largest sampled resident size of this process and all its children together."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._stop.wait(0.05):
            size = 0
            for each in own.children(recursive=True):
                try:
                    size += each.memory_info().rss
                except psutil.Error:
                    continue
            self.bytes = max(self.bytes, size)


def measure(folder: Path, out: Path) -> dict[str, Any]:
    """Run the command on the folder, in its own process."""
    page, values = out / "matrix.html", out / "matrix.json"
    command = [sys.executable, "-m", "harness", "matrix", str(folder), "-o", str(page), "--json", str(values)]
    begun = time.perf_counter()
    with Peak() as peak:
        process = psutil.Popen(command, stdout=sys.stderr)
        _, status, usage = os.wait4(process.pid, 0)
    return {
        "seconds": round(time.perf_counter() - begun, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mib": round(peak.bytes / 2**20),
        "exit_status": os.waitstatus_to_exitcode(status),
        "page_mib": round(page.stat().st_size / 2**20, 2),
        "json_mib": round(values.stat().st_size / 2**20, 2),
        "load": os.getloadavg()[0],
    }


def judge(values: Path, cases: int) -> dict[str, dict[str, int]]:
    """Return how the cases of each fault were classed."""
    ids = {case: place for place, case in enumerate(cases_of(cases))}
    found: dict[str, dict[str, int]] = {fault.kind: {} for fault in faults(cases)}
    for row in json.loads(values.read_text())["cases"]:
        fault = next((each for each in faults(cases) if each.covers(ids[row["case"]])), None)
        if fault is None:
            assert row["failure"] is None, row["case"]
            continue
        failure = row["failure"]
        kind = "not red" if failure is None else f"{failure['kind']} ({failure['sure']})"
        found[fault.kind][kind] = found[fault.kind].get(kind, 0) + 1
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=40)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--cases", type=int, default=6_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the run directories, the page and the JSON here")
    parser.add_argument("--output", type=Path, help="a JSON file for all figures")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        if not (folder / "runs").exists():
            write(folder / "runs", given.machines, given.runs, given.cases)
        figures = [measure(folder / "runs", folder) for _ in range(given.repeats)]
        for each in figures:
            print(json.dumps(each), flush=True)
        classed = judge(folder / "matrix.json", given.cases)
        for kind, kinds in classed.items():
            print(f"planted {kind}: {kinds}")
    if given.output:
        whole = {"machine": machine_facts(), "figures": figures, "classed": classed}
        given.output.write_text(json.dumps(whole, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
