"""The suite `operators` compared with TorchCTS (package `torchcts`), which uses the same catalogue of torch.

Both check the same operators with the same floating-point types, alternately, on the CPU or on the software device.
TorchCTS runs in one process and with each node in its own process (``--subprocess-per-test``), the suite with both
isolation modes. A run of one node and a run of all nodes separate the fixed cost (start, imports, collection) from the
cost of a sample. As a process of TorchCTS takes seconds to collect, its isolated way runs few nodes.

A sample is one input on which an operator ran, forward or with its gradients. On the CPU, TorchCTS runs an operator and
compares no value: its oracle is the CPU. `peer_plugin.py` describes what is counted, in runs that are not timed; these
also measure the memory. Figures are medians; a ratio is the median of the ratios of all rounds.

``--breaks`` breaks operators for both instead (`peer_breaks.py`). As TorchCTS compares a device with the CPU, it cannot
detect wrong values on the CPU. On the software device only the kernels of its threads are broken, so it can.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from measuring import Line, Sample, machine_facts, median, run
from peer_breaks import choose, find
from peer_plugin import COUNTS
from peer_runs import THEIR_FILES, Way, clean, declare, install, our_cases, ours, their_name, theirs

OPERATORS = (
    "sigmoid", "exp", "log", "sqrt", "tanh", "add", "mul", "maximum", "where", "sum", "mean", "prod", "cumsum",
    "softmax", "mm", "bmm", "addmm", "gather", "index_select", "cat", "sort", "linalg.cholesky",
    "nn.functional.conv2d", "nn.functional.layer_norm", "nn.functional.gelu", "nn.functional.silu",
    "nn.functional.avg_pool2d", "nn.functional.mse_loss", "nn.functional.embedding", "nn.functional.linear",
)  # fmt: skip
TYPES = ("float32", "float64", "bfloat16", "float16")
GROUPS = ("float", "half")
#: The target time per sample, as a share of the peer's.
AIM = 0.7


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a run: samples that operators ran on, tensors compared, tests that failed, and memory in MiB.

    `rss` is the largest sum over the processes of the run; `pss` counts shared pages once.
    """

    samples: int
    compared: int
    red: tuple[str, ...]
    rss: float
    pss: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A way with its few and its many cases."""

    way: Way
    few: tuple[str, ...]
    many: tuple[str, ...]


def count(way: Way, cases: Sequence[str], folder: Path, **variables: str) -> Work:
    """Run cases once and count their work. Failed tests are not an error."""
    clean(folder)
    place = folder / "counts"
    place.unlink(missing_ok=True)
    place.touch()
    names = {"PYTEST_PLUGINS": "peer_plugin", COUNTS: str(place), **variables}
    # The leak check would run some cases again, and count their samples twice.
    once = () if "PEERS_PEER" in way.more else ("--leak-check=off",)
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*way.command, *once, *cases], cwd=way.folder, env=way.environment(**names), stdout=output, stderr=output
        )
        rss = pss = 0.0
        while process.poll() is None:
            both = _memory(process.pid)
            rss, pss = max(rss, both[0]), max(pss, both[1])
            time.sleep(0.3)
    lines = place.read_text().splitlines()
    found = Counter(line.partition(" ")[0] for line in lines)
    red = tuple(sorted({line.partition(" ")[2] for line in lines if line.startswith("red ")}))
    if not found["sample"] + found["half"] and not red:
        raise SystemExit(f"{way.name} has checked nothing:\n{(folder / 'output').read_text()[-3000:]}")
    return Work(found["sample"] + found["half"] // 2, found["compared"], red, rss, pss)


def measure(way: Way, cases: Sequence[str], folder: Path) -> Sample:
    """Run cases and measure them; the run must pass."""
    clean(folder)
    return run([*way.command, *cases], way.folder, environment=way.environment(), output=folder / "output")


def _memory(pid: int) -> tuple[float, float]:
    """Return the resident MiB of a process and its descendants: the sum, and with shared pages counted once."""
    rss = pss = 0
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0, 0.0
    for each in tree:
        try:
            info = each.memory_full_info()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        rss, pss = rss + info.rss, pss + info.pss
    return rss / 2**20, pss / 2**20


def pairs(place: Path, device: str, operators: Sequence[str], types: Sequence[str], folder: Path) -> list[Pair]:
    """Return the ways to compare. The isolated way of TorchCTS has three nodes of one operator."""
    first = their_name(operators[0])
    one = ("-k", f"clean-{first}-torch.{types[0]}")
    three = ("-k", " or ".join(f"clean-{first}-torch.{each}" for each in types[:3]))
    cases = our_cases(operators, GROUPS)
    return [
        Pair(theirs(place, device, isolated=False), (*THEIR_FILES, *one), THEIR_FILES),
        Pair(theirs(place, device, isolated=True), (THEIR_FILES[0], *one), (THEIR_FILES[0], *three)),
        Pair(ours("batch", device, folder), (cases[0],), tuple(cases)),
        Pair(ours("case", device, folder), (cases[0],), tuple(cases)),
    ]


def report(work: dict[str, tuple[Work, Work]], times: dict[str, list[tuple[Sample, Sample]]]) -> dict[str, Any]:
    """Print the table of ratios. Return the figures."""
    figures: dict[str, Any] = {}
    each: dict[str, list[tuple[float, float]]] = {}
    print(f"\n{'way':<30}{'samples':>8}{'compared':>9}{'wall s':>8}{'cpu s':>8}{'fixed cpu':>10}", end="")
    print(f"{'ms wall':>9}{'ms cpu':>8}{'rss MiB':>9}{'pss':>7}")
    for name, rounds in times.items():
        few, many = work[name]
        lines = [
            [Line.through(few.samples, getattr(a, kind), many.samples, getattr(b, kind)) for kind in ("wall", "cpu")]
            for a, b in rounds
        ]
        each[name] = [(wall.each * 1000, cpu.each * 1000) for wall, cpu in lines]
        figure = {
            "samples": many.samples,
            "compared": many.compared,
            "wall": median([b.wall for _, b in rounds]),
            "cpu": median([b.cpu for _, b in rounds]),
            "fixed_cpu": median([cpu.startup for _, cpu in lines]),
            "wall_ms_per_sample": median([wall for wall, _ in each[name]]),
            "cpu_ms_per_sample": median([cpu for _, cpu in each[name]]),
            "rss_mib": many.rss,
            "pss_mib": many.pss,
            "red": many.red,
        }
        figures[name] = figure
        print(f"{name:<30}{many.samples:>8}{many.compared:>9}{figure['wall']:>8.1f}{figure['cpu']:>8.1f}", end="")
        print(f"{figure['fixed_cpu']:>10.1f}{figure['wall_ms_per_sample']:>9.2f}", end="")
        print(f"{figure['cpu_ms_per_sample']:>8.2f}{many.rss:>9.0f}{many.pss:>7.0f}")
    names = list(times)
    print(f"\ntime per sample without the fixed cost, ours over TorchCTS; aim: {AIM:g}")
    half = len(names) // 2
    for mine, yours in zip(names[half:], names[:half], strict=True):
        for place, kind in enumerate(("wall", "cpu")):
            ratios = [a[place] / b[place] for a, b in zip(each[mine], each[yours], strict=False)]
            figures[f"{mine} over {yours}, {kind}"] = ratios
            print(f"{mine} / {yours}, {kind}: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return figures


def compare(place: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Count, measure in rounds, and print the table. Return the document."""
    declare(place, options.device, [their_name(each) for each in options.operators], TYPES)
    ways = pairs(place, options.device, options.operators, TYPES, folder)
    if not options.isolated_rounds:
        ways = [ways[0], ways[2]]
    work: dict[str, tuple[Work, Work]] = {}
    for each in ways:
        work[each.way.name] = count(each.way, each.few, folder), count(each.way, each.many, folder)
        print(f"counted {each.way.name}: {work[each.way.name][1]}", flush=True)
    times: dict[str, list[tuple[Sample, Sample]]] = {each.way.name: [] for each in ways}
    for number in range(options.rounds):
        for each in ways:
            if "per node" in each.way.name and number >= options.isolated_rounds:
                continue
            few, many = (measure(each.way, cases, folder) for cases in (each.few, each.many))
            times[each.way.name].append((few, many))
            print(f"{each.way.name}: {many.wall:.1f} s, {many.cpu:.1f} s of cpu", flush=True)
    return {
        "figures": report(work, times),
        "counts": {name: [asdict(each) for each in both] for name, both in work.items()},
        "samples": {name: [[asdict(a), asdict(b)] for a, b in found] for name, found in times.items()},
    }


