"""Compares the verdicts of a cluster run with those of one process, case by case, and the cost of both.

    python -m tests.slurm_cluster python benchmarks/cluster_verdicts.py --engine slurm --nodes 4 \
        --slurm-option=--cpus-per-task=2 -- suites/ --profile smoke

runs this on four simulated Slurm nodes on this host. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.core.text import format_count
from harness.journal import journal, reader
from harness.journal.events import Finish, RunStarted
from harness.journal.ledger import Ledger

#: The maximum number of differences that are printed.
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run. `cpu`: seconds of processor time; 0 if unknown, since the nodes are not child processes."""

    ledger: Ledger
    places: Counter[tuple[str, str]]
    runs: int
    status: int
    wall: float
    cpu: float

    @property
    def verdicts(self) -> dict[str, str]:
        return {verdict.case: verdict.outcome.value for verdict in self.ledger.verdicts}


def run(command: Sequence[str], run_dir: Path, *, has_all: bool = True) -> Run:
    """Run a command that leaves a run directory, and read that. `has_all`: all processes of the run descend from it."""
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with run_dir.with_suffix(".out").open("wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    path = run_dir / journal.FILE_NAME
    if not path.exists():
        raise SystemExit(f"{command[0]} left no journal:\n{run_dir.with_suffix('.out').read_text()[-4000:]}")
    contents = reader.read_run_journal(path)
    places = Counter(
        (event.host, ", ".join(event.devices) or "none")
        for event in contents.events
        if isinstance(event, Finish) and event.gate is None
    )
    parts = sum(isinstance(event, RunStarted) for event in contents.events)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(Ledger.from_journal(contents), places, parts, done.returncode, wall, cpu if has_all else 0.0)


def differences(one: Run, many: Run) -> list[str]:
    """Return each case whose verdicts differ."""
    first, second = one.verdicts, many.verdicts
    return [
        f"{case}: {first.get(case, 'missing')} in one process, {second.get(case, 'missing')} in the cluster"
        for case in first | second
        if first.get(case) != second.get(case)
    ]


def shown(name: str, done: Run) -> str:
    counts = ", ".join(f"{number} {outcome.value}" for outcome, number in done.ledger.counts.items())
    time_text = f"{done.wall:.0f} s" + (f", {done.cpu:.0f} s of processor time" if done.cpu else "")
    findings = format_count(len(done.ledger.findings), "finding")
    return f"{name}: exit status {done.status}, {time_text}; {counts}; {findings}"


def main() -> int:
    """Run both, and compare them. Return 1 if they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--slurm-option", action="append", default=[])
    parser.add_argument("--workers", type=int, default=1, help="workers of a node, and of the one process")
    parser.add_argument("--folder", type=Path, help="where the run directories are kept")
    parser.add_argument("--json", type=Path)
    own, arguments = _split(sys.argv[1:])
    known = parser.parse_args(own)
    with tempfile.TemporaryDirectory() as temp:
        folder = known.folder or Path(temp)
        folder.mkdir(parents=True, exist_ok=True)
        common = [*arguments, f"-n{known.workers}", "--seed=7"]
        cluster = [sys.executable, "-m", "harness", "cluster", "run", f"--engine={known.engine}"]
        cluster += [f"--nodes={known.nodes}", *(f"--slurm-option={each}" for each in known.slurm_option)]
        many = run(
            [*cluster, f"--results-dir={folder / 'many'}", "--", *common],
            folder / "many",
            has_all=known.engine == "local",
        )
        print(shown(f"{known.nodes} nodes", many), flush=True)
        one = run([sys.executable, "-m", "pytest", *common, f"--results-dir={folder / 'one'}"], folder / "one")
        print(shown("one process", one))
    for (host, devices), number in sorted(many.places.items()):
        print(f"  {host} on {devices}: {number} attempts")
    found = differences(one, many)
    print(f"{format_count(len(one.verdicts), 'case')}, {format_count(len(found), 'difference')}, {many.runs} run line")
    for line in found[:_SHOWN]:
        print(f"  {line}")
    if known.json is not None:
        facts = {"cases": len(one.verdicts), "differences": found, "one": one.wall, "many": many.wall}
        known.json.write_text(json.dumps(facts, indent=2) + "\n")
    return bool(found)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after ``--``."""
    place = words.index("--") if "--" in words else len(words)
    return list(words[:place]), list(words[place + 1 :])


if __name__ == "__main__":
    sys.exit(main())
