"""What a supervisor lends to whoever looks into an executor that has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.supervisor.attempt import Attempt
from harness.supervisor.case import Case
from harness.supervisor.case_history import CaseHistory
from harness.supervisor.executor_handle import ExecutorHandle


class CaseRunner(Protocol):
    """Runs cases again. Methods that need a device raise `harness.errors.NoDeviceError`.

    When the run is told to stop they raise `harness.scheduling.stop_request.StoppedError`.
    """

    def obstacle(self, count: int) -> str:
        """Why nothing more can be run on `count` healthy devices, or an empty text."""
        ...

    def spawn(self, case: Case) -> ExecutorHandle:
        """A new executor on the devices that `case` needs."""
        ...

    def history_of(self, case_id: str) -> CaseHistory:
        """What a case has been through so far."""
        ...

    def run_alone(self, history: CaseHistory) -> Attempt:
        """One recorded attempt at the case, in a process of its own."""
        ...

    def conclude(self, history: CaseHistory, attempt: Attempt) -> None:
        """Take an attempt as the one that decides, and write it down."""
        ...

    def report_late(self, history: CaseHistory) -> None:
        """Show pytest that a case is red, after it was shown another outcome."""
        ...

    def reproduce_leak(self, cases: Sequence[str], times: int, handle: ExecutorHandle) -> str:
        """A shell line that runs these cases in one process, each so many times, on the devices of `handle`."""
        ...

    def add_finding(self, kind: str, text: str, cases: Sequence[str], reproduce: str | None = None) -> None:
        """Write down a finding: a fact that no one case can be blamed for."""
        ...
