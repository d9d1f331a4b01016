"""Conditions that hold after any run, whatever was done to its processes."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import xmlschema

from harness.cli import main as cli
from harness.core.outcome import EXIT_INTERNAL, Outcome
from harness.journal.ledger import Ledger
from harness.supervisor.burst import MOST
from tests.chaos.run import CASES, Act, Blow, ChaosRun
from tests.chaos.victims import Victim

SCHEMA = Path(__file__).parent.parent / "reporting" / "strict_junit.xsd"

each_seed = pytest.mark.parametrize("seed", [int(seed) for seed in os.environ.get("CHAOS_SEEDS", "1").split(",")])


def announced(blows: list[Blow], seed: int) -> list[Blow]:
    print(f"chaos seed {seed}: {', '.join(map(str, blows))}")
    return blows


def sound(run: ChaosRun, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Check all conditions that hold after any death, and return the ledger of the finished run."""
    assert run.survivors() == []
    assert run.beside() == [], "two executors of one worker lived at the same time"
    contents = run.journal
    deadly = [blow for blow, _ in run.hits if blow.victim is not Victim.EXECUTOR]
    # A writer may be killed between two pages of one line; only this line is lost.
    assert len(contents.damaged) <= len(deadly), contents.damaged
    assert not contents.unknown
    ledger = run.ledger
    verdicts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(ledger.counts.items()) if count)
    print(f"chaos seed {run.seed}: {verdicts}; exit status {run.process.returncode}; {run.seconds:.0f} s")
    one_verdict_each(ledger)
    nothing_passed_unfinished(run, ledger)
    report_is_valid(run, ledger, monkeypatch)
    return ledger


#: The message about a process that was hit, before its case runs alone.
_SAYS = {
    Act.KILL: "SIGKILL",
    Act.STOP: "did not finish within|did not end within",
    Act.NO_DESCRIPTORS: "Too many open files|RLIMIT_NOFILE|number of open files",
    Act.NO_MEMORY: "MemoryError|RLIMIT_AS|memory|address space",
}


def blame_is_right(run: ChaosRun) -> None:
    """Check that each red case ran in a process that was hit, and its message says how; or the harness is to blame."""
    where, hit = run.pids(), run.hit(Victim.EXECUTOR)
    for verdict in run.ledger.verdicts:
        for finish in verdict.finishes:
            if finish.outcome in (Outcome.PASSED, Outcome.LOST, Outcome.NOT_RUN):
                continue
            pid = where[verdict.case, finish.attempt]
            assert pid in hit, finish
            assert re.search(_SAYS[hit[pid]], f"{finish.message}\n{finish.detail}\n{finish.notes}"), finish
    findings = {finding.kind for finding in run.ledger.findings}
    assert not findings & {"sick_device", "unkillable"}, run.ledger.findings


def one_verdict_each(ledger: Ledger) -> None:
    assert len(ledger.verdicts) == len({verdict.case for verdict in ledger.verdicts}) == CASES
    for verdict in ledger.verdicts:
        assert verdict.collected
        finals = [finish for finish in verdict.finishes if finish.final]
        none_expected = verdict.outcome in (Outcome.LOST, Outcome.NOT_RUN) and verdict.decided is None
        assert len(finals) == (0 if none_expected else 1), verdict
        assert len(verdict.finishes) <= verdict.started <= 2, verdict


def nothing_passed_unfinished(run: ChaosRun, ledger: Ledger) -> None:
    """Check with the cases' own records that each pass reached its last line in the process in the journal.

    A case may have done so more than once if the harness repeated it because it suspected a leak. If a worker or the
    controller was killed, or the journal could not be written, the journal may lack the last cases of a request: they
    are `not_run`, and run when the run is resumed.
    """
    cut = run.hit(Victim.WORKER) or run.hit(Victim.CONTROLLER) or run.process.returncode == EXIT_INTERNAL
    completed: Counter[tuple[str, int | None]] = Counter(run.completed())
    where, unrecorded = run.pids(), set[str]()
    for verdict in ledger.verdicts:
        for finish in verdict.finishes:
            if finish.outcome is Outcome.PASSED:
                assert completed[verdict.case, where[verdict.case, finish.attempt]] >= 1, verdict
                assert set(finish.phases) == {"setup", "call", "teardown"}
        if verdict.outcome is Outcome.NOT_RUN and any(case == verdict.case for case, _ in completed):
            assert cut, verdict
            unrecorded.add(verdict.case)
    # One request per lost worker, and one for each of the two workers at the end.
    assert len(unrecorded) <= MOST * (len(run.hit(Victim.WORKER)) + 2), unrecorded


def report_is_valid(run: ChaosRun, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that ``harness report`` rewrites junit.xml: valid, with each case and finding once, and correct totals."""
    target = run.results / "junit.xml"
    target.unlink(missing_ok=True)
    monkeypatch.setattr(sys, "argv", ["harness", "report", str(run.results)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == ledger.run_exit_status()
    root = ElementTree.parse(target).getroot()
    strict_schema().validate(root)
    # Each finding is a case, and so is a run that is red for nothing else.
    cases, findings = root.findall("testsuite/testcase"), len(ledger.findings)
    findings += not findings and not ledger.red and ledger.run_exit_status() != 0
    assert len(cases) == CASES + findings == int(root.attrib["tests"])
    assert len({(case.attrib["classname"], case.attrib["name"]) for case in cases}) == CASES + findings
    counts = ledger.counts
    failures = sum(counts.get(outcome, 0) for outcome in (Outcome.FAILED, Outcome.CONTAMINATED))
    assert int(root.attrib["failures"]) == len(root.findall("testsuite/testcase/failure")) == failures
    broken = (Outcome.LOST, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.ERROR, Outcome.NOT_RUN)
    errors = sum(counts.get(outcome, 0) for outcome in broken) + findings
    assert int(root.attrib["errors"]) == len(root.findall("testsuite/testcase/error")) == errors
    assert not root.findall("testsuite/testcase/skipped")
    suites = root.findall("testsuite")
    assert sum(int(suite.attrib["tests"]) for suite in suites) == CASES + findings
    assert sum(int(suite.attrib["skipped"]) for suite in suites) == 0


@cache
def strict_schema() -> Any:
    return xmlschema.XMLSchema(SCHEMA)


def ended_by_itself(run: ChaosRun, ledger: Ledger) -> None:
    assert ledger.end is not None, run.output
    assert ledger.end.exit_status == run.process.returncode
    assert not list((run.folder / "tmp").glob("harness-*/zygote")), "a socket was left behind"
