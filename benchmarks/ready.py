"""What ``harness ready`` finds on the simulated CUDA, how often it is wrong without a fault, and how long it takes.

    python benchmarks/ready.py faults                 # every fault of the simulated CUDA: a table
    python benchmarks/ready.py alarms --runs 200      # no fault; every second run on a busy machine

Both run the command itself, with eight devices, and need a CUDA build of torch. Exit status 1: a fault ends otherwise
than ``tests/ready/expected.py`` says, fewer than 95% are found, or a run without a fault is not ready. See README.md in
this folder.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.ready import quick_tests
from harness.ready.model import NodeReport, Problem, Verdict
from tests.ready.expected import EXPECTED

#: Checks of the processes with the quick tests, beside the tests themselves. What is read of the host is left out.
_PROCESSES = ("active", "import_torch", "process_exit")
_LEAST_FOUND = 0.95


@dataclass(frozen=True, slots=True)
class Run:
    """A report, and the seconds of the whole command."""

    report: NodeReport
    seconds: float

    @property
    def problems(self) -> list[Problem]:
        """The problems that the quick tests found."""
        names = {*quick_tests.ENTRIES, *_PROCESSES}
        return [problem for problem in self.report.problems if problem.check in names]


def run_ready(devices: int, *options: str) -> Run:
    """Run the command, and return its report."""
    command = [sys.executable, "-m", "harness", "ready", "--device=simcuda", "--json", *options]
    environ = {**os.environ, "SIMCUDA_DEVICE_COUNT": str(devices)}
    began = time.monotonic()
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    seconds = time.monotonic() - began
    try:
        return Run(msgspec.json.decode(done.stdout, type=NodeReport), seconds)
    except msgspec.MsgspecError:
        raise SystemExit(f"{' '.join(command)} gave no report:\n{done.stderr.decode()[-4000:]}") from None


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep processors busy."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def faults(devices: int, chosen: Sequence[str]) -> int:
    """Print a row for each fault, and how many faults each test finds. Return the exit status."""
    print("| fault | verdict | found by | kind | next step | seconds |\n| --- | --- | --- | --- | --- | --- |")
    found, wrong = 0, []
    finders: Counter[str] = Counter()
    names = chosen or list(EXPECTED)
    for fault in names:
        run = run_ready(devices, f"--inject={fault}")
        expected, problems = EXPECTED[fault], run.problems
        first = problems[0] if problems else None
        verdict = first.verdict if first else Verdict.READY
        found += verdict is Verdict.NOT_READY
        finders.update({problem.check for problem in problems if problem.verdict is Verdict.NOT_READY})
        row = (first.check, f"`{first.kind}`", first.step.text) if first else ("", "", "")
        print(f"| `{fault}` | {verdict.text} | {' | '.join(row)} | {run.seconds:.1f} |", flush=True)
        if not (first is None if expected is None else expected.fits(first)):
            wrong.append(fault)
    print(f"\n{found} of {len(names)} faults end as not ready; faults found by each test:")
    print(", ".join(f"{name} {count}" for name, count in finders.most_common()))
    if wrong:
        print(f"not as tests/ready/expected.py says: {', '.join(wrong)}")
    return int(bool(wrong) or found < _LEAST_FOUND * len(names))


def alarms(devices: int, runs: int) -> int:
    """Run without a fault, every second time beside busy processes. Return the exit status."""
    verdicts: Counter[tuple[str, str]] = Counter()
    seconds: dict[str, list[float]] = {"quiet": [], "busy": []}
    for number in range(runs):
        kind = "busy" if number % 2 else "quiet"
        with busy(2 * (os.cpu_count() or 1) if kind == "busy" else 0):
            run = run_ready(devices)
        worst = max(
            (problem.verdict for problem in run.problems), key=lambda each: each.severity, default=Verdict.READY
        )
        verdicts[kind, worst.text] += 1
        seconds[kind].append(run.seconds)
        for problem in run.problems:
            print(f"run {number}, {kind}: {problem.check}: {problem.kind}: {problem.found}", flush=True)
        skipped = [check for check in run.report.checks if check.state == "skipped" and "budget" in check.text]
        if skipped:
            print(f"run {number}, {kind}: {len(skipped)} checks were not reached in {run.seconds:.1f} s", flush=True)
        if number % 20 == 19:
            print(f"{number + 1} runs: {dict(verdicts)}", flush=True)
    for kind, times in seconds.items():
        if times:
            print(f"{kind}: {len(times)} runs, median {statistics.median(times):.1f} s, most {max(times):.1f} s")
    print(", ".join(f"{kind} {verdict}: {count}" for (kind, verdict), count in sorted(verdicts.items())))
    return int(any(verdict == Verdict.NOT_READY.text for _, verdict in verdicts))


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["faults", "alarms"])
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--fault", action="append", choices=list(EXPECTED))
    options = parser.parse_args()
    return (
        faults(options.devices, options.fault or ())
        if options.what == "faults"
        else alarms(options.devices, options.runs)
    )


if __name__ == "__main__":
    sys.exit(main())
