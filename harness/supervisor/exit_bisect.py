"""Finds the case that makes a process with several cases end badly."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.errors import NoDeviceError
from harness.core.text import format_count
from harness.scheduling.stop_request import StoppedError
from harness.supervisor.attempt import CaseRequest, leave, run_attempt
from harness.supervisor.case_runner import CaseRunner
from harness.supervisor.executor_handle import ExecutorHandle
from harness.supervisor.executor_slot import ExecutorSlot


class ExitBisect:
    """Bisects the cases of an executor down to single cases, and runs those alone."""

    def __init__(self, runner: CaseRunner, slot: ExecutorSlot, *, case_timeout: float) -> None:
        """`case_timeout`: the most seconds for the end of a process."""
        self._runner = runner
        self._slot = slot
        self._case_timeout = case_timeout

    def investigate(self, handle: ExecutorHandle, ending: str) -> None:
        """Bisect the cases of an executor that ended badly. `ending` describes its end."""
        activity = f"bisecting {format_count(len(handle.cases), 'case')}, because executor {handle.name} ended badly"
        try:
            with self._slot.activities.doing(activity):
                if missing := self._runner.obstacle(len(handle.binding.devices)):
                    raise NoDeviceError(missing)
                guilty = self._try_culprits(list(dict.fromkeys(handle.cases)))
        except (NoDeviceError, StoppedError) as error:
            self._runner.add_finding(
                "executor_exit", f"{ending}; the case that causes this was not found: {error}", handle.cases
            )
            return
        if not guilty:
            self._runner.add_finding("executor_exit", f"{ending}; no single case causes this alone", handle.cases)

    def _try_culprits(self, suspects: list[str]) -> bool:
        """Run each suspected case alone. Returns whether the process of any of them ends badly.

        Raises NoDeviceError, StoppedError.
        """
        guilty = False
        for history in map(self._runner.history_of, self._culprits(suspects)):
            attempt = self._runner.run_alone(history)
            self._runner.conclude(history, attempt)
            if attempt.outcome.breaks_executor:
                guilty = True
                self._runner.report_late(history)
        return guilty

    def _culprits(self, suspects: list[str]) -> list[str]:
        """Bisect `suspects`, whose common process ends badly. Returns the single cases that remain."""
        if len(suspects) == 1:
            return suspects
        middle = len(suspects) // 2
        halves = (suspects[:middle], suspects[middle:])
        return [culprit for half in halves if self._rehearsal_breaks(half) for culprit in self._culprits(half)]

    def _rehearsal_breaks(self, case_ids: Sequence[str]) -> bool:
        """Run these cases in one process again. Returns whether that process ended badly."""
        cases = [self._runner.history_of(case_id).case for case_id in case_ids]
        handle = self._runner.spawn(cases[0])
        for case, following in zip(cases, [*case_ids[1:], None], strict=True):
            attempt = run_attempt(handle, CaseRequest(case.item, case.id, case.seed, case.limit, following), 0)
            if not attempt.usable:
                break
        good = handle.exit_status is None and leave(handle, self._case_timeout, light=False)
        bad = (not good or handle.exit_status != 0) and handle.harness_error is None
        self._slot.dispose(handle, "rehearsal")
        return bad
