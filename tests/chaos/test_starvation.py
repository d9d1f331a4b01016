"""Processes of a run that lack descriptors, memory, further processes or disk space.

``CHAOS_SEEDS=17,18 pytest tests/chaos`` runs with other moments; a failed test's id contains the seed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from harness.core.outcome import EXIT_INTERNAL, Outcome
from tests.chaos.run import SHORT_LIMITS, Act, Blow, ChaosRun, chaos_run, moments
from tests.chaos.soundness import announced, blame_is_right, each_seed, ended_by_itself, sound
from tests.chaos.starvation import control_group, prefer_for_oom_kill, small_disk
from tests.chaos.victims import Victim

_INNOCENT = {Outcome.PASSED, Outcome.LOST, Outcome.NOT_RUN}


@pytest.mark.nightly
@each_seed
def test_executors_are_starved(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict of a case in such a process names the missing resource; all other cases pass."""
    blows = moments(seed, [(Victim.EXECUTOR, act, None) for act in (Act.NO_DESCRIPTORS, Act.NO_MEMORY) * 2])
    with chaos_run(tmp_path, seed, *SHORT_LIMITS) as run:
        run.endure(announced(blows, seed))
        ledger = sound(run, monkeypatch)
    blame_is_right(run)
    ended_by_itself(run, ledger)
    assert run.process.returncode == ledger.exit_status()


@each_seed
@pytest.mark.parametrize(
    "lasting", [pytest.param(1.0, marks=pytest.mark.nightly, id="a while"), pytest.param(None, id="for good")]
)
@pytest.mark.parametrize("act", [Act.NO_DESCRIPTORS, pytest.param(Act.NO_MEMORY, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "victim",
    [
        Victim.WORKER,
        pytest.param(Victim.ZYGOTE, marks=pytest.mark.nightly),
        pytest.param(Victim.CONTROLLER, marks=pytest.mark.nightly),
    ],
)
def test_others_are_starved(
    tmp_path: Path, seed: int, victim: Victim, act: Act, lasting: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No case is blamed. An executor is killed first, so that another one is needed."""
    blows = moments(seed, [(victim, act, lasting), (Victim.EXECUTOR, Act.KILL, None)], before=300)
    with chaos_run(tmp_path, seed, *SHORT_LIMITS) as run:
        run.endure(announced(blows, seed), to_the_last=False)
        ledger = sound(run, monkeypatch)
    blame_is_right(run)
    assert set(ledger.counts) <= _INNOCENT | {Outcome.FLAKY, Outcome.CRASHED}
    if "cannot read the journal" in run.output:  # the controller cannot open files
        assert run.process.returncode == EXIT_INTERNAL
    else:
        ended_by_itself(run, ledger)
    reported(run)


@each_seed
@pytest.mark.parametrize(
    "lasting", [pytest.param(1.0, marks=pytest.mark.nightly, id="a while"), pytest.param(None, id="for good")]
)
def test_no_process_can_be_made(
    tmp_path: Path, seed: int, lasting: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork is retried for a while; then the run stops, and names the limits to check."""
    with control_group("pids") as group, chaos_run(tmp_path, seed, *SHORT_LIMITS, before_start=group.enter) as run:
        run.until(lambda: len(run.completed()) > 10 * seed)
        group.allow_processes(1)
        for executor in run.living(Victim.EXECUTOR):
            executor.kill()
        if lasting is not None:
            run.until(lambda: b'"event":"wait"' in (run.results / "journal.ndjson").read_bytes())
            group.allow_processes(None)
        run.endure([])
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= _INNOCENT | {Outcome.FLAKY, Outcome.CRASHED}
    ended_by_itself(run, ledger)
    if lasting is None:
        assert run.process.returncode not in (0, 1)
        assert "the zygote could not fork for executor" in run.output
    else:
        assert run.process.returncode == ledger.exit_status()


@pytest.mark.nightly
@each_seed
def test_the_control_group_has_no_memory(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel kills a process of the run. Only a case whose executor it was may be blamed."""
    first = list(Victim)[seed % len(Victim)]
    with control_group("memory") as group, chaos_run(tmp_path, seed, *SHORT_LIMITS, before_start=group.enter) as run:
        run.until(lambda: len(run.completed()) > 10 * seed)
        for process in run.living(first):
            prefer_for_oom_kill(process)
        while not group.killed_for_memory() and run.process.poll() is None:
            group.take_memory()
        group.give_memory_back()
        run.hits += [(Blow(0, Victim.WORKER), 0)] * group.killed_for_memory()  # each may have been writing
        run.endure([])
        ledger = sound(run, monkeypatch)
    assert run.hits, "the run ended before the group had no memory"
    assert set(ledger.counts) <= _INNOCENT | {Outcome.FLAKY, Outcome.CRASHED}
    for verdict in ledger.verdicts:
        for finish in verdict.finishes:
            assert finish.outcome is not Outcome.CRASHED or "SIGKILL" in finish.message, finish
    if run.process.returncode == -signal.SIGKILL:  # it was the controller
        assert ledger.end is None
    else:
        ended_by_itself(run, ledger)


@pytest.mark.nightly
@each_seed
@pytest.mark.parametrize("where", ["results", "tmp"])
def test_no_room_on_the_disk(tmp_path: Path, seed: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / where, 4) as disk:
        # A full disk makes cases suspected of leaks, and they would run again.
        with chaos_run(tmp_path, seed, *SHORT_LIMITS, "--leak-check=off") as run:
            run.until(lambda: len(run.completed()) > 10 * seed)
            fill(disk / "filler")
            run.endure([])
        (disk / "filler").unlink()
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= _INNOCENT
    if where == "results":
        assert run.process.returncode == EXIT_INTERNAL
        assert "No space left on device" in run.output
    reported(run)


def fill(path: Path) -> None:
    """Fill the file system of `path`."""
    with path.open("wb") as file:
        for size in (1 << 16, 1 << 12, 1):
            while True:
                try:
                    os.write(file.fileno(), bytes(size))
                except OSError:
                    break


def reported(run: ChaosRun) -> None:
    """Check that a run in which not all cases passed reports this, without a traceback of pytest."""
    assert "INTERNALERROR" not in run.output, run.output
    if run.ledger.counts.keys() - {Outcome.PASSED, Outcome.FLAKY}:
        assert run.process.returncode != 0
