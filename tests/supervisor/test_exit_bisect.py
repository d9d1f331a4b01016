"""Which of several cases breaks the end of its process: halves are tried, then single cases."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcome import Outcome
from harness.protocol.exit_status import EXIT_HARNESS_ERROR
from harness.scheduling.device_leases import DeviceLeases
from harness.scheduling.stop_request import StopListener
from harness.supervisor.attempt import Attempt
from harness.supervisor.case import Case
from harness.supervisor.case_history import CaseHistory
from harness.supervisor.executor_handle import ExecutorHandle
from harness.supervisor.executor_slot import ExecutorNaming, ExecutorSlot, SlotHooks
from harness.supervisor.exit_bisect import ExitBisect
from tests.supervisor.fakes import BINDING, FakeExecutor, FakeZygote, RecordedLines, attempt, case

NAMES = [f"c{number}" for number in range(8)]


class FakeRunner:
    """Runs cases in executors that end badly after all cases of `breaks` have run in them; records the requests."""

    def __init__(self, folder: Path, breaks: Sequence[str], *, status: int = -11, devices: str = "") -> None:
        self.alone: list[str] = []
        self.concluded: list[tuple[str, Outcome]] = []
        self.late: list[str] = []
        self.findings: list[tuple[str, str, list[str]]] = []
        self.rehearsed: list[list[str]] = []
        self._breaks = {*breaks}
        self._status = status
        self._missing = devices
        self._zygote = FakeZygote(self._answer, {int(signal.SIGTERM): -15})
        self.stop = StopListener(folder / "stop", "gw0")
        self.slot = ExecutorSlot(
            ExecutorNaming("gw0", folder, folder / "files"),
            SlotHooks(lambda: self._zygote.client, after_unclean_exit=lambda: None, await_release=lambda *_: None),
            stop=self.stop,
            record=RecordedLines(),
            leases=DeviceLeases(None),
        )

    def close(self) -> None:
        self.slot.close("the test is over")
        self.stop.close()
        self._zygote.end()

    def obstacle(self, count: int) -> str:
        return self._missing if count else "asked for no device"

    def spawn(self, case: Case) -> ExecutorHandle:
        assert case.id in NAMES
        return self.slot.spawn(BINDING)

    def history_of(self, case_id: str) -> CaseHistory:
        return CaseHistory(case(case_id), 1)

    def run_alone(self, history: CaseHistory) -> Attempt:
        self.alone.append(history.case.id)
        broken = {history.case.id} >= self._breaks
        return replace(attempt(Outcome.CRASHED if broken else Outcome.PASSED, history.next_number))

    def conclude(self, history: CaseHistory, attempt: Attempt) -> None:
        self.concluded.append((history.case.id, attempt.outcome))

    def report_late(self, history: CaseHistory) -> None:
        self.late.append(history.case.id)

    def reproduce_leak(self, cases: Sequence[str], times: int, handle: ExecutorHandle) -> str:
        raise AssertionError(f"nobody looks for leaks here: {cases}, {times}, {handle}")

    def add_finding(self, kind: str, text: str, cases: Sequence[str], reproduce: str | None = None) -> None:
        assert reproduce is None
        self.findings.append((kind, text, [*cases]))

    def _answer(self, executor: FakeExecutor) -> None:
        if executor.last_request == "run":
            executor.pass_case()
            return
        handle = self.slot.current
        assert handle is not None
        self.rehearsed.append([*handle.cases])
        bad = {*handle.cases} >= self._breaks
        if bad and self._status == EXIT_HARNESS_ERROR:
            executor.send("harness_error", error="E: x", traceback="Traceback")
        executor.exit(self._status if bad else 0)


def investigate(runner: FakeRunner, cases: Sequence[str]) -> None:
    handle = runner.slot.spawn(BINDING)
    handle.cases += cases
    runner.slot.dispose(handle, "retired")
    ExitBisect(runner, runner.slot, case_timeout=60.0).investigate(handle, "executor e1 ended with SIGSEGV")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., FakeRunner]]:
    """Bisect an executor that ran `cases`, on a machine where those in `breaks` together break its end."""
    made: list[FakeRunner] = []

    def investigated(breaks: Sequence[str], cases: Sequence[str] = NAMES, **more: Any) -> FakeRunner:
        made.append(FakeRunner(tmp_path, breaks, **more))
        investigate(made[-1], cases)
        return made[-1]

    yield investigated
    for runner in made:
        runner.close()


Run = Callable[..., FakeRunner]


def test_halves_are_tried_until_one_is_left_which_is_tried_alone(run: Run) -> None:
    runner = run(["c5"])
    assert runner.rehearsed == [NAMES[:4], NAMES[4:], ["c4", "c5"], ["c4"], ["c5"], ["c6", "c7"]]
    assert runner.alone == ["c5"]
    assert runner.concluded == [("c5", Outcome.CRASHED)]
    assert (runner.late, runner.findings) == (["c5"], [])


def test_one_that_ran_alone_is_tried_at_once(run: Run) -> None:
    runner = run(["c0"], ["c0"])
    assert (runner.rehearsed, runner.alone, runner.late) == ([], ["c0"], ["c0"])


def test_a_case_that_ran_several_times_is_one_suspect(run: Run) -> None:
    runner = run(["c1"], ["c1", "c1", "c1"])
    assert (runner.rehearsed, runner.alone) == ([], ["c1"])


def test_what_only_two_halves_do_together_is_a_finding(run: Run) -> None:
    runner = run(["c1", "c6"])
    assert runner.rehearsed == [NAMES[:4], NAMES[4:]]
    text = "executor e1 ended with SIGSEGV; no single case causes this alone"
    assert runner.findings == [("executor_exit", text, NAMES)]


def test_a_suspect_that_passes_alone_is_not_reported_late(run: Run) -> None:
    """Both cases of a pair are in one half: each is tried within that half, and neither breaks it alone."""
    runner = run(["c0", "c1"])
    assert runner.rehearsed == [NAMES[:4], ["c0", "c1"], ["c0"], ["c1"], ["c2", "c3"], NAMES[4:]]
    assert (runner.alone, runner.late) == ([], [])
    assert [kind for kind, _, _ in runner.findings] == ["executor_exit"]


def test_without_devices_it_is_not_found_out(run: Run) -> None:
    runner = run(["c1"], devices="1 healthy devices wanted, 0 left")
    text = "executor e1 ended with SIGSEGV; the case that causes this was not found: 1 healthy devices wanted, 0 left"
    assert runner.findings == [("executor_exit", text, NAMES)]
    assert runner.rehearsed == []


def test_a_failure_of_the_harness_in_a_rehearsal_accuses_nobody(run: Run) -> None:
    runner = run(["c5"], status=EXIT_HARNESS_ERROR)
    assert runner.rehearsed == [NAMES[:4], NAMES[4:]]
    assert (runner.alone, [kind for kind, _, _ in runner.findings]) == ([], ["executor_exit"])
