"""Thirty small real nights of this project's suites on software devices, and the history's results for each.

On some nights faults are injected, so the truth is known.

    python -m benchmarks.history.real_nights --folder nights            # some minutes on two idle cores
    python -m benchmarks.history.real_nights --folder nights --cuda-python /path/to/python

The machines differ only in their names and run the same cases. With the Python of an environment that has a CUDA build
of torch, there is a third one with simulated CUDA devices. The nights appear a day apart: only the times in the
journals are changed. After each night, the front page is queried for what began.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.fleet import record
from harness.fleet.answers import EVER, Answers, FailureGroup
from harness.fleet.store import Store
from harness.journal.journal import FILE_NAME

DAY = 86_400
BEGIN = datetime(2026, 10, 1, 22, tzinfo=UTC).timestamp()
CASES = (
    "suites/rng/test_states.py",
    "suites/rng/test_generators.py",
    "suites/streams/test_events.py",
    "suites/streams/test_record_stream.py",
    "suites/allocator/test_statistics.py",
)


@dataclass(frozen=True, slots=True)
class Truth:
    """A fault that was injected on a machine, from one night to another."""

    fault: str
    machine: str
    begin: int
    end: int


TRUTHS = (
    Truth("generator_not_advanced", "lab-a", 5, 9),
    Truth("elapsed_time_negative", "lab-c", 9, 15),
    Truth("record_stream_ignored", "lab-a", 13, 16),
    Truth("generator_not_advanced", "lab-b", 16, 22),
    Truth("event_early", "lab-c", 21, 27),
    Truth("copy_corrupts_bytes", "lab-a", 24, 30),
)
#: The nights of each machine. The last one has the simulated CUDA, the others the software device.
MACHINES = {"lab-a": range(30), "lab-b": range(10, 30, 2), "lab-c": range(0, 30, 3)}
SIMCUDA = "lab-c"


def faults_of(machine: str, night: int) -> list[str]:
    return [each.fault for each in TRUTHS if each.machine == machine and each.begin <= night < each.end]


def run_night(folder: Path, machine: str, night: int, cases: Sequence[str], python: str) -> Path:
    """Run the cases and move the times of the journal to the night. An existing run is not repeated."""
    out = folder / f"night{night:02d}" / machine
    if (out / FILE_NAME).exists():
        return out
    device = "simcuda" if machine == SIMCUDA else "soft"
    command = [python, "-m", "pytest", *cases, "--device", device, "-n", "0", "-q", "-p", "no:cacheprovider"]
    command += ["--seed", str(1000 + night), "--case-timeout", "30", "--results-dir", str(out)]
    command += [f"--inject={fault}" for fault in faults_of(machine, night)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-500:]}"
        )
    move(out / FILE_NAME, BEGIN + night * DAY)
    return out


def move(journal: Path, begin: float) -> None:
    """Move all times of a journal."""
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    by = begin - lines[0]["t"]
    for line in lines:
        line["t"] = round(line["t"] + by, 6)
        if line.get("since"):
            line["since"] = round(line["since"] + by, 6)
    journal.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


@dataclass(frozen=True, slots=True)
class Begin:
    """An entry of a night's front page that began in that night: red groups together, and their machines."""

    night: int
    machines: tuple[str, ...]
    groups: tuple[FailureGroup, ...]


def begins(answers: Answers, night: int) -> list[Begin]:
    """Return what began, according to the front page, in this night, the latest one."""
    found = []
    for outbreak in answers.outbreaks:
        if outbreak.first == answers.last_night:
            lanes = {each.lane for group in outbreak.groups for each in group.onsets if each.until is None}
            found.append(Begin(night, tuple(sorted(lane.partition(" ")[0] for lane in lanes)), outbreak.groups))
    return found


def gone(answers: Answers, group: FailureGroup, truth: Truth) -> int | None:
    """Return the first night after the start of a fault in which its machine ran without the group, if any."""
    for lane, runs in answers.presence([group.key], EVER)[group.key].items():
        if lane.startswith(truth.machine):
            nights = [(night_of(answers.runs[run]["night"]), there) for run, there in runs]
            return next((night for night, there in nights if night > truth.begin and not there), None)
    return None


def judge(answers: Answers, found: Sequence[Begin], truths: Sequence[Truth]) -> list[str]:
    """Return a table: for each fault, the page of its first night, and the page's entries that no fault explains."""
    lines = ["| fault | machine | nights | began, says the page | together | groups | red cases | gone |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    explained: list[Begin] = []
    for truth in truths:
        own = [each for each in found if each.machines == (truth.machine,) and each.night == truth.begin]
        explained += own
        groups = [group for each in own for group in each.groups]
        cases = sum(group.open_cases for group in groups)
        ends = sorted({str(gone(answers, group, truth) or "still red") for group in groups})
        lines.append(
            f"| `{truth.fault}` | {truth.machine} | {truth.begin} to {truth.end - 1} | "
            f"{', '.join(str(each.night) for each in own) or 'not found'} | {len(own)} | {len(groups)} | {cases} | "
            f"{', '.join(ends)} |"
        )
    others = [each for each in found if each not in explained]
    lines.append(f"began, and no fault explains it: {len(others)}")
    lines += [f"    night {each.night}, {each.machines}: {[group.title for group in each.groups]}" for each in others]
    return lines


def night_of(night: object) -> int:
    return (datetime.fromisoformat(str(night)) - datetime(2026, 10, 1)).days


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("nights"))
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--cuda-python", metavar="PYTHON", help="a Python with this harness and a CUDA build of torch")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    wanted = parser.parse_args()
    pythons = {machine: wanted.cuda_python if machine == SIMCUDA else sys.executable for machine in MACHINES}
    store = Store(wanted.folder / "nights")
    found: list[Begin] = []
    for night in range(wanted.nights):
        for machine, own in MACHINES.items():
            if night in own and pythons[machine]:
                path = run_night(wanted.folder, machine, night, wanted.cases, pythons[machine])
                print(f"{path}: {store.add(record.read_history_record(path, machine))}", flush=True)
        with store.reading() as database:
            found += begins(Answers(database), night)
    truths = [each for each in TRUTHS if pythons[each.machine] and each.begin < wanted.nights]
    with store.reading() as database:
        print("\n".join(judge(Answers(database), found, truths)))


if __name__ == "__main__":
    main()
