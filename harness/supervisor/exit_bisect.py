"""An executor that ran several cases ended badly: which of them breaks the end of its process?"""

from __future__ import annotations

from collections.abc import Sequence

from harness.errors import NoDeviceError
from harness.scheduling.stop_request import StoppedError
from harness.supervisor.attempt import CaseRequest, leave, run_attempt
from harness.supervisor.case_runner import CaseRunner
from harness.supervisor.executor_handle import ExecutorHandle
from harness.supervisor.executor_slot import ExecutorSlot


class ExitBisect:
    """Halves the cases of an executor until single ones are left, and tries those alone."""

    def __init__(self, runner: CaseRunner, slot: ExecutorSlot, *, case_timeout: float) -> None:
        """`case_timeout`: seconds that the end of a process may take."""
        self._runner = runner
        self._slot = slot
        self._case_timeout = case_timeout

    def investigate(self, handle: ExecutorHandle, what: str) -> None:
        """An executor that ran several cases ended badly: halve them down to single ones, try those alone."""
        looking = f"looking into which of {len(handle.cases)} cases made executor {handle.name} end badly"
        try:
            with self._slot.activities.doing(looking):
                if missing := self._runner.obstacle(len(handle.binding.devices)):
                    raise NoDeviceError(missing)
                guilty = self._try_culprits(list(dict.fromkeys(handle.cases)))
        except (NoDeviceError, StoppedError) as error:
            self._runner.add_finding(
                "executor_exit", f"{what}; which case does so was not found out: {error}", handle.cases
            )
            return
        if not guilty:
            self._runner.add_finding("executor_exit", f"{what}; no case does so alone", handle.cases)

    def _try_culprits(self, suspects: list[str]) -> bool:
        """Try those alone that seem to break the end of their process; says whether any does.

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
        """Those of `suspects`, which together break the end of their process, that are left when halves are tried."""
        if len(suspects) == 1:
            return suspects
        middle = len(suspects) // 2
        halves = (suspects[:middle], suspects[middle:])
        return [culprit for half in halves if self._rehearsal_breaks(half) for culprit in self._culprits(half)]

    def _rehearsal_breaks(self, case_ids: Sequence[str]) -> bool:
        """Run these cases in one process again, for the sake of its end; says whether it was a bad one."""
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
