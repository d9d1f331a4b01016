"""The attempts of a worker: each case runs in an executor, which is kept, ended or replaced afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.core.errors import NoDeviceError
from harness.devices.device import Device
from harness.protocol.endings import SessionNews
from harness.scheduling.stop_request import StoppedError
from harness.supervisor.attempt import Attempt, CaseRequest, RunningAttempt, leave
from harness.supervisor.burst import Begun
from harness.supervisor.case import Case, needs_own_process
from harness.supervisor.case_history import CaseHistory
from harness.supervisor.case_journal import CaseJournal
from harness.supervisor.device_monitor import DeviceMonitor
from harness.supervisor.device_pool import DevicePool
from harness.supervisor.diagnostics import Diagnostics
from harness.supervisor.executor_handle import Binding, ExecutorHandle
from harness.supervisor.executor_slot import ExecutorSlot
from harness.supervisor.lookahead import Lookahead
from harness.zygote.client import ZygoteError


class Attempts:
    """Makes single attempts, each recorded with a `start` line. The supervisor decides their outcome."""

    def __init__(
        self,
        slot: ExecutorSlot,
        pool: DevicePool,
        monitor: DeviceMonitor,
        diagnostics: Diagnostics,
        lookahead: Lookahead,
        journal: CaseJournal,
        *,
        bind: Callable[[Sequence[Device]], Binding],
        apply_news: Callable[[SessionNews], None],
        levels: bool,
    ) -> None:
        """`bind` makes the binding of an executor. `apply_news` applies news to pytest's session.

        `levels`: read the meters after each attempt.
        """
        self._slot = slot
        self._pool = pool
        self._monitor = monitor
        self._diagnostics = diagnostics
        self._lookahead = lookahead
        self._journal = journal
        self._bind = bind
        self._apply_news = apply_news
        self._levels = levels
        #: Executors whose files are kept, because a case in them was red.
        self._red: set[str] = set()

    def obstacle(self, count: int) -> str:
        """Return why no case can run: a request to stop, or fewer than `count` healthy devices; or an empty string.

        Devices that this worker has not examined yet are examined.
        """
        try:
            self._slot.stop.refuse()
            return self._monitor.missing(count)
        except StoppedError as error:
            return str(error)

    def spawn(self, case: Case) -> ExecutorHandle:
        """Start an executor on healthy devices. Raises NoDeviceError if none are left, StoppedError."""
        while True:
            claim = self._pool.claim(case)
            devices = self._pool.ordered(self._slot.lease(claim))
            self._monitor.examine_new(devices)
            if all(self._pool.drained(device) is None for device in devices):
                binding = replace(self._bind(devices), unused=needs_own_process(case))
                return self._slot.spawn(binding, claim)
            self._slot.release()
            if missing := self.obstacle(case.devices):
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
        case, number = history.case, history.next_number
        self._journal.record(self._journal.start(history, handle, alone=not handle.cases))
        request = CaseRequest(case.item, case.id, case.seed, case.limit, following, leave, light, self._levels)
        running = RunningAttempt(handle, request, number)
        if ahead:
            self._slot.prepare(handle.binding)
        attempt = self.end_of(history, running)
        if not attempt.evidence.is_plain_pass or attempt.suspicions:
            self._slot.drop_spare()  # it was alive during this attempt, which may have harmed it
        return attempt

    def end_of(self, history: CaseHistory, running: RunningAttempt | Begun) -> Attempt:
        """Wait for the end of an attempt. Afterwards its executor is current only if it may run another case."""
        handle, attempt = running.handle, running.result()
        if isinstance(running, Begun):
            self._lookahead.note_end(running)
        if attempt.outcome.is_red:
            self._red.add(handle.name)
            attempt = self._diagnostics.add(history.case, handle, attempt)
        if attempt.evidence.end.fixtures:
            self._journal.add_finding("teardown", "; ".join(attempt.evidence.end.fixtures), handle.cases)
        if attempt.evidence.zygote_lost:
            self._slot.drop_zygote()
        elif not attempt.usable:
            self._end_unfit(handle, attempt)
        attempt = self._monitor.after_attempt(history.case, handle, attempt)
        self._slot.release()
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
                self._slot.drop_zygote()
                return
        # No other worker gets the device before it is known whether the device is sick.
        self.dispose(handle, "retired" if seen.leaving and handle.exit_status == 0 else reason, hold=True)

    def dispose(self, handle: ExecutorHandle, reason: str, *, hold: bool = False) -> None:
        """Release an executor. `hold`: keep its devices leased."""
        self._slot.dispose(handle, reason, keep_files=handle.name in self._red, hold=hold)
        self._apply_news(handle.end.session)
        if handle.end.error:
            self._journal.add_finding("teardown", handle.end.error, handle.cases)