def main() -> None:
    """Compare times or breaks, print a table, and write all results to ``--output``."""
    parser = argparse.ArgumentParser(description="Our suite of operators beside TorchCTS.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--isolated-rounds", type=int, default=2, help="rounds with a process per node; 0 leaves it out"
    )
    parser.add_argument("--device", choices=("cpu", "soft"), default="cpu")
    parser.add_argument("--operators", nargs="+", default=OPERATORS, metavar="NAME")
    parser.add_argument("--breaks", type=int, metavar="N", help="break N operators for both, and measure no time")
    parser.add_argument("--together", action="store_true", help="make all breaks at once")
    parser.add_argument("--seed", type=int, default=49, help="of the choice of breaks")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first of the breaks chosen")
    parser.add_argument("--package", type=Path, help="the folder of an installed torchcts, in place of a download")
    parser.add_argument("--output", type=Path, help="JSON with every sample")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = install(folder / "peer", options.package)
        if options.breaks:

            def red(way: Way, cases: Sequence[str], variables: dict[str, str]) -> Sequence[str]:
                return count(way, cases, folder, **variables).red

            chosen = choose(options.breaks, options.seed)[options.skip :]
            found = find(place, options.device, folder, chosen, red, together=options.together)
            document = {"breaks": [asdict(each) for each in found]}
        else:
            document = compare(place, folder, options)
    if options.output:
        options.output.write_text(json.dumps({"machine": machine_facts(), **document}, indent=2) + "\n")


if __name__ == "__main__":
    main()
