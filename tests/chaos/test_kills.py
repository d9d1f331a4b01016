"""Whatever is killed and whenever, each case has one verdict, blame is right, and the report is valid.

``CHAOS_SEEDS=17,18 pytest tests/chaos`` runs with other moments; a failure names the seed in the id of its test.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import xmlschema

from harness import cli
from harness.outcome import Outcome
from harness.reporting.ledger import Ledger
from tests.chaos.run import CASES, WORKERS, ChaosRun, Kill, Victim, chaos_run, plan

SEEDS = [int(seed) for seed in os.environ.get("CHAOS_SEEDS", "1").split(",")]
SCHEMA = Path(__file__).parent.parent / "reporting" / "strict_junit.xsd"

each_seed = pytest.mark.parametrize("seed", SEEDS)


@each_seed
def test_executors_are_killed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case that ran is blamed, or shown innocent by running alone; every other case passes."""
    with chaos_run(tmp_path, seed) as run:
        run.endure(announced(plan(seed, [Victim.EXECUTOR] * 6), seed))
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.FLAKY, Outcome.CRASHED}
    ended_by_itself(run, ledger)
    assert run.process.returncode == ledger.exit_status()

    statuses = run.killed_executors()
    # One that was already on its way out when the signal came has ended well.
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


@each_seed
def test_workers_are_killed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes at most the case that it had in hand with it; the run goes on with a replacement."""
    kills = plan(seed, [Victim.WORKER] * 2, before=300)
    with chaos_run(tmp_path, seed) as run:
        run.endure(announced(kills, seed))
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.LOST, Outcome.NOT_RUN}
    assert ledger.counts[Outcome.PASSED] >= CASES - len(kills)
    ended_by_itself(run, ledger)
    assert run.process.returncode == 1


def test_a_worker_is_killed_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """xdist gives a run up when the replacement of a worker dies too soon; then too all is accounted for, and red."""
    with chaos_run(tmp_path, SEEDS[0]) as run:
        run.endure([Kill(100, Victim.WORKER), Kill(100, Victim.STARTING_WORKER)])
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.LOST, Outcome.NOT_RUN}
    ended_by_itself(run, ledger)
    assert run.process.returncode in (1, 3)


@each_seed
def test_zygotes_are_killed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ran in its executors is lost, the harness's own fault, and each worker starts a zygote for itself."""
    kills = plan(seed, [Victim.ZYGOTE] * 2)
    with chaos_run(tmp_path, seed) as run:
        run.endure(announced(kills, seed))
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.LOST}
    assert ledger.counts[Outcome.PASSED] >= CASES - WORKERS * len(kills)
    assert "zygote" in {finding.kind for finding in ledger.findings}
    ended_by_itself(run, ledger)
    assert run.process.returncode == 1


def test_a_zygote_is_killed_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's zygote goes, and the first that a worker starts in its place, before it has forked anything."""
    with chaos_run(tmp_path, SEEDS[0]) as run:
        run.endure([Kill(100, Victim.ZYGOTE), Kill(100, Victim.ZYGOTE)])
        ledger = sound(run, monkeypatch)
    assert set(ledger.counts) <= {Outcome.PASSED, Outcome.LOST}
    assert ledger.counts[Outcome.PASSED] >= CASES - 2
    ended_by_itself(run, ledger)
    assert run.process.returncode == 1


@each_seed
def test_all_kinds_are_killed_and_the_controller_last(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run cut off has told what it got done; nothing of it lives on."""
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


def announced(kills: list[Kill], seed: int) -> list[Kill]:
    print(f"chaos seed {seed}: {', '.join(map(str, kills))}")
    return kills


def sound(run: ChaosRun, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The ledger of a run that is over, once all that must hold after any death has been checked."""
    assert run.survivors() == []
    contents = run.journal
    deadly = [victim for victim, _ in run.killed if victim is not Victim.EXECUTOR]
    # A writer may be killed between two pages of one line; that costs this line and no other.
    assert len(contents.damaged) <= len(deadly), contents.damaged
    assert not contents.unknown
    ledger = run.ledger
    one_verdict_each(ledger)
    nothing_passed_unfinished(run, ledger)
    report_is_valid(run, ledger, monkeypatch)
    return ledger


def one_verdict_each(ledger: Ledger) -> None:
    assert len(ledger.verdicts) == len({verdict.case for verdict in ledger.verdicts}) == CASES
    for verdict in ledger.verdicts:
        assert verdict.collected
        finals = [finish for finish in verdict.finishes if finish.final]
        none_expected = verdict.outcome in (Outcome.LOST, Outcome.NOT_RUN) and verdict.decided is None
        assert len(finals) == (0 if none_expected else 1), verdict
        assert len(verdict.finishes) <= verdict.started <= 2, verdict


def nothing_passed_unfinished(run: ChaosRun, ledger: Ledger) -> None:
    """The cases' own word is asked: a pass is one that came to its last line in the process that is said to have it."""
    completed: Counter[tuple[str, int | None]] = Counter(run.completed())
    where = run.pids()
    for verdict in ledger.verdicts:
        for finish in verdict.finishes:
            if finish.outcome is Outcome.PASSED:
                assert completed[verdict.case, where[verdict.case, finish.attempt]] == 1, verdict
                assert set(finish.phases) == {"setup", "call", "teardown"}
        if verdict.outcome is Outcome.NOT_RUN:
            assert not any(case == verdict.case for case, _ in completed), verdict
    assert max(completed.values()) == 1


def report_is_valid(run: ChaosRun, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """``harness report`` writes junit.xml anew: well-formed, valid, each case once, totals equal to the ledger's."""
    target = run.results / "junit.xml"
    target.unlink(missing_ok=True)
    monkeypatch.setattr(sys, "argv", ["harness", "report", str(run.results)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == ledger.run_exit_status()
    root = ElementTree.parse(target).getroot()
    strict_schema().validate(root)
    cases = root.findall("testsuite/testcase")
    assert len(cases) == CASES == int(root.attrib["tests"])
    assert len({(case.attrib["classname"], case.attrib["name"]) for case in cases}) == CASES
    counts = ledger.counts
    assert int(root.attrib["failures"]) == 0
    errors = sum(counts.get(outcome, 0) for outcome in (Outcome.LOST, Outcome.CRASHED))
    assert int(root.attrib["errors"]) == len(root.findall("testsuite/testcase/error")) == errors
    assert len(root.findall("testsuite/testcase/skipped")) == counts.get(Outcome.NOT_RUN, 0)
    suites = root.findall("testsuite")
    assert sum(int(suite.attrib["tests"]) for suite in suites) == CASES
    assert sum(int(suite.attrib["skipped"]) for suite in suites) == counts.get(Outcome.NOT_RUN, 0)


@cache
def strict_schema() -> Any:
    return xmlschema.XMLSchema(SCHEMA)


def ended_by_itself(run: ChaosRun, ledger: Ledger) -> None:
    assert ledger.end is not None, run.output
    assert ledger.end.exit_status == run.process.returncode
    assert not list((run.folder / "tmp").glob("harness-*/zygote")), "a socket was left behind"
