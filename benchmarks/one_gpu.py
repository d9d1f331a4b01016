"""An estimate of the time of a recorded run on one GPU with a number of workers, with its assumptions.

    pytest suites/ -n2 --device simcuda --results-dir results/simcuda
    pytest suites/ --collect-only -q -m serial > serial.txt
    python benchmarks/one_gpu.py results/simcuda --alone serial.txt --workers 14

The run is one on the simulated CUDA, so its times are those of the host: Python, torch, the driver's work and kernels
that the processor computes instead of a GPU. Assumptions, all of which are options or can be checked against a run:

- A case takes as long as in the run. A GPU computes its kernels in less time than the simulation, and
  `--device-factor` is the remaining share of a case. Cases that only a real GPU runs, and those of several devices,
  are excluded from the estimate.
- The first use of a GPU in a process takes `--context` seconds more than in the simulation, one process after another
  (the driver initialises the device under a lock).
- A case of `--alone` has the device to itself. All others share it, one per worker, and no worker is idle before the
  last cases. That is the bound of `benchmarks/scheduling.py`, whose ratio for the real order is a factor of the
  estimate.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.journal import journal, reader
from harness.journal.events import Executor, Finish


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded run: the seconds of each case, with all attempts, and the number of processes that used a device."""

    seconds: Mapping[str, float]
    processes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds: of cases with the device to themselves, of the others by all workers, of first uses, and of the run."""

    alone: float
    shared: float
    contexts: float
    whole: float


def recorded(run_dir: Path) -> Recorded:
    """Read a run. Raise JournalError if there is none."""
    seconds: dict[str, float] = {}
    processes = 0
    for event in reader.read_run_journal(run_dir / journal.FILE_NAME).events:
        if isinstance(event, Finish | Executor) and len(event.devices) > 1:
            continue  # one GPU is not enough for them
        if isinstance(event, Finish):
            seconds[event.case] = seconds.get(event.case, 0.0) + event.duration
        elif isinstance(event, Executor) and event.state == "started":
            processes += 1
    return Recorded(seconds, processes)


def estimate(
    run: Recorded, alone: Set[str], *, workers: int, context: float, device_factor: float, order: float
) -> Estimate:
    """Return the estimate for `workers` workers on one device. `order`: the makespan over the least possible."""
    serial = sum(seconds for case, seconds in run.seconds.items() if case in alone) * device_factor
    others = [seconds * device_factor for case, seconds in run.seconds.items() if case not in alone]
    contexts = run.processes * context
    shared = max([sum(others) / workers, *others])
    return Estimate(serial, shared, contexts, serial + max(shared * order, contexts))


def main() -> None:
    """Print the estimate."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--alone", type=Path, help="a file with the ids of cases that have a device to themselves")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--context", type=float, default=1.6, help="seconds of the first use of the GPU in a process")
    parser.add_argument("--device-factor", type=float, default=1.0, help="the part of a case's time that a GPU needs")
    parser.add_argument("--order", type=float, default=1.05, help="the makespan over the least possible")
    wanted = parser.parse_args()
    run = recorded(wanted.run)
    alone = frozenset(wanted.alone.read_text().splitlines()) if wanted.alone is not None else frozenset[str]()
    made = estimate(
        run,
        alone,
        workers=wanted.workers,
        context=wanted.context,
        device_factor=wanted.device_factor,
        order=wanted.order,
    )
    print(f"{len(run.seconds):,} cases, {sum(run.seconds.values()):,.0f} s; {run.processes:,} processes")
    print(f"alone on the device:       {made.alone:7,.0f} s")
    print(f"{wanted.workers} workers side by side:   {made.shared:7,.0f} s")
    print(f"first uses, one by one:    {made.contexts:7,.0f} s")
    print(f"the run:                   {made.whole:7,.0f} s")


if __name__ == "__main__":
    main()
