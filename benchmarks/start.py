"""The start of a run: the time until many workers have begun their first case, and their memory by then.

Compares in the same run: workers on a suite with one process that only collects it, and a run of one case with two
workers with the same case in pytest's own process. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
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
#: The target for a run with two workers, as a ratio to the time of one case in pytest's own process.
AIM_ONE = 1.5
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


def main() -> None:
    """Measure, print ratios, and write every sample to ``--output``."""
    parser = argparse.ArgumentParser(description="The start of a run.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--suites", default="suites")
    parser.add_argument("--output", type=Path, help="JSON with every sample")
    options = parser.parse_args()
    patience = Patience(share=0.15, seconds=60, tries=1)
    alone: list[Sample] = []
    starts: list[Start] = []
    one: dict[str, list[Sample]] = {"own process": [], "two workers": []}
    ways = {"own process": ("-n0", "--isolation=none"), "two workers": ("-n2",)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for repeat in range(options.repeats + 1):
            listing = _pytest(options.suites, "-n0", "--collect-only", "-q")
            sample = patience.measure(lambda listing=listing: run(listing, ROOT, output=folder / "output"))
            begin = start(options.suites, options.workers, folder)
            print(f"collecting alone {sample.wall:.2f} s; {options.workers} workers {begin}", flush=True)
            if repeat:
                alone.append(sample)
                starts.append(begin)
            for way, words in ways.items():
                results = folder / f"one-{time.monotonic_ns()}"
                command = [*_pytest(SUITE, "-k", CASE, *words), f"--results-dir={results}"]
                each = patience.measure(
                    lambda command=command: run(command, ROOT, output=folder / "output", says="passed")
                )
                print(f"one case, {way}: {each.wall:.2f} s, {each.cpu:.2f} s of cpu", flush=True)
                if repeat:
                    one[way].append(each)
    collecting = median([sample.wall for sample in alone])
    begins = median([each.last for each in starts])
    memory = max(each.memory for each in starts)
    own, two = (median([sample.wall for sample in one[way]]) for way in ways)
    print(f"\none process collects in {collecting:.2f} s")
    print(f"{options.workers} workers have begun a case in {begins:.2f} s: {begins / collecting:.2f} (aim {AIM_BEGIN})")
    print(f"the largest worker has {memory:.0f} MiB (aim {AIM_MEMORY})")
    print(
        f"one case takes {own:.2f} s in pytest's own process, {two:.2f} s with two workers: "
        f"{two / own:.2f} (aim {AIM_ONE})"
    )
    if options.output:
        document = {
            "machine": machine_facts(),
            "alone": [asdict(each) for each in alone],
            "starts": [asdict(each) for each in starts],
            "one": {way: [asdict(each) for each in found] for way, found in one.items()},
        }
        options.output.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
