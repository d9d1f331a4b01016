"""How well the order of cases fills the workers: the time from the first start to the last end, and the least possible.

The cases sleep, so that many workers fit on few cores. Compares in the same run: the harness's order with history and
without, and xdist's modes `load` and `worksteal`. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import machine_facts, median, run

from harness.reporting import journal
from harness.reporting.events import Finish, Start
from harness.scheduling.history import History

#: Times the least possible time that the order may take, with history and without.
AIM_WITH, AIM_WITHOUT = 1.05, 1.15
_INI = "[pytest]\naddopts = -p no:hypothesispytest -p no:cacheprovider\nharness_suites = suites\nharness_preload =\n"
_CASES = """
import json
import time
from pathlib import Path

import pytest

SECONDS = json.loads((Path(__file__).parents[2] / "seconds.json").read_text())

@pytest.mark.parametrize("number", range({first}, {last}))
def test_sleeps(number):
    time.sleep(SECONDS[number])
"""
#: Cases of one generated file.
_FILE = 50


@dataclass(frozen=True, slots=True)
class Way:
    """One way to hand out cases, and what it took. `spans`: seconds from the first start to the last end."""

    name: str
    spans: tuple[float, ...]
    ratio: float


def generated(cases: int, seed: int) -> list[float]:
    """Durations as suites have them: most are short, a few take as long as hundreds of others."""
    draw = random.Random(seed)
    return [min(draw.lognormvariate(-3.0, 1.7), 30.0) for _ in range(cases)]


def recorded(run_dirs: Sequence[Path], total: float) -> list[float]:
    """The durations of earlier runs, scaled so that they add up to `total` seconds."""
    seconds = list(History.of_runs(run_dirs).seconds.values())
    return [each * total / sum(seconds) for each in seconds]


def project(folder: Path, seconds: Sequence[float]) -> None:
    """Write suites of cases that sleep for `seconds`."""
    suite = folder / "suites" / "sleeping"
    suite.mkdir(parents=True)
    (folder / "pytest.ini").write_text(_INI)
    (folder / "seconds.json").write_text(json.dumps(list(seconds)))
    for first in range(0, len(seconds), _FILE):
        last = min(first + _FILE, len(seconds))
        (suite / f"test_sleeps_{first:05}.py").write_text(_CASES.format(first=first, last=last))


def span(folder: Path, name: str, workers: int, *options: str) -> float:
    """Run all cases; seconds from the first start of a case to the last end."""
    command = [sys.executable, "-m", "pytest", f"-n{workers}", "-q", "--leak-check=off", f"--results-dir={name}"]
    run([*command, *options], folder, output=folder / f"{name}.out")
    events = journal.read_run(folder / name / journal.FILE_NAME).events
    begun = [event.t for event in events if isinstance(event, Start)]
    ended = [event.t for event in events if isinstance(event, Finish)]
    return max(ended) - min(begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--cases", type=int, default=600, help="number of generated cases")
    parser.add_argument("--total", type=float, default=160.0, help="seconds of all cases, with --recorded")
    parser.add_argument("--recorded", type=Path, nargs="*", default=[], help="run directories to take durations from")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a file for all figures, as JSON")
    wanted = parser.parse_args()
    seconds = recorded(wanted.recorded, wanted.total) if wanted.recorded else generated(wanted.cases, seed=1)
    bound = max([sum(seconds) / wanted.workers, *seconds])
    print(f"{len(seconds)} cases, {sum(seconds):.1f} s, {wanted.workers} workers: at least {bound:.2f} s")
    ways: list[Way] = []
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        project(folder, seconds)
        span(folder, "history", wanted.workers)
        options = {
            "with history": ["--history=history"],
            "without": [],
            "xdist load": ["--dist=load"],
            "xdist worksteal": ["--dist=worksteal"],
        }
        spans: dict[str, list[float]] = {name: [] for name in options}
        for repeat in range(wanted.repeats):
            for number, (name, more) in enumerate(options.items()):
                spans[name].append(span(folder, f"run-{repeat}-{number}", wanted.workers, *more))
        for name, found in spans.items():
            ways.append(Way(name, tuple(found), median(found) / bound))
            print(f"{name:16} {median(found):7.2f} s  {ways[-1].ratio:.3f} times the bound")
    print(f"aims: {AIM_WITH} with history, {AIM_WITHOUT} without")
    if wanted.output is not None:
        figures = {
            "machine": machine_facts(),
            "bound": bound,
            "cases": len(seconds),
            "ways": [asdict(way) for way in ways],
        }
        wanted.output.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
