"""How well the order of cases uses the devices: the time from the first start to the last end, and the minimum.

The cases sleep, so many workers fit on few cores. With ``--gpus`` each worker has a fake GPU, and some cases take two
of them, or one alone. Compares in the same run: the harness's order with history and without, and xdist's modes `load`
and `worksteal`. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from measuring import machine_facts, median, run

from harness.journal import journal, reader
from harness.journal.events import Finish, Start
from harness.scheduling import durations
from harness.scheduling.durations import DurationHistory, SlowFiles

#: The target ratios to the minimum time, with history and without.
AIM_WITH, AIM_WITHOUT = 1.05, 1.15
#: The shares of the cases that take two GPUs, and one GPU alone.
PAIRS, ALONE = 0.05, 0.02
_INI = "[pytest]\naddopts = -p no:hypothesispytest -p no:cacheprovider\nharness_suites = suites\nharness_preload =\n"
_SUITE = "suites/sleeping"
_CASES = """
import json
import time
from pathlib import Path

import pytest

SECONDS = json.loads((Path(__file__).parents[2] / "seconds.json").read_text())
MARKS = json.loads((Path(__file__).parents[2] / "marks.json").read_text())

def marks(number):
    count, alone = MARKS[number]
    needs = [pytest.mark.requires(device="cuda", devices=count)] if count else []
    return [*needs, *([pytest.mark.serial] if alone else [])]

@pytest.mark.parametrize("number", [pytest.param(n, marks=marks(n)) for n in {numbers}])
def test_sleeps(number):
    time.sleep(SECONDS[number])
"""
#: The number of cases per generated file, unless they come from a run.
_FILE = 50


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases to run: the seconds and the test file of each, and the slow test files known without history."""

    seconds: tuple[float, ...]
    files: tuple[str, ...]
    slow: SlowFiles | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """One way to distribute cases, and its times. `spans`: seconds from the first start to the last end."""

    name: str
    spans: tuple[float, ...]
    ratio: float


def generated(cases: int, seed: int) -> Cases:
    """Return durations typical of suites: most are short, a few take as long as hundreds of others."""
    draw = random.Random(seed)
    seconds = tuple(min(draw.lognormvariate(-3.0, 1.7), 30.0) for _ in range(cases))
    return Cases(seconds, tuple(f"test_{number // _FILE:05}.py" for number in range(cases)))


