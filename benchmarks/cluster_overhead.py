"""The cost of a cluster run compared with plain ``srun``: until the first case begins, and per case.

    python -m tests.slurm_cluster python benchmarks/cluster_overhead.py

runs this in a simulated Slurm on this host. The cases do nothing, and all figures come from one run. See README.md in
this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.journal import journal, reader
from harness.journal.events import Finish, RunStarted, Start

_INI = "[pytest]\naddopts = -p no:cacheprovider\nharness_suites = suites\nharness_preload =\n"
_SUITE = "import pytest\n\n@pytest.mark.parametrize('number', range({cases}))\ndef test_it(number): pass\n"


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds. `collected`: from the command to the list of cases, `first`: to the first case. The others: per case.

    `step`: a plain `srun true`. `session`: `srun` of a plain pytest, without the harness, that runs one case.
    `isolated`: the same with the harness.
    """

    cases: int
    nodes: int
    collected: float
    first: float
    case: float
    step: float
    session: float
    isolated: float


def cluster(folder: Path, cases: int, nodes: int) -> tuple[float, float, float]:
    """Run the cases on the nodes of the allocation; return the seconds to the list, to the first case, and per case."""
    command = [sys.executable, "-m", "harness", "cluster", "run", "--engine=slurm", "--results-dir=run", "--"]
    command += ["suites", "-n1", "--leak-check=off", "--device=cpu"]
    begun = time.time()
    with (folder / "run.out").open("wb") as output:
        status = subprocess.run(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    if status:
        raise SystemExit(f"the cluster run ended with {status}:\n{(folder / 'run.out').read_text()[-4000:]}")
    events = reader.read_run_journal(folder / "run" / journal.FILE_NAME).events
    run = next(event.t for event in events if isinstance(event, RunStarted))
    first = min(event.t for event in events if isinstance(event, Start))
    last = max(event.t for event in events if isinstance(event, Finish))
    return run - begun, first - begun, nodes * (last - first) / cases


def plain(command: Sequence[str], folder: Path, times: int) -> float:
    """Return the median of the seconds of a step with one task."""
    found = []
    for _ in range(times):
        begun = time.monotonic()
        subprocess.run(
            ["srun", "--nodes=1", "--ntasks=1", "--exact", "--quiet", *command],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        found.append(time.monotonic() - begun)
    return statistics.median(found)


def measured(cases: int, nodes: int, times: int) -> Figures:
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        (folder / "pytest.ini").write_text(_INI)
        (folder / "suites" / "some").mkdir(parents=True)
        (folder / "suites" / "some" / "test_some.py").write_text(_SUITE.format(cases=cases))
        case = "suites/some/test_some.py::test_it[0]"
        step = plain(["true"], folder, times)
        pytest = [sys.executable, "-m", "pytest", case]
        session = plain([*pytest, "-p", "no:conformance", "-p", "no:harness"], folder, times)
        isolated = plain([*pytest, "--results-dir=each", "--leak-check=off", "--device=cpu"], folder, 1)
        collected, first, each = cluster(folder, cases, nodes)
    return Figures(cases, nodes, collected, first, each, step, session, isolated)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--times", type=int, default=5, help="plain steps of each kind")
    parser.add_argument("--output", type=Path, help="a file for all figures, as JSON")
    wanted = parser.parse_args()
    if "SLURM_JOB_ID" not in os.environ:
        command = ["salloc", f"--nodes={wanted.nodes}", "--cpus-per-task=2", "--quiet", sys.executable, *sys.argv]
        sys.exit(subprocess.run(command, check=False).returncode)
    found = measured(wanted.cases, wanted.nodes, wanted.times)
    print(f"until the list of cases is known: {found.collected:.1f} s; until the first case: {found.first:.1f} s")
    print(f"a case: {1e3 * found.case:.1f} ms of a node with one worker")
    for name, seconds in (("true", found.step), ("plain pytest", found.session), ("the harness", found.isolated)):
        print(f"srun of {name}: {seconds:.2f} s, {seconds / found.case:.0f} times a case of the cluster run")
    cases = found.first / max(found.session - found.case, 1e-9)
    print(f"the start-up is made up for by {cases:.0f} cases of plain pytest")
    if wanted.output is not None:
        wanted.output.write_text(json.dumps(asdict(found), indent=2) + "\n")


if __name__ == "__main__":
    main()
