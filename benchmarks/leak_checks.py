"""The cost of the leak and state checks per case: ``--leak-check`` fast and full against off, in the same run.

Runs the same generated cases several times, alternating between the levels, with few and with many cases, to separate
the fixed cost of a run from the cost of each case. Figures are medians of processor time. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from measuring import Line, Patience, Sample, machine_facts, median, run

_CASES = """
import pytest
import torch


@pytest.mark.parametrize("n", range({count}))
def test_n(n):
    x = torch.ones(8, requires_grad=True)
    (x * n).sum().backward()
    assert x.grad.sum() == 8 * n
"""

LEVELS = ("off", "fast", "full")
#: Isolation mode, and the number of additional cases of the larger run: large enough that the fixed cost of a run,
#: which varies by a second, hardly affects the figure per case.
MODES = {"batch": 5000, "case": 500}
FEW = 100
#: Milliseconds of processor time that the fast level may add to a case on the CPU.
AIM = 0.8


def make_project(folder: Path, count: int) -> Path:
    """Create a project of `count` cases, each with a forward and a backward pass, in one file."""
    project = folder / f"cases-{count}"
    suite = project / "suites" / "trivial"
    suite.mkdir(parents=True)
    (suite / "test_trivial.py").write_text(_CASES.format(count=count))
    (project / "pytest.ini").write_text("[pytest]\nharness_suites = suites\n")
    return project


def measure(
    counts: dict[str, tuple[int, int]], repeats: int, patience: Patience
) -> dict[tuple[str, str, int], list[Sample]]:
    """Return samples by isolation mode, level and number of cases (two per mode). The first round is not counted."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST_", "HARNESS_"))}
    samples: dict[tuple[str, str, int], list[Sample]] = {}
    with tempfile.TemporaryDirectory() as name:
        projects = {count: make_project(Path(name), count) for count in {n for pair in counts.values() for n in pair}}
        for repeat in range(repeats + 1):
            for mode, pair in counts.items():
                for level in LEVELS:
                    for count in pair:
                        project = projects[count]
                        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "suites", "-n0"]
                        command += [f"--isolation={mode}", f"--leak-check={level}"]
                        sample = patience.measure(
                            lambda command=command, project=project, count=count: run(
                                command, project, says=f"{count} passed", environment=environment
                            )
                        )
                        if repeat:
                            samples.setdefault((mode, level, count), []).append(sample)
                        print(f"{mode} {level} {count}: {sample.wall:.2f} s, {sample.cpu:.2f} s of cpu", flush=True)
    return samples


def _added(samples: dict[tuple[str, str, int], list[Sample]], mode: str, few: int, many: int) -> float:
    """Return the milliseconds of processor time that `fast` adds to a case: the median of all rounds' differences."""
    each = {
        level: [
            Line.through(few, low.cpu, many, high.cpu).each * 1000
            for low, high in zip(samples[mode, level, few], samples[mode, level, many], strict=True)
        ]
        for level in ("off", "fast")
    }
    return median([fast - off for fast, off in zip(each["fast"], each["off"], strict=True)])


def main() -> None:
    """Measure, print a table of ratios, and write every sample to ``--output``."""
    parser = argparse.ArgumentParser(description="The cost of the leak check per case.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--isolation", choices=MODES, action="append", help="only this mode; repeatable")
    parser.add_argument("--quick", action="store_true", help="check that it works; measures nothing")
    parser.add_argument("--output", type=Path, help="JSON with every sample")
    options = parser.parse_args()
    modes = options.isolation or list(MODES)
    counts = {mode: (5, 15) if options.quick else (FEW, FEW + MODES[mode]) for mode in modes}
    patience = Patience(share=1.0, seconds=0, tries=1) if options.quick else Patience(share=0.15, seconds=60, tries=3)
    samples = measure(counts, 1 if options.quick else options.repeats, patience)
    each = {}
    for mode, (few, many) in counts.items():
        for level in LEVELS:
            cpu = {count: median([s.cpu for s in samples[mode, level, count]]) for count in (few, many)}
            each[mode, level] = Line.through(few, cpu[few], many, cpu[many]).each * 1000
    print(f"\n{'isolation':<10}{'level':<8}{'ms a case':>10}{'more than off':>15}{'times off':>11}")
    for (mode, level), cost in each.items():
        base = each[mode, "off"]
        print(f"{mode:<10}{level:<8}{cost:>10.2f}{cost - base:>15.2f}{cost / base:>11.2f}")
    for mode, (few, many) in counts.items():
        print(f"{mode}: fast adds {_added(samples, mode, few, many):.2f} ms a case, median of the rounds")
    print(f"aim: fast adds less than {AIM:g} ms a case on the CPU")
    if options.output:
        listed = {f"{m} {level} {count}": [asdict(s) for s in found] for (m, level, count), found in samples.items()}
        figures = {f"{mode} {level}": cost for (mode, level), cost in each.items()}
        document = {"machine": machine_facts(), "ms_each": figures, "samples": listed}
        options.output.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