def recorded(run_dir: Path, shipped: Sequence[Path], total: float, cases: int) -> Cases:
    """Return `cases` cases of an earlier run, with their files, and durations scaled to a sum of `total` seconds.

    The mix of short and long ones is that of the run, in its order. `shipped`: other runs, from which the slow test
    files are known.
    """
    known = DurationHistory.of_runs([run_dir]).seconds
    ids = list(known)
    by_length = sorted(range(len(ids)), key=lambda position: known[ids[position]], reverse=True)
    step = max(1, len(ids) // cases)
    kept = [ids[position] for position in sorted(by_length[step // 2 :: step])]  # the middle of each group
    scale = total / sum(known[case] for case in kept)
    names = {case: f"{case.partition('::')[0].removesuffix('.py').replace('/', '_')}" for case in kept}
    slow = None
    if shipped:
        measured = durations.measured_slow_files([DurationHistory.of_runs([each]).seconds for each in shipped])
        of_case = {f"{_SUITE}/test_{names[case]}.py": case.partition("::")[0] for case in kept}
        files = {name: measured.files[file] * scale for name, file in of_case.items() if file in measured.files}
        slow = SlowFiles(other=measured.other * scale, files=files)
    return Cases(tuple(known[case] * scale for case in kept), tuple(f"test_{names[case]}.py" for case in kept), slow)


def fake_gpus(folder: Path, count: int) -> dict[str, str]:
    """Return the variables for a machine with this many fake GPUs."""
    from tests import fake_nvml
    from tests.acceptance.gpu_machine import Machine

    library = folder / "nvml"
    library.mkdir()
    found = Machine(folder / "machine", fake_nvml.build(library), gpus=count).environ
    return {name: value for name, value in found.items() if value is not None}


def needs(cases: int, seed: int) -> list[tuple[int, bool]]:
    """Return the number of GPUs that each case takes, and whether it takes its GPU alone."""
    draw = random.Random(seed)
    found = []
    for _ in range(cases):
        chance = draw.random()
        found.append((2 if chance < PAIRS else 1, PAIRS <= chance < PAIRS + ALONE))
    return found


def project(folder: Path, cases: Cases, marks: Sequence[tuple[int, bool]]) -> None:
    """Write suites of cases that sleep. `marks`: the number of GPUs that each takes, and whether it is alone."""
    suite = folder / _SUITE
    suite.mkdir(parents=True)
    (folder / "configs").mkdir()
    (folder / "pytest.ini").write_text(_INI)
    (folder / "seconds.json").write_text(json.dumps(list(cases.seconds)))
    (folder / "marks.json").write_text(json.dumps(list(marks)))
    if cases.slow is not None:
        (folder / "configs" / durations.SLOW_FILES).write_text(durations.slow_files_text(cases.slow))
    numbers: dict[str, list[int]] = {}
    for number, file in enumerate(cases.files):
        numbers.setdefault(file, []).append(number)
    for file, here in numbers.items():
        (suite / file).write_text(_CASES.format(numbers=here))


def span(folder: Path, name: str, workers: int, *options: str, env: Mapping[str, str]) -> float:
    """Run all cases; return the seconds from the first start of a case to the last end."""
    command = [sys.executable, "-m", "pytest", f"-n{workers}", "-q", "--leak-check=off", f"--results-dir={name}"]
    run([*command, "--no-health", *options], folder, output=folder / f"{name}.out", environment={**os.environ, **env})
    events = reader.read_run_journal(folder / name / journal.FILE_NAME).events
    begun = [event.t for event in events if isinstance(event, Start)]
    ended = [event.t for event in events if isinstance(event, Finish)]
    return max(ended) - min(begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--cases", type=int, default=600, help="number of cases")
    parser.add_argument("--total", type=float, default=160.0, help="seconds of all cases, with --recorded")
    parser.add_argument("--recorded", type=Path, help="a run directory to take cases and durations from")
    parser.add_argument(
        "--shipped", type=Path, nargs="*", default=[], help="other runs, from which configs/durations.yaml is made"
    )
    parser.add_argument("--ours", action="store_true", help="leave the modes of xdist out, which take much longer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a file for all figures, as JSON")
    parser.add_argument("--gpus", action="store_true", help="a fake GPU for each worker")
    parser.add_argument("--slots", type=int, default=1, help="with --gpus: so many workers share a GPU")
    wanted = parser.parse_args()
    cases = generated(wanted.cases, seed=1)
    if wanted.recorded is not None:
        cases = recorded(wanted.recorded, wanted.shipped, wanted.total, wanted.cases)
    seconds = cases.seconds
    marks = needs(len(seconds), seed=2) if wanted.gpus else [(0, False)] * len(seconds)
    places = [wanted.slots if alone else max(count, 1) for count, alone in marks]
    work = sum(each * count for each, count in zip(seconds, places, strict=True))
    bound = max([work / wanted.workers, *seconds])
    print(f"{len(seconds)} cases, {work:.1f} s, {wanted.workers} workers: at least {bound:.2f} s")
    ways: list[Way] = []
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp) / "project"
        env = fake_gpus(Path(temp), wanted.workers // wanted.slots) if wanted.gpus else {}
        more_options = [f"--slots={wanted.slots}"] if wanted.gpus else []
        project(folder, cases, marks)
        options = {"without": [], "with history": ["--history=run-0-0"]}
        if not wanted.ours:
            options |= {"xdist load": ["--dist=load"], "xdist worksteal": ["--dist=worksteal"]}
        spans: dict[str, list[float]] = {name: [] for name in options}
        for repeat in range(wanted.repeats):
            for number, (name, more) in enumerate(options.items()):
                spans[name].append(
                    span(folder, f"run-{repeat}-{number}", wanted.workers, *more, *more_options, env=env)
                )
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
