"""Thirty small real nights: our own suites on software devices, with faults injected on some nights, so that the truth
is known; then what the history says of each.

    python -m benchmarks.history.real_nights --folder nights            # some minutes on two idle cores

Two machines that differ in their name only run the same cases. The nights are a day apart on paper: the times in the
journals are moved, and nothing else in them is changed.
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

from harness.journal.journal import FILE_NAME
from harness.tools.history import front, record
from harness.tools.history.answers import Answers
from harness.tools.history.store import FileStore

DAY = 86_400
BEGIN = datetime(2026, 10, 1, 22, tzinfo=UTC).timestamp()
CASES = ("suites/rng/test_states.py",)


@dataclass(frozen=True, slots=True)
class Truth:
    """A fault that was injected on a machine, from one night to another."""

    fault: str
    machine: str
    begin: int
    end: int


TRUTHS = (
    Truth("generator_not_advanced", "lab-a", 8, 14),
    Truth("generator_not_advanced", "lab-b", 18, 24),
    Truth("copy_corrupts_bytes", "lab-a", 24, 30),
)
#: The nights of each machine.
MACHINES = {"lab-a": range(30), "lab-b": range(14, 30, 2)}


def faults_of(machine: str, night: int) -> list[str]:
    return [each.fault for each in TRUTHS if each.machine == machine and each.begin <= night < each.end]


def run_night(folder: Path, machine: str, night: int, cases: Sequence[str]) -> Path:
    """Run the cases and move the times of the journal to the night. A run that is there is not made again."""
    out = folder / f"night{night:02d}" / machine
    if (out / FILE_NAME).exists():
        return out
    command = [sys.executable, "-m", "pytest", *cases, "--device", "soft", "-n", "0", "-q", "-p", "no:cacheprovider"]
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


def judge(answers: Answers) -> list[str]:
    """Say for each fault which groups began on its machine in its first night, and which groups belong to none."""
    groups = answers.groups(only_open=False)
    runs = answers.runs
    begins = [
        (group, each, runs[each.since]["lane"].partition(" ")[0], night_of(runs[each.since]["night"]))
        for group in groups
        for each in group.onsets
    ]
    lines = []
    known = set()
    for truth in TRUTHS:
        own = [(group, each) for group, each, lane, night in begins if (lane, night) == (truth.machine, truth.begin)]
        known |= {group.key for group, _ in own}
        ends = {night_of(runs[each.until]["night"]) if each.until else 30 for _, each in own}
        lines.append(
            f"{truth.fault} on {truth.machine}, nights {truth.begin} to {truth.end - 1}: {len(own)} groups began"
        )
        lines += [f"    {group.title} ({group.failures} failures of {group.cases} cases)" for group, _ in own]
        lines.append(f"    ended in the nights {sorted(ends)}")
    others = [group for group in groups if group.key not in known]
    lines.append(f"groups that no fault explains at its begin: {len(others)}")
    for group in others:
        where = sorted({(lane, night) for other, _, lane, night in begins if other.key == group.key})
        lines.append(f"    {group.title} ({group.failures} failures, began {where})")
    return lines


def night_of(night: object) -> int:
    return (datetime.fromisoformat(str(night)) - datetime(2026, 10, 1)).days


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("nights"))
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    wanted = parser.parse_args()
    store = FileStore(wanted.folder / "nights.duckdb")
    for night in range(wanted.nights):
        for machine in (name for name, own in MACHINES.items() if night in own):
            path = run_night(wanted.folder, machine, night, wanted.cases)
            print(f"{path}: {store.add(record.read_record(path, machine))}", flush=True)
    with store.reading() as database:
        answers = Answers(database)
        print("\n".join(judge(answers)))
        print(front.front(answers).night)


if __name__ == "__main__":
    main()
