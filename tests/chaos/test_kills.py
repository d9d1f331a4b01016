"""After kills of any process at any time, each case has one verdict, blame is right, and the report is valid.

``CHAOS_SEEDS=17,18 pytest tests/chaos`` runs with other moments; a failed test's id contains the seed.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from tests.chaos.run import CASES, WORKERS, Blow, chaos_run, plan
from tests.chaos.soundness import announced, each_seed, ended_by_itself, sound
from tests.chaos.victims import Victim


@pytest.mark.nightly
@each_seed
def test_executors_are_killed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The running case is blamed, or proven innocent by running alone; all other cases pass."""
    with chaos_run(tmp_path, seed) as run:
        run.endure(announced(plan(seed, [Victim.EXECUTOR] * 6), seed))
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.FLAKY, Outcome.CRASHED}
    ended_by_itself(run, ledger)
    assert run.process.returncode == ledger.exit_status()

    statuses = run.killed_executors()
    # An executor that was already ending when the signal came has ended normally.
    assert set(statuses.values()) <= {-signal.SIGKILL, 0}
    shot = {pid for pid, status in statuses.items() if status == -signal.SIGKILL}
    touched = [verdict for verdict in ledger.verdicts if verdict.outcome is not Outcome.PASSED]
    assert 1 <= len(touched) <= len(shot)
    where = run.pids()
    for verdict in touched:
        broken = [finish for finish in verdict.finishes if finish.outcome is Outcome.CRASHED]
        assert broken
        for finish in broken:
            assert where[verdict.case, finish.attempt] in shot
            assert finish.exit_status == -signal.SIGKILL
            assert "SIGKILL" in finish.message


@pytest.mark.nightly
@each_seed
def test_workers_are_killed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed worker loses at most its current case; the run continues with a replacement."""
    kills = plan(seed, [Victim.WORKER] * 2, before=300)
    with chaos_run(tmp_path, seed) as run:
        run.endure(announced(kills, seed))
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.LOST, Outcome.NOT_RUN}
    assert ledger.counts[Outcome.PASSED] >= CASES - len(kills)
    ended_by_itself(run, ledger)
    assert run.process.returncode == 1


@pytest.mark.nightly
def test_a_worker_is_killed_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """xdist aborts a run if a worker's replacement dies too early; all cases are accounted for, and the run is red."""
    with chaos_run(tmp_path, 1) as run:
        run.endure([Blow(100, Victim.WORKER), Blow(100, Victim.STARTING_WORKER)])
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.LOST, Outcome.NOT_RUN}
    ended_by_itself(run, ledger)
    assert run.process.returncode in (1, 3)


@pytest.mark.nightly
@each_seed
def test_zygotes_are_killed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases in its executors are lost, which the harness takes the blame for, and each worker starts its own zygote."""
    kills = plan(seed, [Victim.ZYGOTE] * 2)
    with chaos_run(tmp_path, seed) as run:
        run.endure(announced(kills, seed))
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.LOST}
    assert ledger.counts[Outcome.PASSED] >= CASES - WORKERS * len(kills)
    assert "zygote" in {finding.kind for finding in ledger.findings}
    ended_by_itself(run, ledger)
    assert run.process.returncode == 1


@pytest.mark.nightly
def test_a_zygote_is_killed_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's zygote and the first replacement that a worker starts are killed before they have forked anything."""
    with chaos_run(tmp_path, 1) as run:
        run.endure([Blow(100, Victim.ZYGOTE), Blow(100, Victim.ZYGOTE)])
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.LOST}
    assert ledger.counts[Outcome.PASSED] >= CASES - 2
    ended_by_itself(run, ledger)
    assert run.process.returncode == 1


@each_seed
def test_all_kinds_are_killed_and_the_controller_last(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An aborted run reports its finished cases, and none of its processes remains."""
    victims = [Victim.EXECUTOR, Victim.WORKER, Victim.EXECUTOR, Victim.ZYGOTE, Victim.EXECUTOR, Victim.WORKER]
    with chaos_run(tmp_path, seed) as run:
        run.endure(announced(plan(seed, [*victims, Victim.CONTROLLER], before=300), seed))
        ledger = sound(run, monkeypatch)
    assert run.process.returncode == -signal.SIGKILL
    assert ledger.end is None
    assert ledger.exit_status() == 1
    usual = {Outcome.PASSED, Outcome.FLAKY, Outcome.CRASHED}
    assert set(ledger.counts) <= usual | {Outcome.LOST, Outcome.NOT_RUN}
    assert ledger.counts[Outcome.PASSED]
