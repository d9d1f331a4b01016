"""The cost of isolation: the harness against a bare fork, plain pytest, one pytest per case, and plain xdist.

Each way runs the same generated cases several times, alternating with the others; figures are medians. Each way is
measured with few and with many cases, to separate the fixed cost of a run (start-up: imports, collection, reports) from
the cost of each case. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from curve import Point, print_curve
from measuring import Line, Patience, Sample, machine_facts, median, run

_TORCH_CASES = """
import pytest
import torch


@pytest.mark.parametrize("n", range({count}))
def test_n(n):
    assert torch.ones(2).sum() == 2
"""

_EMPTY_CASES = """
import pytest


@pytest.mark.parametrize("n", range({count}))
def test_n(n):
    assert n >= 0
"""

_FORK_AND_EXIT = """
import os
import sys

import torch

for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
"""

_FORK_CASE_AND_EXIT = _FORK_AND_EXIT.replace("os._exit(0)", "os._exit(0 if torch.ones(2).sum() == 2 else 1)")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of cases (few, many): with torch, without it in one worker, without it in two workers.

    `singly`: the number of cases that each run in their own pytest. `curve`: the numbers of cases of the curve.
    """

    torch: tuple[int, int]
    trivial: tuple[int, int]
    empty: tuple[int, int]
    singly: int
    repeats: int
    curve: tuple[int, ...]


FULL = Sizes(
    torch=(50, 800),
    trivial=(200, 4_000),
    empty=(1_000, 10_000),
    singly=3,
    repeats=5,
    curve=(1_000, 10_000, 100_000),
)
QUICK = Sizes(torch=(4, 12), trivial=(20, 100), empty=(50, 200), singly=1, repeats=1, curve=(50, 200))


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run `count` cases: a command in a folder, and the text that it prints on success."""

    name: str
    family: str
    arguments: tuple[str, ...]
    program: str = ""

    def command(self, count: int) -> list[str]:
        if self.program:
            return [sys.executable, "-c", self.program, str(count)]
        return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *self.arguments]

    def says(self, count: int) -> str:
        return "" if self.program else f"{count} passed"


FORK, FORK_CASE = "fork, exit", "fork, case body, exit"
CASE, BATCH, PLAIN = "harness --isolation=case -n0", "harness --isolation=batch -n0", "pytest -p no:harness"
SINGLY = "pytest, one process a case"
BATCH_1, PLAIN_1 = "harness -n0, no torch", "pytest -p no:harness, no torch"
UNCHECKED_1, XDIST_1 = "harness -n0 --leak-check=off, no torch", "xdist -n1 -p no:harness, no torch"
BATCH_2, PLAIN_2 = "harness --isolation=batch -n2", "xdist -n2 -p no:harness"

WAYS = (
    Way(FORK, "torch", (), _FORK_AND_EXIT),
    Way(FORK_CASE, "torch", (), _FORK_CASE_AND_EXIT),
    Way(CASE, "torch", ("suites", "--isolation=case", "-n0")),
    Way(BATCH, "torch", ("suites", "--isolation=batch", "-n0")),
    Way(PLAIN, "torch", ("suites", "-p", "no:harness")),
    Way(BATCH_1, "trivial", ("suites", "--isolation=batch", "-n0")),
    Way(PLAIN_1, "trivial", ("suites", "-p", "no:harness")),
    Way(UNCHECKED_1, "trivial", ("suites", "--isolation=batch", "-n0", "--leak-check=off")),
    Way(XDIST_1, "trivial", ("suites", "-p", "no:harness", "-n1")),
    Way(BATCH_2, "empty", ("suites", "--isolation=batch", "-n2")),
    Way(PLAIN_2, "empty", ("suites", "-p", "no:harness", "-n2")),
)

_FAMILIES = {way.name: way.family for way in WAYS}

#: Comparisons: name, the two ways, the figure, and the target ratio; None for what only explains another one.
AIMS: tuple[tuple[str, str, str, str, float | None], ...] = (
    ("case, each case, over a bare fork", CASE, FORK, "each", 1.7),
    ("batch, whole run, over plain pytest", BATCH, PLAIN, "total", 2.0),
    ("batch -n0, each case, over plain pytest", BATCH_1, PLAIN_1, "each", 1.3),
    ("the same without leak checks", UNCHECKED_1, PLAIN_1, "each", None),
    ("xdist -n1, each case, over plain pytest", XDIST_1, PLAIN_1, "each", None),
    ("batch -n0, each case, over xdist -n1", BATCH_1, XDIST_1, "each", None),
    ("batch -n2, whole run, over plain xdist", BATCH_2, PLAIN_2, "total", 1.4),
)


def make_project(folder: Path, family: str, count: int) -> Path:
    """Create a project of `count` cases in files of at most 25 (with torch) or 250 (without)."""
    source, per_file = (_TORCH_CASES, 25) if family == "torch" else (_EMPTY_CASES, 250)
    project = folder / f"{family}-{count}"
    suite = project / "suites" / "trivial"
    suite.mkdir(parents=True)
    for number, first in enumerate(range(0, count, per_file)):
        text = source.format(count=min(per_file, count - first))
        (suite / f"test_trivial_{number:03}.py").write_text(text)
    preload = "" if family == "torch" else "harness_preload =\n"
    (project / "pytest.ini").write_text(f"[pytest]\nharness_suites = suites\n{preload}")
    return project


def _environment() -> dict[str, str]:
    """Return this process's environment, without the variables of Python, pytest and the harness.

    For example, with PYTHONDONTWRITEBYTECODE pytest rewrites every module of its plugins again in each process.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST_", "HARNESS_"))}


