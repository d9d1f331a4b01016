"""For each fault of CUDA's interface: the number of PyTorch's own tests and of this project's cases that detect it.

    python -m benchmarks.upstream.faults [--faults NAME,...] [--theirs FILE ...] [--ours PATH ...] [--results FOLDER]
    python -m benchmarks.upstream.faults --tabulate --results FOLDER [FOLDER ...]

Both run on the same simulated CUDA, with `python -m tests.breaks run --faults simcuda`: once without a fault, then once
with each. A test detects a fault if it passed without the fault and is red with it. With faults that stop every test, a
run ends at its first red test. Needs a CUDA build of torch. With `--tabulate`, nothing runs; folders of several calls,
each with its own faults, make one table; for a fault in several folders, the last folder counts. Each of PyTorch's
files is a separate campaign, with the options that it needs; the table adds them up.
"""

from __future__ import annotations

import argparse
import functools
import json
import operator
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.upstream import sources
from benchmarks.upstream.__main__ import chosen, default_cache
from harness.core.errors import HarnessError
from harness.sim.native import faults
from tests.breaks.table import RECORD

_ROOT = Path(__file__).parents[2]
SIDES = ("theirs", "ours")
#: Faults that stop each test, most of them after the time limit.
STOPPING = ("launch_hangs", "launch_kills_process", "device_lost")
_THEIRS = ("test_cuda.py", "test_cuda_multigpu.py")
_OURS = ("suites/runtime", "suites/streams", "suites/graphs", "suites/transfers")


class RecordError(HarnessError):
    """A campaign left no record."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """The number of one side's `passed` tests that detect a fault. `first`: the run ended with the first of these."""

    tests: int
    passed: int
    first: bool

    def __str__(self) -> str:
        if self.first:
            return "yes" if self.tests else "no"
        return f"{self.tests} of {self.passed}"

    def __add__(self, other: Noticed) -> Noticed:
        """Return the sum of both campaigns."""
        return Noticed(self.tests + other.tests, self.passed + other.passed, self.first)


def read(folder: Path, *, first: bool) -> dict[str, Noticed]:
    """Return, by fault, the number of one side's tests that detect it. Raise RecordError without a record."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        passed = record["passed_without_a_break"]
        return {row["name"]: Noticed(len(row["noticed_by"]), passed, first) for row in record["breaks"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{folder} has no record of a campaign: {error!r}") from None


def markdown(theirs: dict[str, Noticed], ours: dict[str, Noticed]) -> str:
    """Return the table of both sides, and a line with the sums."""
    lines = ["| fault | PyTorch's own tests | our cases |", "| --- | --- | --- |"]
    both = [fault for fault in theirs if fault in ours]
    lines += [f"| `{fault}` | {theirs[fault]} | {ours[fault]} |" for fault in both]
    seen = [sum(bool(side[fault].tests) for fault in both) for side in (theirs, ours)]
    lines += ["", f"Of {len(both)} faults, PyTorch's own tests notice {seen[0]}, and our cases {seen[1]}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run both campaigns, and print the table. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default="", metavar="NAME,...", help="default: all")
    parser.add_argument(
        "--theirs",
        nargs="+",
        metavar="FILE",
        default=list(_THEIRS),
        help="of PyTorch's folder test (default: %(default)s)",
    )
    parser.add_argument("--ours", nargs="+", metavar="PATH", default=list(_OURS), help="default: %(default)s")
    parser.add_argument("--source", type=Path, metavar="FOLDER", help="a checkout of PyTorch, in place of a download")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", default=default_cache())
    parser.add_argument("--results", type=Path, nargs="+", metavar="FOLDER", default=[Path("upstream-faults")])
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="default: none, all in one process")
    parser.add_argument("--case-timeout", type=int, default=60, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--tabulate", action="store_true", help="run nothing: tabulate what the folders have")
    options = parser.parse_args()
    try:
        if not options.tabulate:
            _conduct(options)
        found = [read_all(options.results, side) for side in SIDES]
    except (sources.SourceError, HarnessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(markdown(*found), end="")
    return 0


def _conduct(options: argparse.Namespace) -> None:
    """Run both sides' campaigns, one after the other."""
    source = sources.given(options.source) if options.source else _download(options.cache)
    names = options.faults.split(",") if options.faults else list(faults.fault_catalogue("simcuda"))
    parts = {
        "": [name for name in names if name not in STOPPING],
        "-first": [name for name in names if name in STOPPING],
    }
    workers = f"-n{options.workers}"
    for part, those in parts.items():
        if not those:
            continue
        for file in chosen(options.theirs):
            theirs = [*file.options, "-pharness.plugin", "--noconftest", "--leak-check=off", workers]
            _campaign(f"theirs-{file.folder}{part}", those, [f"test/{file.name}"], theirs, source, options)
        _campaign(f"ours{part}", those, options.ours, [workers], _ROOT, options)


def _campaign(
    name: str,
    those: Sequence[str],
    cases: Sequence[str],
    arguments: Sequence[str],
    folder: Path,
    options: argparse.Namespace,
) -> None:
    results = options.results[0].resolve() / name
    command = [sys.executable, "-m", "tests.breaks", "run", "--faults=simcuda", *(f"--only={each}" for each in those)]
    command += [*(f"--suites={each}" for each in cases), f"--case-timeout={options.case_timeout}"]
    command += [f"--results-dir={results}", *(["--first"] if name.endswith("-first") else []), "--", *arguments]
    environment = {"SIMCUDA_DEVICE_MEMORY": "4GiB", **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    print(f"{name}: {results}", file=sys.stderr, flush=True)
    subprocess.run(command, cwd=folder, env=environment, stdout=sys.stderr, check=False)


def _download(cache: Path) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    return sources.fetched(sources.PACKAGE, cache.resolve())


def read_all(folders: Sequence[Path], side: str) -> dict[str, Noticed]:
    """Return, by fault, the results of one side's campaigns in all folders. Raise RecordError if there is none."""
    found: dict[str, Noticed] = {}
    for folder in folders:
        campaigns = sorted(folder.glob(f"{side}*/"))
        for first in (False, True):
            records = [read(each, first=first) for each in campaigns if each.name.endswith("-first") is first]
            found |= _added(records)
    if not found:
        raise RecordError(f"no record of the campaign {side!r} in {', '.join(map(str, folders))}")
    return found


def _added(records: Sequence[dict[str, Noticed]]) -> dict[str, Noticed]:
    """Add up campaigns with the same faults. Leave out a fault that one of them has not run because it was stopped."""
    faults_of_all = [fault for fault in records[0] if all(fault in record for record in records)] if records else []
    return {fault: functools.reduce(operator.add, [each[fault] for each in records]) for fault in faults_of_all}


if __name__ == "__main__":
    sys.exit(main())
