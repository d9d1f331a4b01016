"""The cost of the software device: launches compared with the same calls on the CPU, and memory over allocations.

    python benchmarks/softdevice.py [--quick]

Builds the device if necessary, and prints the build time. A launch is `x.add_(1)` of 16 elements on one stream, with
one synchronisation at the end. They alternate with the same calls on the CPU. Prints medians over the rounds, and the
resident size of the process before and after a million allocations. Units: seconds, MiB.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import psutil

from harness.sim.softdevice import build


def resident() -> float:
    """Return the resident size of this process in MiB."""
    return float(psutil.Process().memory_info().rss) / (1 << 20)


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the work, to check that it runs")
    parts = 100 if parser.parse_args().quick else 1
    begin = time.perf_counter()
    library: Path = build.build_softdevice(progress=lambda line: print(line, file=sys.stderr))
    print(f"library built or found after {time.perf_counter() - begin:.1f} s: {library}")
    import torch

    begin = time.perf_counter()
    build.load_software_device(library)
    there, here = torch.zeros(16, device="soft"), torch.zeros(16)
    torch.accelerator.synchronize()
    print(
        f"loaded and initialised in {time.perf_counter() - begin:.3f} s; torch {torch.__version__}, "
        f"load {psutil.getloadavg()[0]:.1f}"
    )

    def seconds(x: torch.Tensor, count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            x.add_(1)
        torch.accelerator.synchronize()
        return time.perf_counter() - begin

    count = 100_000 // parts
    rounds = [(seconds(there, count), seconds(here, count)) for _ in range(5)]
    soft, cpu = (statistics.median(each) for each in zip(*rounds, strict=True))
    print(f"launches: {count / soft:,.0f} per second; {soft / cpu:.1f} times the time of the CPU")

    for what, size in (("of 1 KiB", 256), ("of 4 MiB", 1 << 20)):
        torch.empty(size, device="soft")
        count = 1_000_000 // parts
        before, begin = resident(), time.perf_counter()
        for _ in range(count):
            torch.empty(size, device="soft")
        took = time.perf_counter() - begin
        print(
            f"{count:,} allocations {what}: {count / took:,.0f} per second, "
            f"{before:.1f} MiB before, {resident():.1f} after"
        )


if __name__ == "__main__":
    main()
