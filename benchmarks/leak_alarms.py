"""The rate of false alarms of the leak checks, and the leaks that they find.

Alarms: runs the suites repeatedly, each time in another order, and records each suspicion and its result. The suites do
not leak, so each `leaked` case and each finding `batch_leak` is a false alarm. Sensitivity: runs cases that leak a
known amount among cases that do not, and records which are found. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from measuring import machine_facts

ROOT = Path(__file__).parents[1]
INNOCENT = 40
_LEAKS = """
import ctypes, mmap, os, threading
import pytest
import torch

KEPT = []
LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p
LIBC.malloc.argtypes = [ctypes.c_size_t]
SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20}


@pytest.mark.parametrize("n", range(INNOCENT))
def test_innocent(n):
    x = torch.ones(8, requires_grad=True)
    (x * n).sum().backward()


@pytest.mark.parametrize("size", SIZES)
def test_malloc(size):
    LIBC.memset(ctypes.c_void_p(LIBC.malloc(SIZES[size])), 1, SIZES[size])


@pytest.mark.parametrize("size", SIZES)
def test_bytearray(size):
    KEPT.append(bytearray(SIZES[size]))


@pytest.mark.parametrize("size", SIZES)
def test_tensor(size):
    KEPT.append(torch.ones(SIZES[size], dtype=torch.uint8))


@pytest.mark.parametrize("size", ["64 KiB", "1 MiB"])
def test_mmap(size):
    KEPT.append(mmap.mmap(-1, SIZES[size]))


def test_thread():
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()


def test_descriptor():
    KEPT.append(os.open("/dev/null", os.O_RDONLY))
"""


@dataclass(slots=True)
class Run:
    """One run. `suspected`: the growth of each process that grew suspiciously. `alarms`: what the run called a leak."""

    what: str
    seed: int
    load: float
    seconds: float
    status: int
    cases: int = 0
    suspected: list[dict[str, Any]] = field(default_factory=list)
    confirmations: int = 0
    alarms: list[str] = field(default_factory=list)
    red: list[str] = field(default_factory=list)


def run(what: str, arguments: Sequence[str], seed: int, folder: Path) -> Run:
    """Run pytest with these arguments, and read its journal. `folder` is the run's results folder."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--shuffle", f"--seed={seed}"]
    begun = time.monotonic()
    ended = subprocess.run([*words, f"--results-dir={folder}", *arguments], cwd=ROOT, capture_output=True, text=True)
    found = Run(what, seed, os.getloadavg()[0], round(time.monotonic() - begun, 1), ended.returncode)
    if not (folder / "journal.ndjson").exists():
        raise SystemExit(f"{what}: no journal\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    for line in (folder / "journal.ndjson").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        match event["event"]:
            case "collected":
                found.cases = max(found.cases, event["count"])
            case "batch":
                grown = {key: event[key] for key in ("suspicions", "tried", "trials", "seconds", "unproven", "failure")}
                found.suspected.append({"cases": len(event["cases"]), **grown})
            case "confirmation":
                found.confirmations += 1
            case "finding" if event["kind"] == "batch_leak":
                found.alarms.append(event["message"])
            case "finish" if event["final"] and event["outcome"] == "leaked":
                found.alarms.append(f"{event['case']}: {event['message']}")
            case "finish" if event["final"] and event["outcome"] in ("failed", "error", "crashed", "timeout"):
                found.red.append(event["case"])
    return found


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Start this many processes that only use a processor, at the lowest priority."""
    made = [subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()


def alarms(arguments: argparse.Namespace, folder: Path) -> list[Run]:
    """Do the runs, one after the other."""
    draw = random.Random(arguments.seed)
    found = []
    for number in range(arguments.runs):
        for what in arguments.what:
            chosen = ["suites/", "--profile=smoke"] if what == "smoke" else [what]
            seed = draw.getrandbits(32)
            more = [f"-n{arguments.workers}", f"--device={arguments.device}", f"--leak-search={arguments.search}"]
            each = run(what, [*chosen, *more], seed, folder / f"{number}-{what.strip('/').replace('/', '-')}")
            found.append(each)
            grown = ", ".join(str(one["suspicions"]) for one in each.suspected) or "no suspicion"
            print(
                f"{what} seed {seed} load {each.load:.1f}: {each.cases} cases in {each.seconds:.0f} s, {grown}, "
                f"{each.confirmations} confirmations, {len(each.alarms)} alarms, {len(each.red)} red",
                *each.alarms,
                *each.red,
                sep="\n    ",
                flush=True,
            )
    return found


def sensitivity(arguments: argparse.Namespace, folder: Path) -> Mapping[str, str]:
    """Return, by leaking case, the run's result for it. Each kind of leak runs only with innocent cases."""
    project = folder / "project"
    (project / "suites" / "leaks").mkdir(parents=True)
    (project / "pytest.ini").write_text("[pytest]\nharness_suites = suites\n")
    (project / "suites/leaks/test_leaks.py").write_text(_LEAKS.replace("INNOCENT", str(INNOCENT)))
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:harness", "suites"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    told = {}
    for case in [line for line in listed if "::" in line and "innocent" not in line]:
        for repeat in (1, 30):
            results = folder / f"{len(told)}-{repeat}"
            words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", f"--repeat={repeat}"]
            words += [f"--results-dir={results}", f"--leak-search={arguments.search}", case]
            subprocess.run([*words, "suites/leaks/test_leaks.py::test_innocent"], cwd=project, capture_output=True)
            shown = subprocess.run(
                [sys.executable, "-m", "harness", "report", str(results)],
                cwd=project,
                capture_output=True,
                text=True,
            ).stdout
            words = [
                word
                for word in ("LEAKED", "FINDING batch_leak", "GREW", "GROWS")
                if any(line.startswith(word) for line in shown.splitlines())
            ]
            told[f"{case.partition('::')[2]} x{repeat}"] = ", ".join(words) or "nothing"
            print(f"{case.partition('::')[2]} run {repeat} times: {', '.join(words) or 'nothing'}", flush=True)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="runs of each (default: 10)")
    parser.add_argument("--what", nargs="+", default=["smoke"], help="smoke, or folders of suites (default: smoke)")
    parser.add_argument("--device", default="cpu", help="cpu, soft or simcuda (default: cpu)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside the runs (default: 0)")
    parser.add_argument("--search", default="auto", help="the value of --leak-search (default: auto)")
    parser.add_argument("--seed", type=int, default=1, help="of the seeds of the runs (default: 1)")
    parser.add_argument("--sensitivity", action="store_true", help="run cases that leak instead")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, busy(arguments.busy):
        if arguments.sensitivity:
            figures: Any = sensitivity(arguments, Path(name))
        else:
            runs = alarms(arguments, Path(name))
            figures = [asdict(each) for each in runs]
            suspected = sum(bool(each.suspected) for each in runs)
            longest = max((one["seconds"] for each in runs for one in each.suspected), default=0.0)
            total = sum(len(each.alarms) for each in runs)
            print(f"{len(runs)} runs: {suspected} with suspicions, the longest search {longest:.1f} s, {total} alarms")
    if arguments.output is not None:
        text = json.dumps({"machine": machine_facts(), "arguments": sys.argv[1:], "figures": figures}, indent=1)
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
