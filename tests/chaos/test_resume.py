"""Shards that are killed, resumed until they end, and merged are one run, whatever is killed at any time.

``CHAOS_SEEDS=17,18 pytest tests/chaos`` runs with other moments; a failed test's id contains the seed.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from harness.core.caseid import Shard
from harness.core.outcome import Outcome
from harness.journal import journal, merge, reader
from harness.journal.ledger import Ledger
from harness.scheduling.resume import resumption_of
from tests.chaos.run import CASES, Act, Blow, ChaosRun, chaos_run
from tests.chaos.soundness import announced, each_seed
from tests.chaos.victims import Victim

SHARDS = 2
#: The number of times that each shard is killed.
PARTS = 2


def steps(folder: Path) -> int:
    """Return the number of start and finish lines in the journal."""
    lines = (folder / "results" / journal.FILE_NAME).read_bytes().split(b"\n")
    return sum(line.startswith((b'{"event":"start"', b'{"event":"finish"')) for line in lines)


def blows(draw: random.Random, done: int) -> list[Blow]:
    """Return the kills in one part of a run: executors and a worker, in any order, and then the controller."""
    victims = draw.sample([Victim.EXECUTOR, Victim.WORKER, Victim.EXECUTOR], draw.randint(0, 3))
    moments = sorted(draw.sample(range(done + 10, done + 120), len(victims) + 1))
    return [
        Blow(after, victim, Act.KILL, None)
        for after, victim in zip(moments, [*victims, Victim.CONTROLLER], strict=True)
    ]


def finished(folder: Path) -> dict[str, Outcome]:
    """Return the verdicts of an aborted run."""
    found = resumption_of(reader.read_run_journal(folder / "results" / journal.FILE_NAME)).finished
    return {case: each.outcome for case, each in found.items()}


def run_to_its_end(folder: Path, seed: int, shard: Shard) -> None:
    """Run one shard, kill and resume it several times. Finished verdicts stay, and their cases do not run again."""
    draw = random.Random(f"{seed}-{shard}")
    kept: dict[str, Outcome] = {}
    options = [f"--shard={shard}"]
    for part in range(1, PARTS + 2):
        ran = len(completed(folder))
        with chaos_run(folder, seed, *options, *(["--resume=results"] if part > 1 else [])) as run:
            run.endure(announced(blows(draw, steps(folder) if part > 1 else 0), seed) if part <= PARTS else [])
            assert not run.survivors()
        check_part(run, kept, ran)
        kept = finished(folder)
        assert (run.ledger.end is None) is (part <= PARTS), run.output[-3000:]


def completed(folder: Path) -> list[str]:
    """Return the ids of cases that reached their last line, in order, as the cases recorded it."""
    path = folder / "done"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def check_part(run: ChaosRun, kept: dict[str, Outcome], ran: int) -> None:
    again = {*completed(run.folder)[ran:]} & kept.keys()
    assert not again, f"these had a verdict and ran again: {again}"
    # A writer may be killed between two pages of one line; only this line is lost.
    assert len(run.journal.damaged) <= 2 * PARTS
    verdicts = Counter(verdict.case for verdict in run.ledger.verdicts)
    assert {*verdicts.values()} == {1}
    outcomes = {verdict.case: verdict.outcome for verdict in run.ledger.verdicts}
    assert {case: outcomes[case] for case in kept} == kept


@pytest.mark.nightly
@each_seed
def test_shards_are_killed_resumed_and_merged(tmp_path: Path, seed: int) -> None:
    folders = [tmp_path / str(index) for index in range(1, SHARDS + 1)]
    for index, folder in enumerate(folders, start=1):
        folder.mkdir()
        run_to_its_end(folder, seed, Shard(index, SHARDS))
    parts = [
        merge.part_of(str(folder), reader.read_run_journal(folder / "results" / journal.FILE_NAME))
        for folder in folders
    ]
    assert merge.merge_problems(parts) == []
    ledger = Ledger.from_lines(merge.merged_events(parts, run_id="merged", argv=["harness"], now=2e9))
    assert len(ledger.verdicts) == CASES
    assert {*ledger.counts} <= {Outcome.PASSED, Outcome.FLAKY, Outcome.CRASHED}
    assert {finding.kind for finding in ledger.findings} <= {"worker", "damaged_journal"}
    assert ledger.end is not None
