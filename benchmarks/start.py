"""The time until something begins: many workers, one case, a program on the simulated CUDA, the list of all cases.

Compares in the same run: workers on a suite with one process that only collects it (`many`); a run of one case, from
the command to its verdict, with `import torch` and with the same case in pytest's own process (`one`); a program on the
simulated CUDA with the same on the CPU (`simulated`); and `harness catalog`, with and without a kept list, and
`--collect-only` with `import torch` (`lists`). See README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from measuring import Patience, Sample, machine_facts, median, run

ROOT = Path(__file__).resolve().parents[1]
#: A case that runs on every machine, and its suite.
SUITE, CASE = "suites/streams", "event_query_is_true_before_its_first_record"
#: The target for each worker's first case, as a ratio to the time of the collection in one process.
AIM_BEGIN = 1.3
#: The target for a worker's resident memory, in MiB.
AIM_MEMORY = 90
#: Seconds after which a start fails.
PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a run. `first` and `last`: seconds until the first worker, and each of them, had begun a case.

    `memory`: MiB of the largest worker. `cpu`: processor seconds of all workers together until then.
    """

    first: float
    last: float
    memory: float
    cpu: float


def start(suites: str, workers: int, folder: Path) -> Start:
    """Start a run, and stop it when each worker has begun a case."""
    results = folder / f"run-{time.monotonic_ns()}"
    command = [*_pytest(suites, f"-n{workers}"), f"--results-dir={results}"]
    begun = time.time()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    try:
        starts: dict[str, float] = {}
        pids: dict[str, int] = {}
        for line in _lines(results / "journal.ndjson", process):
            if line["event"] == "collected":
                pids[line["worker"]] = line["pid"]
            elif line["event"] == "start":
                starts.setdefault(line["worker"], line["t"] - begun)
            if len(starts) == workers:
                break
        found = [psutil.Process(pid) for pid in pids.values()]
        memory = max(each.memory_info().rss for each in found) / (1 << 20)
        return Start(min(starts.values()), max(starts.values()), memory, sum(sum(e.cpu_times()[:2]) for e in found))
    finally:
        for _ in range(2):  # the second request has no grace
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        process.wait()


def _lines(path: Path, process: subprocess.Popen[bytes]) -> Iterator[dict[str, object]]:
    """Yield the lines of a journal as they are written, until the run ends."""
    deadline, done = time.monotonic() + PATIENCE, 0
    while time.monotonic() < deadline and process.poll() is None:
        data = path.read_bytes() if path.exists() else b""
        whole = data[done : data.rfind(b"\n") + 1]
        done += len(whole)
        yield from (json.loads(line) for line in whole.splitlines() if line)
        time.sleep(0.01)
    raise SystemExit(f"the run ended, or took longer than {PATIENCE:g} s, before each worker had begun a case")


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device=cpu", *arguments]


#: Parts of this benchmark, each with its commands. The first command is what the others are compared with.
_TORCH = (sys.executable, "-c", "import torch")
_COMMAND = (sys.executable, "-m", "harness")
_RESULTS = "--results-dir={results}"
#: A program, but for the device of its tensor.
_PROGRAM = "import torch; torch.zeros(1, device={!r})"
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "one": {
        "import torch": _TORCH,
        "one case": (*_pytest(SUITE, "-k", CASE, "-n0"), _RESULTS),
        "one case, two workers": (*_pytest(SUITE, "-k", CASE, "-n2"), _RESULTS),
        "one case, pytest's own process": (*_pytest(SUITE, "-k", CASE, "-n0", "--isolation=none"), _RESULTS),
    },
    "simulated": {
        "a program on the CPU": (sys.executable, "-c", _PROGRAM.format("cpu")),
        "harness sim run": (*_COMMAND, "sim", "run", "--", sys.executable, "-c", _PROGRAM.format("cuda")),
    },
    "lists": {
        "import torch": _TORCH,
        "harness catalog": (*_COMMAND, "catalog"),
        "harness catalog, nothing kept": (*_COMMAND, "catalog"),
        "--collect-only -q": tuple(_pytest("suites", "-n0", "--collect-only", "-q")),
    },
}
#: The targets, as ratios of wall time to the first command of the part; for a kept list, in seconds of processor time.
AIMS = {"one case": 2.2, "harness sim run": 1.5}
AIM_CATALOG = 3.0