class Bench:
    """Collects samples by way and number of cases."""

    def __init__(self, folder: Path, sizes: Sizes, patience: Patience) -> None:
        self.sizes = sizes
        self.samples: dict[tuple[str, int], list[Sample]] = {}
        self._patience = patience
        self._folder = folder
        self._projects = {
            (family, count): make_project(folder, family, count)
            for family, counts in (("torch", sizes.torch), ("trivial", sizes.trivial), ("empty", sizes.empty))
            for count in counts
        }
        self._environment = _environment()

    def warm_up(self) -> None:
        """Run each way once, uncounted: this fills the page cache and writes bytecode."""
        for way in WAYS:
            few, _ = self._counts(way.family)
            run(way.command(few), self._projects[way.family, few], says=way.says(few), environment=self._environment)

    def take(self) -> None:
        """Do one round: each way with few and with many cases, then single cases."""
        for way in WAYS:
            for count in self._counts(way.family):
                self._sample(way.name, count, way.command(count), self._projects[way.family, count], way.says(count))
        project = self._projects["torch", self.sizes.torch[1]]
        for number in range(self.sizes.singly):
            case = f"suites/trivial/test_trivial_000.py::test_n[{number}]"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:harness", case]
            self._sample(SINGLY, 1, command, project, "1 passed")

    def wall(self, name: str, count: int) -> float:
        return median([sample.wall for sample in self.samples[name, count]])

    def cpu(self, name: str, count: int) -> float:
        return median([sample.cpu for sample in self.samples[name, count]])

    def figures(self) -> dict[str, dict[str, float]]:
        """Return per way: seconds of the whole run, of the start-up and of each case, in wall and processor time."""
        table = {}
        for way in WAYS:
            few, many = self._counts(way.family)
            wall = Line.through(few, self.wall(way.name, few), many, self.wall(way.name, many))
            cpu = Line.through(few, self.cpu(way.name, few), many, self.cpu(way.name, many))
            table[way.name] = {
                "cases": many,
                "total": self.wall(way.name, many),
                "startup": wall.startup,
                "each": wall.each,
                "total_cpu": self.cpu(way.name, many),
                "each_cpu": cpu.each,
            }
        one, many = self.wall(SINGLY, 1), self.sizes.torch[1]
        one_cpu = self.cpu(SINGLY, 1)
        table[SINGLY] = {
            "cases": many,
            "total": one * many,  # extrapolated: see README.md
            "startup": 0.0,
            "each": one,
            "total_cpu": one_cpu * many,
            "each_cpu": one_cpu,
        }
        return table

    def _counts(self, family: str) -> tuple[int, int]:
        return {"torch": self.sizes.torch, "trivial": self.sizes.trivial, "empty": self.sizes.empty}[family]

    def compared(self) -> list[dict[str, Any]]:
        """Return each comparison: the median of the ratios of all rounds, in wall and processor time, and their range.

        Both sides of a pair ran in the same round, so a temporary load affects both alike.
        """
        rows = []
        for what, ours, theirs, figure, aim in AIMS:
            ratios = {
                kind: [
                    self._figure(ours, number, kind, figure) / self._figure(theirs, number, kind, figure)
                    for number in self._rounds(ours)
                ]
                for kind in ("wall", "cpu")
            }
            rows.append(
                {
                    "what": what,
                    "pairs": len(ratios["wall"]),
                    "ratio": median(ratios["wall"]),
                    "ratio_cpu": median(ratios["cpu"]),
                    "range": [min(ratios["wall"]), max(ratios["wall"])],
                    "range_cpu": [min(ratios["cpu"]), max(ratios["cpu"])],
                    "aim": aim,
                    "met": None if aim is None else median(ratios["wall"]) <= aim,
                }
            )
        return rows

    def _rounds(self, name: str) -> range:
        return range(len(self.samples[name, self._counts(_FAMILIES[name])[1]]))

    def _figure(self, name: str, number: int, kind: str, figure: str) -> float:
        """Return the seconds of one round: of the whole larger run, or of each further case."""
        few, many = self._counts(_FAMILIES[name])
        taken: dict[int, float] = {count: getattr(self.samples[name, count][number], kind) for count in (few, many)}
        return taken[many] if figure == "total" else Line.through(few, taken[few], many, taken[many]).each

    def curve(self) -> list[Point]:
        """Do one run of each way with two workers, for each number of cases of the curve."""
        points = []
        for count in self.sizes.curve:
            project = make_project(self._folder / "curve", "empty", count)
            for way in WAYS:
                if way.name in (BATCH_2, PLAIN_2):
                    print(f"  {count:6} cases  {way.name}", file=sys.stderr, flush=True)
                    points.append(Point.take(way.name, count, way.command(count), project, self._environment))
        return points

    def _sample(self, name: str, count: int, command: Sequence[str], project: Path, says: str) -> None:
        def once() -> Sample:
            return run(command, project, says=says, environment=self._environment)

        sample = self._patience.measure(once)
        self.samples.setdefault((name, count), []).append(sample)
        print(
            f"  {count:6} cases {sample.wall:8.3f} s, others {sample.others:4.0%}  {name}", file=sys.stderr, flush=True
        )


