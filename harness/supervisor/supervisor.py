"""The supervisor: takes each case through gate, attempts and verdict to journal and pytest. It runs no case itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.backends.table import BACKENDS
from harness.configuration.context import RunContext
from harness.core.errors import NoDeviceError
from harness.core.outcome import Outcome, Ruling
from harness.core.text import exit_text
from harness.devices.device import Device
from harness.fixtures import kept
from harness.gating import policy as rules
from harness.gating.policy import Policy
from harness.scheduling.stop_request import StoppedError
from harness.supervisor import examination, pytest_reports, recorded_properties
from harness.supervisor.ahead import Ahead, Upcoming
from harness.supervisor.attempt import Attempt, CaseRequest, RunningAttempt, leave
from harness.supervisor.burst import MOST, Begun, Burst
from harness.supervisor.case import Case, RecordAll, may_follow, needs_own_process, ruling_line
from harness.supervisor.case_history import CaseHistory, message, result
from harness.supervisor.device_monitor import DeviceMonitor
from harness.supervisor.device_pool import DevicePool
from harness.supervisor.diagnostics import Diagnostics
from harness.supervisor.executor_handle import Binding, ExecutorHandle, device_variables
from harness.supervisor.executor_slot import ExecutorSlot
from harness.supervisor.exit_bisect import ExitBisect
from harness.supervisor.leak_confirmation import LeakConfirmation
from harness.supervisor.leak_search import LeakSearch
from harness.supervisor.search_time import SearchTime
from harness.zygote.client import ZygoteError


class Supervisor:
    """Runs the cases of one worker, one at a time."""

    def __init__(
        self,
        context: RunContext,
        policy: Policy,
        *,
        worker: str,
        record: RecordAll,
        prepare: Callable[[pytest.Item], Case],
        late: Callable[[pytest.TestReport], None],
        slot: ExecutorSlot,
        pool: DevicePool,
        bind: Callable[[Sequence[Device]], Binding],
    ) -> None:
        """`prepare` makes the decisions about an item. They must not change while the device in use is the same.

        `late` gives pytest a report of a case that was reported before. `bind` makes the binding of an executor.
        """
        self._context = context
        self._policy = policy
        self._worker = worker
        self._record = record
        self._prepare = prepare
        self._late = late
        self._slot = slot
        self._pool = pool
        self._bind = bind
        self._each_fresh = context.isolation == "case"
        #: The cases that have a verdict, with the number of attempts at each, and the history of the current case.
        self._ran: dict[str, tuple[Case, int]] = {}
        self._history: CaseHistory | None = None
        self._upcoming: Upcoming | None = None
        #: pytest's session, as of the first case.
        self._session: pytest.Session | None = None
        #: The cases of the requests that the executor has, in order. Of the first one the `start` line is written.
        self._begun: deque[Begun] = deque()
        #: How many cases the next such request has: fewer when the last one was not done in full.
        self._many = 1
        #: Cases that began and were not asked for next.
        self._skipped: set[str] = set()
        self._red: set[str] = set()
        self._leaky: set[str] = set()
        self._durations: dict[str, float] = {}
        self._monitor = DeviceMonitor(
            pool,
            slot,
            bind,
            seed=context.seed,
            limit=examination.LIMIT * context.timeout_multiplier,
            retire=self.finish,
            add_finding=self.add_finding,
        )
        self._diagnostics = Diagnostics(context, slot.activities, lambda: slot.stop.heard() is not None)
        search_time = SearchTime(context.leak_search, context.timeout_multiplier)
        self._confirmation = LeakConfirmation(self, slot, record, search_time)
        self._exit_bisect = ExitBisect(self, slot, case_timeout=context.case_timeout)
        self._leak_search = LeakSearch(
            self, slot, record, search_time, duration=lambda case: self._durations.get(case, 0.0)
        )

    def run(self, item: pytest.Item, nextitem: pytest.Item | None, upcoming: Upcoming | None = None) -> None:
        """Take one case to its verdict and report it. Raises ZygoteError if no zygote is available.

        With `upcoming`, the next cases may begin while this one is reported; call `run` for them next.
        After a request to stop, a case is `not_run` if it has not begun or does not finish within the grace period.
        """
        self._session = item.session
        begun = self._begun.popleft() if self._begun else None
        if begun is not None and begun.history.case.item is not item:
            self._skip(begun)
            begun = None
        # Otherwise fixtures are still set up that the next case does not use, or the other way round.
        as_told = begun is None or begun.nextitem is nextitem
        self._upcoming = upcoming if as_told else None
        # Before the decisions about a case, because they depend on its device.
        missing = "" if begun is not None else self.obstacle(1)
        case = self._prepare(item)
        if case.unmet is not None:
            self._record(case.gated(case.unmet, self._worker))
            pytest_reports.log(item, [pytest_reports.gated(item, case.unmet.text, case.objection)])
        elif missing := missing or (self.obstacle(case.devices) if case.devices > 1 else ""):
            self._not_run(case, missing)
        else:
            new = CaseHistory(case, earlier=1 if case.id in self._skipped else 0)
            self._history = history = new if begun is None else begun.history
            try:
                self._run_attempts(history, nextitem, begun)
            except (NoDeviceError, StoppedError) as error:  # for example, another worker just drained the last device
                if not any(history.finals):
                    self._not_run(case, str(error))
                    return
            except BaseException:
                self._begun.clear()
                self._slot.abandon("interrupted")
                raise
            self._ran[case.id], self._history = (case, len(history.attempts)), None
            for warning in (*history.decisive.warnings, *pytest_reports.lost_dependency(item, history.decisive)):
                pytest_reports.show_warning(item, warning)
            if history.outcome is Outcome.NOT_RUN:
                self._report_not_run(case, message(history.decisive))
            else:
                pytest_reports.log(item, pytest_reports.shown(history, partial(self._reproduce, history)))
            if not as_told and self._begun:  # pytest will not ask for it next
                self._skip(self._begun.popleft())
            for attempt in history.attempts:
                self._tell_session(attempt.evidence.session)
            interruption = history.attempts[-1].evidence.interruption
            if interruption.startswith("raised Exit"):
                item.session.shouldstop = interruption
        end = nextitem is None or not as_told or self._slot.wanted or self._slot.stop.known is not None
        if end and not self._begun:
            self.finish()
        if nextitem is None:
            self.search_leaks()

    def _tell_session(self, told: Mapping[str, str]) -> None:
        """Tell pytest's session what code in an executor told its copy: why to fail, or to stop."""
        for name, reason in told.items() if self._session is not None else ():
            setattr(self._session, name, reason)

    @property
    def has_begun(self) -> bool:
        """Whether the executor was asked for cases that pytest has not asked for yet."""
        return bool(self._begun)

    def _not_run(self, case: Case, reason: str) -> None:
        self._record(case.not_run(reason, self._worker))
        self._report_not_run(case, reason)

    def _report_not_run(self, case: Case, reason: str) -> None:
        pytest_reports.log(case.item, [pytest_reports.skipped(case.item, outcome=Outcome.NOT_RUN, text=reason)])

    def finish(self) -> None:
        """Retire the current executor. If it ends badly, find the cases that are the cause."""
        handle = self._slot.current
        if handle is None:
            return
        with self._slot.activities.doing(f"ending executor {handle.name}"):
            try:
                ended = leave(handle, self._context.case_timeout, light=False)
            except ZygoteError as error:
                self._slot.drop_zygote()
                self._add_unknown_end(handle, str(error))
                return
            except StoppedError as error:
                self._dispose(handle, str(error))
                return
            self._dispose(handle, "retired")
        if handle.lost:  # it did not end in time since its zygote could not tell
            self._add_unknown_end(handle, handle.lost)
            return
        if handle.harness_error is not None:
            return  # no evidence about its cases; `dispose` records a finding
        if not ended or handle.exit_status != 0:
            how = f"ended with {exit_text(handle.exit_status or 0)}" if ended else "did not end"
            self._exit_bisect.investigate(handle, f"executor {handle.name} {how} at interpreter exit")
        else:
            self._leak_search.suspect(handle)

    def search_leaks(self) -> None:
        """Look into the executors that have grown. Call it when all cases of this worker have been reported."""
        self._leak_search.search(self._leaky)

    def _add_unknown_end(self, handle: ExecutorHandle, why: str) -> None:
        self.add_finding("zygote", f"the exit status of executor {handle.name} is unknown: {why}", handle.cases)

    def close(self) -> None:
        """Release everything, and kill the current executor."""
        begun = self._begun.popleft() if self._begun else None
        if begun is not None:
            stop = self._slot.stop.heard()
            reason = "the session ended before the case finished" if stop is None else stop.reason
            self._abandon(begun, reason, Outcome.NOT_RUN, final=True)
        self._leak_search.close("the session ended before the search")
        self._slot.close("the session ended")

    # Attempts

    def _run_attempts(self, history: CaseHistory, nextitem: pytest.Item | None, begun: Begun | None) -> None:
        """Make all attempts that the policy asks for. The first may have `begun`."""
        if self._policy.verify:
            self._verify(history)
            return
        for repetition in range(1, self._policy.repeat + 1):
            if history.attempts and self.obstacle(history.case.devices):
                return
            last = repetition == self._policy.repeat
            following = nextitem if last else None
            first = self._first_attempt(history, following, begun, stay=nextitem is not None or not last)
            attempt = self._confirmation.confirm(history.case, first)
            begun = None
            for _ in range(self._policy.retries):
                if not self._should_retry(history, attempt) or self.obstacle(history.case.devices):
                    break
                self._record_finish(history, attempt, final=False)
                attempt = self._confirmation.confirm(history.case, self._run_alone(history))
            enough = self._policy.until_fail and attempt.outcome.is_red
            self._record_finish(history, attempt, final=True, last=last or enough)
            if attempt.outcome is Outcome.LEAKED:
                self.finish()  # no other case may run in a process with a leak
            if enough:
                return

    def _first_attempt(
        self, history: CaseHistory, nextitem: pytest.Item | None, begun: Begun | None, *, stay: bool
    ) -> Attempt:
        """Make an attempt, and a second one alone if the first is doubtful. Returns the one that counts.

        `stay`: the executor will be needed again. The attempt may have `begun`.
        """
        case = history.case
        if begun is not None:
            return self._sure(history, self._ended(history, begun))
        if needs_own_process(case) and not self._each_fresh:
            return self._run_alone(history)
        handle = self._slot.current
        if handle is not None and (self._each_fresh or not self._slot.serves(self._pool.claim(case))):
            self.finish()
            handle = None
        if handle is None:
            handle = self.spawn(case)
        last = self._each_fresh or (not stay and not handle.cases)
        light = self._each_fresh and not BACKENDS[handle.binding.kind].hardware
        following = None if last else self._following(case, nextitem)
        # A GPU would serve two processes at once.
        ahead = light and stay and (nextitem is None or self._is_alike(case, nextitem))
        attempt = self._attempt(handle, history, following=following, leave=last, light=light, ahead=ahead)
        return self._sure(history, attempt)

    def _sure(self, history: CaseHistory, first: Attempt) -> Attempt:
        """Returns the attempt, or another one alone if it is doubtful."""
        case = history.case
        broke_in_company = first.outcome.breaks_executor and not first.alone
        doubtful = broke_in_company or (first.outcome.is_red and self._is_drained(first.devices))
        if not first.evidence.lost_by_harness and not doubtful:
            return first
        if missing := self.obstacle(case.devices):
            return replace(first, notes=(*first.notes, f"not run again alone: {missing}"))
        self._record_finish(history, first, final=False)
        return self._run_alone(history)

    def _is_drained(self, uuids: Sequence[str]) -> bool:
        """Returns whether any of these devices is drained."""
        return any(self._pool.drained(device) is not None for device in self._pool.known(uuids))

    def _verify(self, history: CaseHistory) -> None:
        """``--verify``: make N attempts in one process, while it stays usable, and N attempts in fresh processes."""
        self.finish()
        loops = self._policy.verify
        for attempt_number in range(1, 2 * loops + 1):
            if missing := self.obstacle(history.case.devices):
                raise NoDeviceError(missing)
            if attempt_number <= loops:
                handle = self._slot.current or self.spawn(history.case)
                attempt = self._attempt(handle, history, following=None, leave=attempt_number == loops, light=False)
            else:
                attempt = self._run_alone(history)
            self._record_finish(history, attempt, final=attempt_number == 2 * loops)

    def _should_retry(self, history: CaseHistory, attempt: Attempt) -> bool:
        """Whether ``--retries`` applies to this attempt: it is red, and no waiver expects that."""
        if not attempt.outcome.is_red or attempt.outcome is Outcome.UNEXPECTED_PASS:
            return False
        ruling = rules.on_verdict(self._policy, attempt.outcome, [result(attempt)], history.case.waivers)
        return ruling is None or ruling.outcome.is_red

    def run_alone(self, history: CaseHistory) -> Attempt:
        """Make one more recorded attempt at a case that already has a verdict. Raises NoDeviceError, StoppedError."""
        attempt = self._run_alone(history)
        if attempt.outcome is Outcome.NOT_RUN:  # no evidence
            self._record_finish(history, attempt, final=True)
            raise StoppedError(message(attempt))
        return attempt

    def _run_alone(self, history: CaseHistory) -> Attempt:
        self.finish()
        return self._attempt(self.spawn(history.case), history, following=None, leave=True, light=False)

    def spawn(self, case: Case) -> ExecutorHandle:
        """Start an executor on healthy devices. Raises NoDeviceError if none are left, StoppedError."""
        while True:
            claim = self._pool.claim(case)
            devices = self._pool.ordered(self._slot.lease(claim))
            self._monitor.examine_new(devices)
            if all(self._pool.drained(device) is None for device in devices):
                return self._slot.spawn(self._bind(devices), claim)
            self._slot.release()
            if missing := self.obstacle(case.devices):
                raise NoDeviceError(missing)

    def _attempt(
        self,
        handle: ExecutorHandle,
        history: CaseHistory,
        *,
        following: str | None,
        leave: bool,
        light: bool,
        ahead: bool = False,
    ) -> Attempt:
        """Make one recorded attempt. Afterwards the executor is current only if it may run another case.

        With `ahead`, the executor of the next case starts meanwhile.
        """
        case, number = history.case, history.next_number
        self._record(self._start_line(handle, history, alone=not handle.cases))
        # With a process for each attempt, levels of the same process cannot be compared.
        levels = self._policy.repeat > 1 and not self._each_fresh
        request = CaseRequest(case.item, case.id, case.seed, case.limit, following, leave, light, levels)
        running = RunningAttempt(handle, request, number)
        if ahead:
            self._slot.prepare(handle.binding)
        attempt = self._ended(history, running)
        if not attempt.evidence.is_plain_pass or attempt.suspicions:
            self._slot.drop_spare()  # the next case begins with nothing that was there beside this one
        return attempt

    def _ended(self, history: CaseHistory, running: RunningAttempt | Begun) -> Attempt:
        """Wait for the end of an attempt. Afterwards its executor is current only if it may run another case."""
        handle, attempt = running.handle, running.result()
        if isinstance(running, Begun) and running.burst.over:
            self._many = min(MOST, 2 * running.burst.ran)
            while self._begun and self._begun[-1].burst is running.burst and self._begun[-1].place >= running.burst.ran:
                self._begun.pop()  # it has not begun: the case before was not plain, or the time was over
        if attempt.outcome.is_red:
            self._red.add(handle.name)
            attempt = self._diagnostics.add(history.case, handle, attempt)
        if attempt.evidence.zygote_lost:
            self._slot.drop_zygote()
        elif not attempt.usable:
            self._end_unfit(handle, attempt)
        attempt = self._monitor.after_attempt(history.case, handle, attempt)
        self._slot.release()
        return attempt

    def _start_line(
        self, handle: ExecutorHandle, history: CaseHistory, *, alone: bool, at: float | None = None
    ) -> dict[str, Any]:
        """Returns the `start` line of a case. `at`: when it began, if that was before now."""
        line = history.case.line(
            "start",
            attempt=history.next_number,
            alone=alone,
            worker=self._worker,
            executor=handle.name,
            devices=handle.binding.devices,
            pid=handle.pid,
        )
        return line if at is None else {**line, "t": at}

    # The next cases, which may begin while the last ones are reported

    def _may_begin(self, history: CaseHistory, attempt: Attempt) -> list[tuple[CaseHistory, Ahead]]:
        """Returns the next cases, with empty histories, that may begin before the last attempt is reported.

        They may if nothing that follows from the attempts before can decide otherwise: they are not red, the executor
        can run further cases, and nobody wants the run to stop or the device.
        """
        handle, upcoming = self._slot.current, self._upcoming
        if upcoming is None or handle is None or handle.name != attempt.executor or not attempt.usable:
            return []
        if history.outcome.is_red or self._each_fresh or self._policy.repeat > 1 or self._policy.verify:
            return []
        before = history.case
        if self._begun:  # of these, all but the last have passed
            last = self._begun[-1].burst.last
            if last is None or not last.usable or not last.evidence.is_plain_pass:
                return []
            before = self._begun[-1].history.case
        # What a GPU reports between two cases belongs to the first of them.
        if self._pool.monitored or self._slot.wanted or self.obstacle(1):
            return []
        found: list[tuple[CaseHistory, Ahead]] = []
        for ahead in upcoming(len(self._begun), self._many):
            case = self._prepare(ahead.item)
            # A waiver may make a case red that has passed.
            if not may_follow(case, before) or (found and case.waivers) or case.id in self._skipped:
                break
            found.append((CaseHistory(case), ahead))
            before = case
            if case.waivers:
                break
        return found

    def _begin(self, cases: Sequence[tuple[CaseHistory, Ahead]]) -> None:
        """Have the executor run these cases, one after the other."""
        assert self._slot.current is not None
        requests = []
        for history, ahead in cases:
            case = history.case
            following = self._following(case, ahead.nextitem)
            requests.append(CaseRequest(case.item, case.id, case.seed, case.limit, following))
        burst = Burst(self._slot.current, requests, [history.next_number for history, _ in cases])
        self._begun += [Begun(history, burst, place, ahead.nextitem) for place, (history, ahead) in enumerate(cases)]

    def _skip(self, begun: Begun) -> None:
        """Pytest asks for another case than for one that has begun. Its next attempt is the one that counts."""
        self._abandon(begun, "pytest asked for another case", Outcome.LOST, final=False)
        self._skipped.add(begun.history.case.id)

    def _abandon(self, begun: Begun, reason: str, outcome: Outcome, *, final: bool) -> None:
        """End the executor of a case that has begun and that pytest does not ask for, and record the `outcome`.

        Of the cases behind it, which may have begun, nothing is recorded.
        """
        handle, history = begun.handle, begun.history
        self._begun.clear()
        line = history.case.line(
            "finish",
            attempt=history.next_number,
            alone=len(handle.cases) == 1,
            worker=self._worker,
            executor=handle.name,
            devices=handle.binding.devices,
            outcome=outcome.value,
            final=final,
            duration=0.0,
            message=reason,
        )
        self._slot.abandon(reason)
        self._record(line)

    def _following(self, case: Case, nextitem: pytest.Item | None) -> str | None:
        """Returns the id of the next case if it will run in the same executor, so that shared fixtures are kept."""
        if nextitem is None:
            return None
        following = self._prepare(nextitem)
        return following.id if may_follow(following, case) else None

    def _is_alike(self, case: Case, nextitem: pytest.Item) -> bool:
        """Whether the next case will run, and on as many devices."""
        following = self._prepare(nextitem)
        return following.unmet is None and following.devices == case.devices

    def _end_unfit(self, handle: ExecutorHandle, attempt: Attempt) -> None:
        """End an executor that must not run another case. Ask it first, so that it can tear down its fixtures."""
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
        self._dispose(handle, "retired" if seen.leaving and handle.exit_status == 0 else reason, hold=True)

    def _dispose(self, handle: ExecutorHandle, reason: str, *, hold: bool = False) -> None:
        self._slot.dispose(handle, reason, keep_files=handle.name in self._red, hold=hold)
        self._tell_session(handle.told_session)
        if handle.teardown_error:
            self.add_finding("teardown", handle.teardown_error, handle.cases)

    def history_of(self, case_id: str) -> CaseHistory:
        """Returns the history of a case, to add attempts to."""
        if self._history is not None and self._history.case.id == case_id:
            return self._history
        return CaseHistory(*self._ran[case_id])

    def obstacle(self, count: int) -> str:
        """Returns why no case can run: a request to stop, or fewer than `count` healthy devices; or an empty string.

        Devices that this worker has not examined yet are examined.
        """
        try:
            self._slot.stop.refuse()
            return self._monitor.missing(count)
        except StoppedError as error:
            return str(error)

    def conclude(self, history: CaseHistory, attempt: Attempt) -> None:
        """Make an attempt the final one, and record it."""
        self._record_finish(history, attempt, final=True)

    def report_late(self, history: CaseHistory) -> None:
        """Report a case to pytest as red, after pytest got another outcome for it."""
        if history.outcome.is_red and history is not self._history:
            self._late(pytest_reports.failure(history, "teardown", self._reproduce(history)))

    # Journal

    def _record_finish(self, history: CaseHistory, attempt: Attempt, *, final: bool, last: bool = True) -> None:
        """Add an attempt to the history and record it. With the `last` final one, apply the rules of the run."""
        history.add(attempt, final=final)
        self._durations[history.case.id] = attempt.duration
        if attempt.outcome is Outcome.LEAKED:
            self._leaky.add(history.case.id)
            self._red.add(attempt.executor)
        if final and last and attempt.outcome is not Outcome.NOT_RUN:  # no rule applies to a case that was stopped
            history.ruling = self._ruling(history)
        if attempt.levels:
            line = {"event": "levels", "case": history.case.id, "attempt": attempt.number, "executor": attempt.executor}
            self._record({**line, "values": dict(attempt.levels)})
        lines = [self._finish_line(history, attempt, final=final)]
        more = self._may_begin(history, attempt) if final and last and self._is_time_for_more else []
        if self._begun:
            first = self._begun[0]
            lines.append(self._start_line(first.handle, first.history, alone=False, at=first.at))
        elif more:
            assert self._slot.current is not None
            lines.append(self._start_line(self._slot.current, more[0][0], alone=False))
        self._record(*lines)
        if more:
            self._begin(more)

    @property
    def _is_time_for_more(self) -> bool:
        """Whether the executor waits for a request, or will soon."""
        return not self._begun or self._begun[-1].burst.over

    def _finish_line(self, history: CaseHistory, attempt: Attempt, *, final: bool) -> dict[str, Any]:
        return history.case.line(
            "finish",
            attempt=attempt.number,
            alone=attempt.alone,
            worker=self._worker,
            executor=attempt.executor,
            devices=attempt.devices,
            outcome=attempt.outcome.value,
            final=final,
            duration=round(attempt.duration, 6),
            phases={report.when: report.duration for report in attempt.reports},
            message=history.message,
            detail=pytest_reports.detail(attempt),
            stdout=attempt.stdout,
            stderr=attempt.stderr,
            log=pytest_reports.log_text(attempt.reports),
            exit_status=attempt.evidence.exit_status,
            struck=dict(attempt.struck) or None,
            keeps=keeps.text if (keeps := kept(history.case.item)) is not None else "",
            t=attempt.ended,
            notes=[*attempt.notes, *pytest_reports.where_files_are(attempt)],
            properties=recorded_properties.texts(attempt.reports),
            reproduce=self._reproduce(history) if attempt.outcome.is_red or history.outcome.is_red else None,
            ruling=ruling_line(history.ruling),
        )

    def _ruling(self, history: CaseHistory) -> Ruling | None:
        loops = self._policy.verify
        if loops and not history.earlier:
            attempts = [result(attempt) for attempt in history.attempts]
            return rules.on_verification(attempts[:loops], attempts[loops:], history.case.limit)
        return rules.on_verdict(self._policy, history.settled, history.counting(), history.case.waivers)

    def add_finding(self, kind: str, text: str, cases: Sequence[str], reproduce: str | None = None) -> None:
        """Record a finding: a fact that cannot be attributed to a single case."""
        line = {"event": "finding", "kind": kind, "message": text, "cases": list(cases)}
        self._record(line if reproduce is None else {**line, "reproduce": reproduce})

    def reproduce_leak(self, cases: Sequence[str], times: int, handle: ExecutorHandle) -> str:
        """Returns a shell command that runs each case `times` times in one process, on the devices of `handle`."""
        located = [(case_id, self.history_of(case_id).case.item.path) for case_id in cases]
        listed = Path(self._context.run_dir) / "cases" / f"{handle.name}-{len(cases)}.txt"
        return self._context.reproduce_leak(located, times, device_variables(handle.binding.environment), listed)

    def _reproduce(self, history: CaseHistory) -> str:
        if history.decisive.reproduce:
            return history.decisive.reproduce
        case, environment = history.case, history.decisive.environment
        return self._context.reproduce(case.id, case.item.path, device_variables(environment))
