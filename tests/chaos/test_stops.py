"""Processes of a run that are stopped (SIGSTOP): the run still ends, and blames no case that was not hit.

``CHAOS_SEEDS=17,18 pytest tests/chaos`` runs with other moments; a failed test's id contains the seed.
"""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from harness.core.outcome import Outcome
from tests.chaos.run import CASES, SHORT_LIMITS, Act, Blow, chaos_run, moments
from tests.chaos.soundness import announced, blame_is_right, each_seed, ended_by_itself, sound
from tests.chaos.victims import Victim


@pytest.mark.nightly
@each_seed
def test_executors_are_stopped(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its case is a time-out, or proven innocent by running alone."""
    blows = moments(seed, [(Victim.EXECUTOR, Act.STOP, None), (Victim.EXECUTOR, Act.STOP, 1.0)])
    with chaos_run(tmp_path, seed, *SHORT_LIMITS) as run:
        run.endure(announced(blows, seed))
        ledger = sound(run, monkeypatch)
    blame_is_right(run)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.FLAKY, Outcome.TIMEOUT}
    ended_by_itself(run, ledger)
    assert run.process.returncode == ledger.exit_status()


@pytest.mark.nightly
@each_seed
def test_an_executor_is_stopped_and_its_zygote_as_well(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zygote that does not answer is killed with all its executors: none of them remains beside the next one."""
    blows = moments(seed, [(Victim.EXECUTOR, Act.STOP, None), (Victim.ZYGOTE, Act.STOP, None)], before=200)
    with chaos_run(tmp_path, seed, *SHORT_LIMITS) as run:
        run.endure(announced(blows, seed))
        ledger = sound(run, monkeypatch)
    blame_is_right(run)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.FLAKY, Outcome.LOST}
    assert "zygote" in {finding.kind for finding in ledger.findings}
    ended_by_itself(run, ledger)
    assert run.process.returncode == 1


@pytest.mark.nightly
@each_seed
def test_all_kinds_are_stopped(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker and controller continue later; executor and zygote never do."""
    seconds = 1.0 + seed % 3
    blows = moments(
        seed,
        [
            (Victim.WORKER, Act.STOP, seconds),
            (Victim.CONTROLLER, Act.STOP, seconds),
            (Victim.EXECUTOR, Act.STOP, None),
            (Victim.ZYGOTE, Act.STOP, None),
        ],
        before=500,
    )
    with chaos_run(tmp_path, seed, *SHORT_LIMITS) as run:
        run.endure(announced(blows, seed))
        ledger = sound(run, monkeypatch)
    blame_is_right(run)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.FLAKY, Outcome.LOST, Outcome.TIMEOUT}
    assert ledger.counts[Outcome.PASSED] >= CASES - 4
    ended_by_itself(run, ledger)


@pytest.mark.nightly
@each_seed
def test_a_stopped_worker_is_named_and_ends_with_the_run(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only time shows that a worker has stopped: the progress line reports it, and SIGTERM ends the run."""
    with chaos_run(tmp_path, seed, *SHORT_LIMITS, "--progress=1") as run:
        run.until(lambda: len(run.living(Victim.WORKER)) == 2 and len(run.completed()) > 20)
        worker = run.living(Victim.WORKER)[seed % 2]
        run.hits.append((Blow(0, Victim.WORKER, Act.STOP), worker.pid))
        worker.suspend()
        run.until(lambda: f"is stopped (process {worker.pid}" in run.output)
        run.process.send_signal(signal.SIGTERM)
        run.endure([])
        ledger = sound(run, monkeypatch)
    blame_is_right(run)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.LOST, Outcome.NOT_RUN}
    ended_by_itself(run, ledger)
    assert run.process.returncode == 2
    assert (run.results / "junit.xml").exists()


@pytest.mark.nightly
@each_seed
def test_a_stopped_controller_is_named_by_the_zygote(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chaos_run(tmp_path, seed, *SHORT_LIMITS) as run:
        run.until(lambda: len(run.completed()) > 20)
        (controller,) = run.living(Victim.CONTROLLER)
        run.hits.append((Blow(0, Victim.CONTROLLER, Act.STOP), controller.pid))
        controller.suspend()
        run.until(lambda: f"continue it with kill -CONT {controller.pid}" in run.output)
        controller.resume()
        run.endure([])
        ledger = sound(run, monkeypatch)
    blame_is_right(run)
    assert set(ledger.counts) == {Outcome.PASSED}
    ended_by_itself(run, ledger)
    assert run.process.returncode == 0


@pytest.mark.nightly
@each_seed
def test_the_controller_is_killed_while_all_are_stopped(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chaos_run(tmp_path, seed) as run:
        run.until(lambda: len(run.completed()) > 10 * seed)
        kinds = (Victim.CONTROLLER, Victim.WORKER, Victim.ZYGOTE, Victim.EXECUTOR)
        stopped = [(kind, process) for kind in kinds for process in run.living(kind)]
        for kind, process in stopped:
            try:
                process.suspend()
            except psutil.NoSuchProcess:  # an executor that is ending
                continue
            run.hits.append((Blow(0, kind, Act.STOP), process.pid))
        run.process.kill()
        run.endure([])
        ledger = sound(run, monkeypatch)
    assert run.process.returncode == -signal.SIGKILL
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.LOST, Outcome.NOT_RUN}
