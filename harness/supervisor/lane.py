"""Where the cases of a worker run: its devices, and its executor, which is kept, ended or replaced after each case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.core.errors import NoDeviceError
from harness.journal.journal import WorkerJournal
from harness.scheduling.leases import Claim
from harness.scheduling.stop_request import StoppedError
from harness.supervisor.attempt import Attempt, CaseHistory, CaseRequest, leave
from harness.supervisor.burst import Begun, Burst, run_attempt
from harness.supervisor.case import Case, needs_own_process
from harness.supervisor.case_reports import CaseLines, PytestSession
from harness.supervisor.device_monitor import DeviceMonitor
from harness.supervisor.device_pool import DevicePool
from harness.supervisor.diagnostics import Diagnostics
from harness.supervisor.executor_handle import Bindings, ExecutorHandle
from harness.supervisor.executor_slot import ExecutorSlot
from harness.zygote.client import ZygoteError


class Lane:
    """Makes single attempts on the devices of a worker, each recorded with a `start` line. It gives no verdict."""

    def __init__(
        self,
        slot: ExecutorSlot,
        pool: DevicePool,
        monitor: DeviceMonitor,
        diagnostics: Diagnostics,
        bindings: Bindings,
        session: PytestSession,
        lines: CaseLines,
        journal: WorkerJournal,
        *,
        levels: bool,
    ) -> None:
        """`levels`: read the meters after each attempt."""
        self.slot = slot
        self.pool = pool
        self._monitor = monitor
        self._diagnostics = diagnostics
        self._bindings = bindings
        self._session = session
        self._lines = lines
        self._journal = journal
        self._levels = levels
        #: Executors whose files are kept, because a case in them was red.
        self._red: set[str] = set()

    def missing(self, count: int) -> str | None:
        """Return why no case can run: a request to stop, or fewer than `count` healthy devices; or an empty string.

        Devices that this worker has not examined yet are examined. None: the current executor must end first.
        """
        try:
            self.slot.stop.refuse()
            return self._monitor.missing(count)
        except StoppedError as error:
            return str(error)

    def is_drained(self, uuids: Sequence[str]) -> bool:
        """Return whether any of these devices is drained."""
        return any(self.pool.drained(device) is not None for device in self.pool.ordered(uuids))

    def claim(self, case: Case) -> Claim:
        """Return what the case needs. Raises NoDeviceError."""
        return self.pool.claim(case.devices, case.share, case.memory)

    def spawn(self, case: Case) -> ExecutorHandle:
        """Start an executor on healthy devices. Raises NoDeviceError if none are left, StoppedError."""
        while True:
            claim = self.claim(case)
            devices = self.pool.ordered(self.slot.lease(claim))
            self._monitor.examine_new(devices)
            if all(self.pool.drained(device) is None for device in devices):
                binding = replace(self._bindings.bind(devices), unused=needs_own_process(case))
                return self.slot.spawn(binding, claim)
            self.slot.release()
            if missing := self.missing(case.devices):
                raise NoDeviceError(missing)

    def make(
        self,
        handle: ExecutorHandle,
        history: CaseHistory,
        *,
        following: str | None,
        leave: bool,
        light: bool,
        ahead: bool = False,
    ) -> Attempt:
        """Make one attempt. Afterwards the executor is current only if it may run another case.

        `following`, `leave`, `light`: see `CaseRequest`. With `ahead`, the executor of the next case starts meanwhile.
        """
        self._journal.record(self._lines.start(history, handle, alone=not handle.cases))
        request = CaseRequest(history.case, following, leave, light, self._levels)
        begun = Begun(history, Burst(handle, [request], [history.next_number]), 0, None)
        if ahead:
            self.slot.prepare(handle.binding)
        attempt = self.end_of(begun)
        if not attempt.evidence.is_plain_pass or attempt.suspicions:
            self.slot.drop_spare()  # it was alive during this attempt, which may have harmed it
        return attempt

    def end_of(self, begun: Begun) -> Attempt:
        """Wait for the end of an attempt. Afterwards its executor is current only if it may run another case."""
        case, handle, attempt = begun.history.case, begun.handle, begun.result()
        if attempt.outcome.is_red:
            self._red.add(handle.name)
            attempt = self._diagnostics.add(case, handle, attempt)
        if attempt.evidence.end.fixtures:
            self._journal.add_finding("teardown", "; ".join(attempt.evidence.end.fixtures), handle.cases)
        if attempt.evidence.zygote_lost:
            self.slot.drop_zygote()
        elif not attempt.usable:
            self._end_unfit(handle, attempt)
        attempt = self._monitor.after_attempt(case, handle, attempt)
        self.slot.release()
        return attempt

    def keep_files_of(self, executor: str) -> None:
        """Keep the files of an executor, although no attempt in it was red when it ended."""
        self._red.add(executor)

    def _end_unfit(self, handle: ExecutorHandle, attempt: Attempt) -> None:
        """End an executor that must not run another case.

        Where possible, request its exit, so that it tears down its fixtures.
        """
        seen = attempt.evidence
        reason = "unfit"
        if seen.stopped:
            reason = seen.stopped
        elif handle.exit_status is None and not seen.late:
            try:
                leave(handle, seen.limit, light=False)
            except StoppedError as error:
                reason = str(error)
            except ZygoteError:
                self.slot.drop_zygote()
                return
        # No other worker gets the device before it is known whether the device is sick.
        self.dispose(handle, "retired" if seen.leaving and handle.exit_status == 0 else reason, hold=True)

    def dispose(self, handle: ExecutorHandle, reason: str, *, hold: bool = False) -> None:
        """Release an executor. `hold`: keep its devices leased."""
        self.slot.dispose(handle, reason, keep_files=handle.name in self._red, hold=hold)
        self._session.apply(handle.end.session)
        if handle.end.error:
            self._journal.add_finding("teardown", handle.end.error, handle.cases)


def suspects_of_exit(lane: Lane, cases: Sequence[Case], limit: float) -> list[Case]:
    """Bisect these cases, whose common process ended badly. Return the single cases that remain.

    Whether one of them causes this alone is not known yet. `limit`: the most seconds for the end of a process. The lane
    has no executor. Raises NoDeviceError, StoppedError.
    """
    if len(cases) == 1:
        return [*cases]
    middle = len(cases) // 2
    halves = (cases[:middle], cases[middle:])
    return [case for half in halves if _ends_badly(lane, half, limit) for case in suspects_of_exit(lane, half, limit)]


def _ends_badly(lane: Lane, cases: Sequence[Case], limit: float) -> bool:
    """Run these cases in one process again. Return whether that process ended badly."""
    handle = lane.spawn(cases[0])
    for case, following in zip(cases, [*cases[1:], None], strict=True):
        after = None if following is None else following.id
        attempt = run_attempt(handle, CaseRequest(case, after), 0)
        if not attempt.usable:
            break
    good = handle.exit_status is None and leave(handle, limit, light=False)
    bad = (not good or handle.exit_status != 0) and handle.harness_error is None
    lane.slot.dispose(handle, "rehearsal")
    return bad
