"""Write `overloads.txt`, which lists the case that calls each overload of aten.

    python -m suites.operators.generate_overloads [--recorded FOLDER] [PATHS]

This runs the cases of PATHS (default: all) on the CPU with `recorder`, or reads what such a run left in FOLDER. Lines
of overloads for CUDA are kept if this build of torch has no CUDA.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from harness.catalog.overloads import Overload, read_overloads, registered_overloads, write_overloads

from . import recorder, uncalled

FILE = Path(__file__).with_name("overloads.txt")
_ROOT = Path(__file__).parents[2]


def _record(paths: list[str], folder: Path) -> None:
    """Run the cases. A case that fails because it is recorded counts up to its failure."""
    command = [sys.executable, "-m", "pytest", *paths, "-n", "auto", "--extended", "-p", "suites.operators.recorder"]
    environment = {**os.environ, recorder.VARIABLE: str(folder), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as results:
        command += ["--leak-check=off", f"--results-dir={results}/run"]
        subprocess.run(command, cwd=_ROOT, env=environment, check=False)


def table(called: dict[str, list[str]], kept: list[Overload]) -> list[Overload]:
    """Return the lines for the overloads that this build of torch registers, and the `kept` lines of other builds."""
    here = registered_overloads()
    others = {each.name: each.keys for each in kept if "CUDA" in each.keys and not torch.backends.cuda.is_built()}
    found = []
    for name in sorted({*here, *others}):
        keys = tuple(sorted({*here.get(name, ()), *others.get(name, ())}))
        cases = called.get(name, [])
        first = min(cases, key=lambda case: (len(case), case)) if cases else ""
        found.append(Overload(name, keys, len(cases), first or uncalled.reason(name)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", type=Path, help="a folder of recordings, instead of a run")
    parser.add_argument("paths", nargs="*", default=["suites"], help="folders, files or case ids")
    chosen = parser.parse_args()
    kept = list(read_overloads(FILE)) if FILE.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        if not chosen.recorded:
            _record(chosen.paths, Path(folder))
        called = recorder.read(chosen.recorded or Path(folder))
    write_overloads(FILE, table(called, kept), torch.__version__.partition("+")[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