def print_tables(figures: dict[str, dict[str, float]], compared: list[dict[str, Any]], busiest: float) -> None:
    """Print the figures as tables."""
    print(
        f"{'':38} {'cases':>6} {'total s':>9} {'start-up s':>10} {'each ms':>9} {'cpu total s':>11} {'cpu each ms':>11}"
    )
    for name, row in figures.items():
        mark = "*" if name == SINGLY else " "
        print(
            f"{name:38} {row['cases']:6.0f} {row['total']:8.2f}{mark} {row['startup']:10.2f} {row['each'] * 1e3:9.3f}"
            f" {row['total_cpu']:10.2f}{mark} {row['each_cpu'] * 1e3:11.3f}"
        )
    print("* extrapolated from single runs")
    print()
    print(f"{'':42} {'pairs':>5} {'ratio':>6} {'range':>13} {'by cpu':>6} {'range':>13} {'aim':>5}")
    for row in compared:
        aim = "" if row["aim"] is None else f"{row['aim']:5.1f}  {'met' if row['met'] else 'not met'}"
        wall, cpu = (f"{low:.2f} to {high:.2f}" for low, high in (row["range"], row["range_cpu"]))
        print(
            f"{row['what']:42} {row['pairs']:5} {row['ratio']:6.2f} {wall:>13} {row['ratio_cpu']:6.2f} {cpu:>13} {aim}"
        )
    extra = figures[CASE]["total"] / figures[FORK]["total"]
    print(f"{'case, whole run, over forks (import incl.)':42} {extra:6.2f}")
    print()
    print(f"other processes used up to {busiest:.0%} of the machine during a counted measurement")


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write figures, samples and the facts of the machine here, as JSON")
    parser.add_argument("--quick", action="store_true", help="few cases, once: checks that it works, measures nothing")
    parser.add_argument("--curve", action="store_true", help="also one run each of up to 100,000 cases, with memory")
    parser.add_argument("--repeats", type=int, help="rounds (default: 5, with --quick 1)")
    parser.add_argument(
        "--share", type=float, default=0.1, help="share of the machine that other processes may use (0.1)"
    )
    parser.add_argument("--wait", type=float, default=30.0, help="seconds to wait for a quiet machine (30)")
    parser.add_argument("--tries", type=int, default=3, help="how often to take a disturbed measurement, at most (3)")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    patience = Patience(options.share, 0.0 if options.quick else options.wait, 1 if options.quick else options.tries)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        bench = Bench(Path(folder), sizes, patience)
        bench.warm_up()
        repeats = options.repeats or sizes.repeats
        for number in range(repeats):
            print(f"round {number + 1} of {repeats}", file=sys.stderr)
            bench.take()
        points = bench.curve() if options.curve else []
    figures = bench.figures()
    compared = bench.compared()
    print_tables(figures, compared, max(sample.others for taken in bench.samples.values() for sample in taken))
    print_curve(points)
    if options.output is not None:
        samples = [
            {"way": name, "cases": count, **asdict(sample)}
            for (name, count), taken in bench.samples.items()
            for sample in taken
        ]
        curve = [point.as_json() for point in points]
        document = {
            "machine": machine_facts(),
            "figures": figures,
            "ratios": compared,
            "curve": curve,
            "samples": samples,
        }
        options.output.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