def compare(part: str, repeats: int, patience: Patience, folder: Path) -> dict[str, list[Sample]]:
    """Run the commands of a part in turn, `repeats` times after a first time that is not counted. Print the ratios."""
    commands = PARTS[part]
    samples: dict[str, list[Sample]] = {name: [] for name in commands}
    for repeat in range(repeats + 1):
        for name, command in commands.items():
            words = [word.format(results=folder / f"one-{time.monotonic_ns()}") for word in command]
            nothing = {"HARNESS_CACHE_DIR": str(folder / f"cache-{repeat}")} if "nothing kept" in name else {}
            sample = patience.measure(
                lambda words=words, nothing=nothing: run(
                    words, ROOT, output=folder / "output", environment={**os.environ, **nothing}
                )
            )
            if repeat:
                samples[name].append(sample)
    first, *others = samples
    print(f"\n{part}: {first} takes {_seconds(samples[first])}")
    for name in others:
        pairs = [*zip(samples[name], samples[first], strict=True)]
        wall, cpu = (median([getattr(a, kind) / getattr(b, kind) for a, b in pairs]) for kind in ("wall", "cpu"))
        aim = f" (aim {AIMS[name]})" if name in AIMS else ""
        aim = f" (aim {AIM_CATALOG:g} s of cpu)" if name == "harness catalog" else aim
        print(f"{name} takes {_seconds(samples[name])}: {wall:.2f}, by cpu {cpu:.2f}{aim}")
    return samples


def _seconds(samples: list[Sample]) -> str:
    wall, cpu = (median([getattr(sample, kind) for sample in samples]) for kind in ("wall", "cpu"))
    return f"{wall:.2f} s, {cpu:.2f} s of cpu"


def begin_many(options: argparse.Namespace, patience: Patience, folder: Path) -> dict[str, list[object]]:
    """Compare workers that begin a case with one process that collects. Print the ratio, and memory."""
    alone: list[Sample] = []
    starts: list[Start] = []
    for repeat in range(options.repeats + 1):
        listing = _pytest(options.suites, "-n0", "--collect-only", "-q")
        sample = patience.measure(lambda listing=listing: run(listing, ROOT, output=folder / "output"))
        begin = start(options.suites, options.workers, folder)
        print(f"collecting alone {sample.wall:.2f} s; {options.workers} workers {begin}", flush=True)
        if repeat:
            alone.append(sample)
            starts.append(begin)
    collecting = median([sample.wall for sample in alone])
    begins = median([each.last for each in starts])
    memory = max(each.memory for each in starts)
    print(f"\nmany: one process collects in {collecting:.2f} s")
    print(f"{options.workers} workers have begun a case in {begins:.2f} s: {begins / collecting:.2f} (aim {AIM_BEGIN})")
    print(f"the largest worker has {memory:.0f} MiB (aim {AIM_MEMORY})")
    return {"alone": [*alone], "starts": [*starts]}


def main() -> None:
    """Measure, print ratios, and write every sample to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"many, {', '.join(PARTS)} (default: many, one)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--suites", default="suites")
    parser.add_argument("--wait", type=float, default=60.0, help="seconds to wait for a quiet machine (60)")
    parser.add_argument("--output", type=Path, help="JSON with every sample")
    options = parser.parse_args()
    parts = options.parts or ["many", "one"]
    if unknown := [part for part in parts if part not in ("many", *PARTS)]:
        parser.error(f"unknown part {unknown[0]!r}: expected many, {', '.join(PARTS)}")
    patience = Patience(share=0.15, seconds=options.wait, tries=1)
    document: dict[str, object] = {"machine": machine_facts()}
    with tempfile.TemporaryDirectory() as name:
        for part in parts:
            taken: dict[str, list[object]] = (
                begin_many(options, patience, Path(name))
                if part == "many"
                else {way: [*found] for way, found in compare(part, options.repeats, patience, Path(name)).items()}
            )
            document[part] = {way: [asdict(each) for each in found] for way, found in taken.items()}  # type: ignore[call-overload]
    if options.output:
        options.output.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
