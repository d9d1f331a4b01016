"""What a case costs in plain pytest, with plugins that isolate tests, with TorchCTS's runner, and with the harness.

All ways run the same cases, which use torch, alternately; TorchCTS runs nodes of its own. A run of few and one of many
cases separate the start (imports, collection, reports) from each further case. Figures are medians of all rounds.

pytest-forked runs with pytest 8.4: with pytest 9.2 it reports each test as a crash.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import distributions, version
from pathlib import Path

from benchmarks import peer_runs
from benchmarks.measuring import CommandFailedError, Line, Patience, Sample, machine_facts, median, run

_CASES = """
import pytest
import torch


@pytest.mark.parametrize("n", range({count}))
def test_n(n):
    assert torch.ones(2).sum() == 2
"""
#: Packages for each peer, in a folder of its own.
_FORKED = ("pytest-forked==1.7.5", "pytest==8.4.2", "py")
_ISOLATED = ("pytest-isolated==0.6.0",)
_PLAIN = ("-p", "no:harness")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run cases: how many of them (few, many), options of pytest, and additional packages.

    `processes`: what has a process of its own.
    """

    name: str
    processes: str
    counts: tuple[int, int]
    options: tuple[str, ...]
    packages: tuple[str, ...] = ()


WAYS = (
    Way("pytest", "none", (50, 800), _PLAIN),
    Way("pytest-xdist -n1", "the worker", (50, 800), (*_PLAIN, "-p", "xdist", "-n1")),
    Way("harness, batch", "many cases", (50, 800), ("-n0", "--isolation=batch")),
    Way("harness, case", "each case", (10, 100), ("-n0", "--isolation=case")),
    Way("pytest-forked", "each case", (10, 100), (*_PLAIN, "-p", "pytest_forked", "--forked"), _FORKED),
    Way("pytest-isolated", "each case", (1, 4), (*_PLAIN, "-p", "pytest_isolated.plugin", "--isolated"), _ISOLATED),
)
TORCHCTS = Way("TorchCTS", "each node", (1, 3), ())
#: Each further case is compared with that of this way, if its cases have a process each.
OURS = "harness, case"


class Bench:
    """Runs the ways in turn and keeps their samples, by way and number of cases."""

    def __init__(self, folder: Path, patience: Patience) -> None:
        self._folder = folder
        self._patience = patience
        self.samples: dict[tuple[str, int], list[Sample]] = {}
        self.versions = {"pytest": version("pytest"), "pytest-xdist -n1": version("pytest-xdist")}
        self._torchcts: Path | None = None

    def prepare(self, way: Way) -> None:
        """Install what a way needs. Raise subprocess.CalledProcessError."""
        if way is TORCHCTS:
            self._torchcts = peer_runs.install(self._folder / "peer", None)
            peer_runs.declare(self._torchcts, "cpu", ["sigmoid"], ("float32", "float64", "bfloat16"))
            self.versions[way.name] = peer_runs.PACKAGE.partition("==")[2]
        elif way.packages:
            place = self._folder / way.name
            # Dependencies of these are here, apart from those that are named.
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place)]
            subprocess.run([*command, *way.packages], check=True)
            self.versions |= {
                each.name: each.version for each in distributions(path=[str(place)]) if each.name == way.name
            }

    def take(self, way: Way, count: int) -> Sample:
        """Do one run. Raise CommandFailedError."""
        if way is TORCHCTS:
            assert self._torchcts is not None
            theirs = peer_runs.theirs(self._torchcts, "cpu", isolated=True)
            types = ("float32", "float64", "bfloat16")[:count]
            chosen = ("-k", " or ".join(f"clean-sigmoid-torch.{each}" for each in types))
            command: Sequence[str] = (*theirs.command, peer_runs.THEIR_FILES[0], *chosen)
            return run(command, theirs.folder, environment=theirs.environment(), output=self._folder / "output")
        project = self._folder / f"cases-{count}"
        if not project.exists():
            (project / "suites").mkdir(parents=True)
            (project / "suites" / "test_it.py").write_text(_CASES.format(count=count))
            (project / "pytest.ini").write_text("[pytest]\nharness_suites = suites\nharness_preload = torch\n")
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST_", "HARNESS_"))
        }
        paths = (*([str(self._folder / way.name)] if way.packages else []), str(peer_runs.ROOT))
        environment = kept | {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
        if way.options[:2] == _PLAIN:
            environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *way.options, "suites"]
        output = self._folder / "output"
        return run(command, project, says=f"{count} passed", environment=environment, output=output)

    def round(self, ways: Sequence[Way]) -> None:
        """Do one run of each way with few and with many cases."""
        for way in ways:
            for count in way.counts:
                sample = self._patience.measure(lambda way=way, count=count: self.take(way, count))
                self.samples.setdefault((way.name, count), []).append(sample)
                print(f"  {way.name}, {count} cases: {sample.wall:.2f} s", file=sys.stderr, flush=True)

    def line(self, way: Way, kind: str) -> Line:
        """Return start and cost per case of a way, in wall or processor time: the medians of all rounds."""
        few, many = ([getattr(sample, kind) for sample in self.samples[way.name, count]] for count in way.counts)
        lines = [Line.through(way.counts[0], a, way.counts[1], b) for a, b in zip(few, many, strict=True)]
        return Line(median([line.startup for line in lines]), median([line.each for line in lines]))


def print_table(bench: Bench, ways: Sequence[Way], rounds: int) -> None:
    """Print the table in Markdown, as docs/measurements has it."""
    own = next((way for way in ways if way.name == OURS), None)
    print(f"\n{platform.python_version()}, pytest {version('pytest')}, torch {version('torch')}; medians of {rounds}\n")
    print("| way | process for | cases | start | one more case | its processor time | over the harness's |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for way in ways:
        wall, cpu = bench.line(way, "wall"), bench.line(way, "cpu")
        release = f" {bench.versions[way.name]}" if way.name in bench.versions else ""
        ratio = ""
        if own is not None and way.processes.startswith("each"):
            ratio = f"{cpu.each / bench.line(own, 'cpu').each:.1f}"
        counts = f"{way.counts[0]}, {way.counts[1]}"
        print(
            f"| {way.name}{release} | {way.processes} | {counts} | {wall.startup:.2f} s | {wall.each * 1e3:.2f} ms "
            f"| {cpu.each * 1e3:.2f} ms | {ratio} |"
        )


def main() -> None:
    """Measure, print the table, and write all samples to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wait", type=float, default=60.0, help="seconds to wait for a quiet machine (60)")
    parser.add_argument("--only", nargs="+", metavar="WAY", help="some of the ways, by the names in the table")
    parser.add_argument("--output", type=Path, help="JSON with every sample")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        bench, ways = Bench(Path(name), Patience(share=0.15, seconds=options.wait, tries=1)), []
        for way in (*WAYS, TORCHCTS):
            if options.only and way.name not in options.only:
                continue
            try:  # the run that is not counted warms up caches and disks
                bench.prepare(way)
                bench.take(way, way.counts[0])
                ways.append(way)
            except (subprocess.CalledProcessError, CommandFailedError) as error:
                print(f"left out: {way.name}: {error}", file=sys.stderr)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            bench.round(ways)
    print_table(bench, ways, options.rounds)
    if options.output:
        samples = [
            {"way": way, "cases": count, **asdict(sample)}
            for (way, count), taken in bench.samples.items()
            for sample in taken
        ]
        document = {"machine": machine_facts(), "versions": bench.versions, "samples": samples}
        options.output.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
