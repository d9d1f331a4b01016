"""The supervisor: takes each case through gate, attempts and verdict to journal and pytest. It runs no case itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from harness.backends.table import BACKENDS
from harness.configuration.context import RunContext
from harness.core import clock
from harness.core.errors import NoDeviceError
from harness.core.outcome import Outcome, Ruling
from harness.core.text import format_exit_code
from harness.devices.device import Device
from harness.gating import policy as rules
from harness.gating.policy import Policy
from harness.journal.events import SessionProperty
from harness.journal.journal import Record
from harness.protocol import worker_messages
from harness.protocol.endings import SessionNews
from harness.scheduling.stop_request import StoppedError
from harness.supervisor import examination, pytest_reports
from harness.supervisor.ahead import Upcoming
from harness.supervisor.attempt import Attempt, leave
from harness.supervisor.attempts import Attempts
from harness.supervisor.burst import Begun
from harness.supervisor.case import Case, needs_own_process, takes_short_exit
from harness.supervisor.case_history import CaseHistory, attempt_result, message
from harness.supervisor.case_journal import CaseJournal
from harness.supervisor.case_preparation import CasePreparation
from harness.supervisor.device_monitor import DeviceMonitor
from harness.supervisor.device_pool import DevicePool
from harness.supervisor.diagnostics import Diagnostics
from harness.supervisor.executor_handle import Binding, ExecutorHandle
from harness.supervisor.executor_slot import ExecutorSlot
from harness.supervisor.exit_bisect import ExitBisect
from harness.supervisor.leak_confirmation import LeakConfirmation
from harness.supervisor.leak_search import LeakSearch
from harness.supervisor.lookahead import Lookahead, following_id
from harness.supervisor.search_time import SearchTime
from harness.zygote.client import ZygoteError


class Supervisor:
    """Runs the cases of one worker, one at a time."""

    def __init__(
        self,
        context: RunContext,
        policy: Policy,
        preparation: CasePreparation,
        *,
        worker: str,
        record: Record,
        late: Callable[[pytest.TestReport], None],
        slot: ExecutorSlot,
        pool: DevicePool,
        bind: Callable[[Sequence[Device]], Binding],
    ) -> None:
        """`late` gives pytest a further report of a case that was already reported.

        `bind` makes the binding of an executor.
        """
        self._context = context
        self._policy = policy
        self._preparation = preparation
        self._late = late
        self._slot = slot
        self._pool = pool
        self._each_fresh = context.isolation == "case"
        #: The cases that have a verdict, with the number of attempts at each, and the history of the current case.
        self._ran: dict[str, tuple[Case, int]] = {}
        self._history: CaseHistory | None = None
        #: pytest's session, known from the first case on.
        self._session: pytest.Session | None = None
        self._leaky: set[str] = set()
        self._durations: dict[str, float] = {}
        self._journal = CaseJournal(context, worker, record, verify=policy.verify)
        in_turn = self._each_fresh or policy.repeat > 1 or policy.verify > 0
        self._lookahead = Lookahead(slot, pool, self._journal, preparation.prepare, enabled=not in_turn)
        monitor = DeviceMonitor(
            pool,
            slot,
            bind,
            seed=context.seed,
            limit=examination.LIMIT * context.timeout_multiplier,
            retire=self.finish,
            add_finding=self.add_finding,
        )
        self._attempts = Attempts(
            slot,
            pool,
            monitor,
            Diagnostics(context, slot.activities, lambda: slot.stop.receive() is not None),
            self._lookahead,
            self._journal,
            bind=bind,
            apply_news=self._apply_news,
            # If each attempt has its own process, there are no levels of one process to compare.
            levels=policy.repeat > 1 and not self._each_fresh,
        )
        search_time = SearchTime(context.leak_search, context.timeout_multiplier)
        self._confirmation = LeakConfirmation(self, slot, record, search_time)
        self._exit_bisect = ExitBisect(self, slot, case_timeout=context.case_timeout)
        self._leak_search = LeakSearch(
            self, slot, record, search_time, duration=lambda case: self._durations.get(case, 0.0)
        )

    def run(self, item: pytest.Item, nextitem: pytest.Item | None, upcoming: Upcoming | None = None) -> None:
        """Take one case to its verdict and report it. Raises ZygoteError if no zygote is available.

        With `upcoming`, the next cases may begin while this one is reported. Call `run` for them next. After a request
        to stop, a case is `not_run` if it has not begun or does not finish within the grace period.
        """
        self._session = item.session
        begun = self._lookahead.take(item)
        # If pytest's next item differs from the announced one, the wrong fixtures are still set up.
        as_announced = begun is None or begun.nextitem is nextitem
        self._lookahead.upcoming = upcoming if as_announced else None
        # Check this before the decisions about a case, because they depend on its device.
        missing = "" if begun is not None else self.obstacle(1)
        case = self._preparation.prepare(item)
        if case.unmet is not None:
            self._journal.record_gated(case)
            pytest_reports.log(item, [pytest_reports.gated(item, case.unmet.text, case.objection)])
        elif missing := missing or (self.obstacle(case.devices) if case.devices > 1 else ""):
            self._not_run(case, missing)
        else:
            new = CaseHistory(case, earlier=self._lookahead.earlier_attempts(case))
            self._history = history = new if begun is None else begun.history
            try:
                self._run_attempts(history, nextitem, begun)
            except (NoDeviceError, StoppedError) as error:  # for example, another worker just drained the last device
                if not any(history.finals):
                    self._not_run(case, str(error))
                    return
            except BaseException:
                self._lookahead.clear()
                self._slot.abandon("interrupted")
                raise
            self._ran[case.id], self._history = (case, len(history.attempts)), None
            self._report(history)
            if not as_announced:
                self._lookahead.skip_next()
            self._pass_on_to_session(history)
        end = nextitem is None or not as_announced or self._slot.wanted or self._slot.stop.known is not None
        if end and not self._lookahead:
            self.finish()
        if nextitem is None:
            self.search_leaks()

    def _report(self, history: CaseHistory) -> None:
        """Report a case to pytest."""
        item = history.case.item
        for warning in (*history.decisive.warnings, *pytest_reports.lost_dependency(item, history.decisive)):
            pytest_reports.show_warning(item, warning)
        if history.outcome is Outcome.NOT_RUN:
            self._report_not_run(history.case, message(history.decisive))
        else:
            pytest_reports.log(item, pytest_reports.case_reports(history, partial(self._journal.reproduce, history)))

    def _pass_on_to_session(self, history: CaseHistory) -> None:
        """Give pytest's session what the case requested from its copy of the session."""
        for attempt in history.attempts:
            self._apply_news(attempt.evidence.end.session)
        interruption = history.attempts[-1].evidence.end.interruption
        if interruption.startswith("raised Exit"):
            history.case.item.session.shouldstop = interruption

    def _apply_news(self, news: SessionNews) -> None:
        """Apply the changes by code in an executor to pytest's session. Properties go into the journal."""
        if not news or self._session is None:
            return
        for name, reason in news.ends.items():
            setattr(self._session, name, reason)
        if news.failed:
            self._session.testsfailed += news.failed
            worker_messages.send_failed(self._session.config, news.failed)
        if news.properties:
            self._journal.record(
                *(SessionProperty(t=clock.now(), name=name, value=value) for name, value in news.properties)
            )

    @property
    def has_begun(self) -> bool:
        """Whether the executor was asked for cases that pytest has not asked for yet."""
        return bool(self._lookahead)

    def _not_run(self, case: Case, reason: str) -> None:
        self._journal.record_not_run(case, reason)
        self._report_not_run(case, reason)

    def _report_not_run(self, case: Case, reason: str) -> None:
        pytest_reports.log(case.item, [pytest_reports.skipped(case.item, outcome=Outcome.NOT_RUN, text=reason)])

    def finish(self) -> None:
        """Retire the current executor. If it ends badly, find the cases that cause it."""
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
                self._attempts.dispose(handle, str(error))
                return
            self._attempts.dispose(handle, "retired")
        if handle.lost:  # the zygote could not report the end in time
            self._add_unknown_end(handle, handle.lost)
            return
        if handle.harness_error is not None:
            return  # no evidence about its cases; `dispose` records a finding
        if not ended or handle.exit_status != 0:
            how = f"ended with {format_exit_code(handle.exit_status or 0)}" if ended else "did not end"
            self._exit_bisect.investigate(handle, f"executor {handle.name} {how} at interpreter exit")
        else:
            self._leak_search.suspect(handle)

    def search_leaks(self) -> None:
        """Search the executors that have grown. Call this when all cases of this worker have been reported."""
        self._leak_search.search(self._leaky)

    def _add_unknown_end(self, handle: ExecutorHandle, why: str) -> None:
        self.add_finding("zygote", f"the exit status of executor {handle.name} is unknown: {why}", handle.cases)

    def close(self) -> None:
        """Release everything, and kill the current executor."""
        if self._lookahead:
            stop = self._slot.stop.receive()
            self._lookahead.close("the session ended before the case finished" if stop is None else stop.reason)
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
                self._record(history, attempt)
                attempt = self._confirmation.confirm(history.case, self._run_alone(history))
            enough = self._policy.until_fail and attempt.outcome.is_red
            if last or enough:
                self.conclude(history, attempt)
            else:
                self._record(history, attempt, final=True)
            if attempt.outcome is Outcome.LEAKED:
                self.finish()  # no other case may run in a process with a leak
            if enough:
                return

    def _first_attempt(
        self, history: CaseHistory, nextitem: pytest.Item | None, begun: Begun | None, *, stay: bool
    ) -> Attempt:
        """Make an attempt, and a second one alone if the first is doubtful. Returns the one that counts.

        `stay`: the executor will be used again. The attempt may have `begun`.
        """
        case = history.case
        if begun is not None:
            return self._sure(history, self._attempts.end_of(history, begun))
        alone = self._each_fresh or needs_own_process(case)
        handle = self._slot.current
        if handle is not None and (alone or not self._slot.serves(self._pool.claim(case))):
            self.finish()
            handle = None
        if handle is None:
            handle = self.spawn(case)
        last = alone or (not stay and not handle.cases)
        light = (self._each_fresh or takes_short_exit(case)) and not BACKENDS[handle.binding.kind].hardware
        following = None if last else following_id(case, nextitem, self._preparation.prepare)
        # On a GPU, the two processes would use the device at the same time.
        ahead = light and stay and (nextitem is None or self._is_alike(case, nextitem))
        attempt = self._attempts.make(handle, history, following=following, leave=last, light=light, ahead=ahead)
        return self._sure(history, attempt)

    def _is_alike(self, case: Case, nextitem: pytest.Item) -> bool:
        """Return whether the next case will run, on as many devices, and in the same kind of executor."""
        following = self._preparation.prepare(nextitem)
        alike = following.devices == case.devices and needs_own_process(following) == needs_own_process(case)
        return following.unmet is None and alike

    def _sure(self, history: CaseHistory, first: Attempt) -> Attempt:
        """Return the attempt, or, if it is doubtful, another one alone."""
        case = history.case
        broke_after_others = first.outcome.breaks_executor and not first.alone
        doubtful = broke_after_others or (first.outcome.is_red and self._is_drained(first.devices))
        if not first.evidence.lost_by_harness and not doubtful:
            return first
        if missing := self.obstacle(case.devices):
            return replace(first, notes=(*first.notes, f"not run again alone: {missing}"))
        self._record(history, first)
        return self._run_alone(history)

    def _is_drained(self, uuids: Sequence[str]) -> bool:
        """Return whether any of these devices is drained."""
        return any(self._pool.drained(device) is not None for device in self._pool.known(uuids))

    def _verify(self, history: CaseHistory) -> None:
        """Make N attempts in one process, while it stays usable, and N attempts in fresh processes (``--verify``)."""
        self.finish()
        loops = self._policy.verify
        for attempt_number in range(1, 2 * loops + 1):
            if missing := self.obstacle(history.case.devices):
                raise NoDeviceError(missing)
            if attempt_number <= loops:
                handle = self._slot.current or self.spawn(history.case)
                last = attempt_number == loops
                attempt = self._attempts.make(handle, history, following=None, leave=last, light=False)
            else:
                attempt = self._run_alone(history)
            if attempt_number == 2 * loops:
                self.conclude(history, attempt)
            else:
                self._record(history, attempt)

    def _should_retry(self, history: CaseHistory, attempt: Attempt) -> bool:
        """Return whether ``--retries`` applies to this attempt: it is red, and no waiver expects that."""
        if not attempt.outcome.is_red or attempt.outcome is Outcome.UNEXPECTED_PASS:
            return False
        ruling = rules.rule_on_verdict(self._policy, attempt.outcome, [attempt_result(attempt)], history.case.waivers)
        return ruling is None or ruling.outcome.is_red

    def _run_alone(self, history: CaseHistory) -> Attempt:
        self.finish()
        return self._attempts.make(self.spawn(history.case), history, following=None, leave=True, light=False)

    # Verdicts

    def _record(self, history: CaseHistory, attempt: Attempt, *, final: bool = False) -> None:
        """Add an attempt that does not end its case to the history, and record it."""
        self._add(history, attempt, final=final)
        self._journal.record(self._journal.finish(history, attempt, final=final))

    def conclude(self, history: CaseHistory, attempt: Attempt) -> None:
        """Add the last attempt, apply the rules of the run, and record it. The next cases begin immediately."""
        self._add(history, attempt, final=True)
        if attempt.outcome is not Outcome.NOT_RUN:  # no rule applies to a case that was stopped
            history.ruling = self._ruling(history)
        following = self._lookahead.next_cases(history, attempt, partial(self.obstacle, 1))
        # One write: a case that has begun must be in the journal if this process dies now.
        self._journal.record(
            self._journal.finish(history, attempt, final=True), *self._lookahead.start_lines(following)
        )
        self._lookahead.begin(following)

    def _add(self, history: CaseHistory, attempt: Attempt, *, final: bool) -> None:
        history.add(attempt, final=final)
        self._durations[history.case.id] = attempt.duration
        if attempt.outcome is Outcome.LEAKED:
            self._leaky.add(history.case.id)
            self._attempts.keep_files_of(attempt.executor)
        self._journal.record_levels(history, attempt)

    def _ruling(self, history: CaseHistory) -> Ruling | None:
        loops = self._policy.verify
        if loops and not history.earlier:
            attempts = [attempt_result(attempt) for attempt in history.attempts]
            return rules.rule_on_verification(attempts[:loops], attempts[loops:], history.case.limit)
        return rules.rule_on_verdict(self._policy, history.settled, history.counting(), history.case.waivers)

    # Methods for investigations of an executor: `CaseRunner`

    def obstacle(self, count: int) -> str:
        return self._attempts.obstacle(count)

    def spawn(self, case: Case) -> ExecutorHandle:
        return self._attempts.spawn(case)

    def history_of(self, case_id: str) -> CaseHistory:
        """Return the history of a case, to add attempts to."""
        if self._history is not None and self._history.case.id == case_id:
            return self._history
        return CaseHistory(*self._ran[case_id])

    def run_alone(self, history: CaseHistory) -> Attempt:
        """Make one more recorded attempt at a case that already has a verdict. Raises NoDeviceError, StoppedError."""
        attempt = self._run_alone(history)
        if attempt.outcome is Outcome.NOT_RUN:  # an attempt that did not run is no evidence
            self.conclude(history, attempt)
            raise StoppedError(message(attempt))
        return attempt

    def report_late(self, history: CaseHistory) -> None:
        """Report a case to pytest as red, after pytest got another outcome for it."""
        if history.outcome.is_red and history is not self._history:
            self._late(pytest_reports.failure_report(history, "teardown", self._journal.reproduce(history)))

    def reproduce_leak(self, cases: Sequence[str], times: int, handle: ExecutorHandle) -> str:
        return self._journal.reproduce_leak([self.history_of(case).case for case in cases], times, handle)

    def add_finding(self, kind: str, text: str, cases: Sequence[str], reproduce: str | None = None) -> None:
        self._journal.add_finding(kind, text, cases, reproduce)
