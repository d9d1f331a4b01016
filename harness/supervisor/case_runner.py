"""The interface of a supervisor for code that investigates an executor after its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.supervisor.attempt import Attempt
from harness.supervisor.case import Case
from harness.supervisor.case_history import CaseHistory
from harness.supervisor.executor_handle import ExecutorHandle


class CaseRunner(Protocol):
    """Runs cases again. Methods that need a device raise `harness.core.errors.NoDeviceError`.

    They raise `harness.scheduling.stop_request.StoppedError` after a request to stop the run.
    """

    def obstacle(self, count: int) -> str:
        """Return why no case can run on `count` healthy devices, or an empty string."""
        ...

    def spawn(self, case: Case) -> ExecutorHandle:
        """Start a new executor on the devices that `case` needs."""
        ...

    def history_of(self, case_id: str) -> CaseHistory:
        """Return the history of a case."""
        ...

    def run_alone(self, history: CaseHistory) -> Attempt:
        """Make one recorded attempt at the case, in its own process."""
        ...

    def conclude(self, history: CaseHistory, attempt: Attempt) -> None:
        """Make an attempt the final one, and record it."""
        ...

    def report_late(self, history: CaseHistory) -> None:
        """Report a case to pytest as red, after pytest got another outcome for it."""
        ...

    def reproduce_leak(self, cases: Sequence[str], times: int, handle: ExecutorHandle) -> str:
        """Return a shell command that runs each case `times` times in one process, on the devices of `handle`."""
        ...

    def add_finding(self, kind: str, text: str, cases: Sequence[str], reproduce: str | None = None) -> None:
        """Record a finding: a fact that cannot be attributed to a single case."""
        ...
