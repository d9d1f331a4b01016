"""Processes killed from outside during a run: no finished result is lost, and no process remains."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from harness.reporting.junit import FILE_NAME
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import Expected, check_journal, compare, compare_junit, expected
from tests.acceptance.project import Project, Result, Running
from tests.acceptance.rules import report

WAITS = "::test_waits"
STARTS = pytest.mark.ways("spread", ["-n0", "-n2", "--start=cold"])

Start = Callable[..., Running]


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    return make_project("waiting")


@pytest.fixture
def start(project: Project) -> Iterator[Start]:
    """Start a run of the waiting suite, and return once one of its cases waits and no other can run meanwhile."""
    begun: list[Running] = []

    def start(*arguments: str) -> Running:
        running = project.start(*arguments)
        begun.append(running)
        until_it_waits(project, running)
        if "-n2" in arguments:
            mine = running.started(WAITS)["worker"]
            running.wait_for(
                lambda: any(
                    line["event"] == "executor" and line["state"] == "ended" and line["worker"] != mine
                    for line in running.lines()
                ),
                "the other worker to have nothing more to do",
            )
        return running

    yield start
    for running in begun:
        running.kill_all()


def until_it_waits(project: Project, running: Running, not_in: int = 0) -> None:
    """Wait until the case waits, in a process other than `not_in`."""
    running.wait_for(
        lambda: any(
            line["event"] == "start"
            and line["case"].endswith(WAITS)
            and line["pid"] != not_in
            and f"waits-{line['pid']}" in project.probe_names()
            for line in running.lines()
        ),
        f"{WAITS} to wait",
    )


def executor_of(running: Running) -> psutil.Process:
    """Return the process that runs the waiting case."""
    return psutil.Process(running.started(WAITS)["pid"])


def zygote_of(running: Running) -> psutil.Process:
    """Return the process from which the waiting case's process was forked."""
    zygote = executor_of(running).parent()
    assert zygote is not None
    return zygote


def executors_started(lines: list[dict[str, Any]]) -> list[str]:
    """Return the names of the executors whose start the journal reports."""
    return [line["executor"] for line in lines if line["event"] == "executor" and line["state"] == "started"]


def report_again(result: Result) -> None:
    """Check that ``harness report DIR`` writes the report again and exits like the run, or with 1 after a kill."""
    last = result.lines[-1]
    status = last["exit_status"] if last["event"] == "end" else 1
    (result.run_dir / FILE_NAME).unlink(missing_ok=True)
    done = report(result.run_dir)
    assert done.returncode == status, done.stderr
    assert WAITS in done.stdout


def check_cut_short(result: Result, wanted: Expected) -> dict[str, str]:
    """Check a run that was killed: each case has the verdict it had reached, is `lost`, or is `not_run`."""
    check_journal(result)
    verdicts = result.verdicts
    assert verdicts.keys() == wanted.cases.keys()
    for case, outcome in verdicts.items():
        assert outcome in ("lost" if case.endswith(WAITS) else "passed", "not_run"), case
    assert next(outcome for case, outcome in verdicts.items() if case.endswith(WAITS)) == "lost"
    compare_junit(result, {case: (outcome, "") for case, outcome in verdicts.items()})
    return verdicts


@STARTS
def test_controller(project: Project, start: Start, spread: str) -> None:
    running = start(spread)
    before = executors_started(running.lines())
    running.process.kill()
    result = running.result()  # no process of the run remains
    assert result.status == -signal.SIGKILL
    assert executors_started(result.lines) == before, "the device was taken again, with nobody to lease it"
    finished = {line["case"] for line in result.lines if line["event"] == "finish" and line["outcome"] != "lost"}
    report_again(result)
    verdicts = check_cut_short(result, expected(project, "batch"))
    assert {case for case, outcome in verdicts.items() if outcome == "passed"} == finished
    if spread != "-n2":
        assert list(verdicts.values()) == ["passed", "passed", "lost", *["not_run"] * 4]
    assert result.ledger.exit_status() == 1


def test_worker(project: Project, start: Start) -> None:
    """xdist replaces the killed worker; only the running case is lost."""
    running = start("-n2", "--dist=load")
    line = running.started(WAITS)
    executor = executor_of(running)
    os.kill(int(project.probe(line["worker"])[0]), signal.SIGKILL)
    running.wait_for(lambda: not executor.is_running(), "the end of the executor whose supervisor is gone")
    result = running.result()
    wanted = expected(project, "batch")
    assert result.verdicts == wanted.outcomes, result.tail()
    assert result.status == 1
    check_journal(result)
    compare_junit(result, wanted.cases)
    report_again(result)
    compare_junit(result, wanted.cases)


@STARTS
def test_executor(project: Project, start: Start, spread: str) -> None:
    """The kill looks like a crash of the case: it is tried again alone, killed again, and blamed."""
    running = start(spread)
    alone, first = running.started(WAITS)["alone"], executor_of(running)
    first.kill()
    if not alone:
        until_it_waits(project, running, not_in=first.pid)
        executor_of(running).kill()
    result = running.result()
    wanted = expected(project, "batch")
    cases = {
        case: ("crashed", "SIGKILL in call") if case.endswith(WAITS) else value for case, value in wanted.cases.items()
    }
    compare(result, replace(wanted, cases=cases, counts={"passed": 6, "failed": 1}))


@pytest.mark.nightly
@STARTS
def test_zygote(project: Project, start: Start, spread: str) -> None:
    """The zygote's death is a finding, and the case runs once more, in an executor of another zygote."""
    running = start(spread)
    first = executor_of(running)
    zygote_of(running).kill()
    until_it_waits(project, running, not_in=first.pid)
    (project.folder / "probe" / "go").touch()
    result = running.result()
    wanted = expected(project, "batch")
    assert result.verdicts == dict.fromkeys(wanted.cases, "passed"), result.tail()
    assert result.status == 1
    check_journal(result)
    assert {finding.kind for finding in result.ledger.findings} == {"zygote"}
    compare_junit(result, dict.fromkeys(wanted.cases, ("passed", "")))


def test_zygote_twice(project: Project, start: Start) -> None:
    """A case that runs each time its zygote dies is lost, not blamed; the other cases run under a third zygote."""
    running = start("-n0")
    first = executor_of(running)
    zygote_of(running).kill()
    until_it_waits(project, running, not_in=first.pid)
    zygote_of(running).kill()
    result = running.result()
    wanted = expected(project, "batch")
    assert result.verdicts == wanted.outcomes, result.tail()
    assert result.status == 1
    check_journal(result)
    compare_junit(result, {case: (outcome, "") for case, outcome in wanted.outcomes.items()})
    assert "lost its zygote" in next(verdict.message for verdict in result.ledger.red)
