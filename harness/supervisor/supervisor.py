"""The supervisor: takes each case through gate, attempts and verdict to journal and pytest. It runs no case itself.

It is the only part of a worker that decides. The lane makes attempts; the investigations, of leaks and of processes
that end badly, return the cases to run once more, and the supervisor runs them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.backends.table import BACKENDS
from harness.configuration.context import RunContext
from harness.core.errors import NoDeviceError
from harness.core.outcome import Outcome, Ruling
from harness.core.text import format_count, format_exit_code
from harness.gating import policy as rules
from harness.gating.policy import Policy
from harness.scheduling.stop_request import StoppedError
from harness.supervisor.attempt import Attempt, CaseHistory, attempt_result, leave, message
from harness.supervisor.burst import Begun
from harness.supervisor.case import Case, needs_own_process, takes_short_exit
from harness.supervisor.case_preparation import CasePreparation
from harness.supervisor.case_reports import CaseLines, PytestSession
from harness.supervisor.executor_handle import ExecutorHandle
from harness.supervisor.lane import Lane, suspects_of_exit
from harness.supervisor.leak_confirmation import LeakConfirmation, SearchTime
from harness.supervisor.leak_search import Accusation, LeakSearch, RanCase
from harness.supervisor.lookahead import Lookahead, RunOrder, following_id
from harness.supervisor.worker_journal import WorkerJournal
from harness.zygote.client import ZygoteError


class Supervisor:
    """Runs the cases of one worker, one at a time."""

    def __init__(
        self,
        context: RunContext,
        policy: Policy,
        preparation: CasePreparation,
        lane: Lane,
        session: PytestSession,
        lines: CaseLines,
        journal: WorkerJournal,
    ) -> None:
        self._context = context
        self._policy = policy
        self._preparation = preparation
        self._lane = lane
        self._slot = lane.slot
        self._session = session
        self._lines = lines
        self._journal = journal
        self._each_fresh = context.isolation == "case"
        #: The cases that have a verdict, and the history of the current case.
        self._ran: dict[str, RanCase] = {}
        self._history: CaseHistory | None = None
        in_turn = self._each_fresh or policy.repeat > 1 or policy.verify > 0
        self._lookahead = Lookahead(lane, preparation, lines, journal, enabled=not in_turn)
        search_time = SearchTime(context.leak_search, context.timeout_multiplier)
        self._confirmation = LeakConfirmation(lane, journal, search_time)
        self._leak_search = LeakSearch(lane, lines, journal, search_time)

    def run(self, item: pytest.Item, nextitem: pytest.Item | None, order: RunOrder | None = None) -> None:
        """Take one case to its verdict and report it. Raises ZygoteError if no zygote is available.

        With `order`, the next cases may begin while this one is reported. Call `run` for them next. After a request
        to stop, a case is `not_run` if it has not begun or does not finish within the grace period.
        """
        self._session.begin_case(item)
        begun = self._lookahead.take(item)
        # If pytest's next item differs from the announced one, the wrong fixtures are still set up.
        as_announced = begun is None or begun.nextitem is nextitem
        self._lookahead.order = order if as_announced else None
        # Check this before the decisions about a case, because they depend on its device.
        missing = "" if begun is not None else self._obstacle(1)
        case = self._preparation.prepare(item)
        if case.unmet is not None:
            self._journal.record(case.gated(case.unmet, self._journal.worker))
            self._session.report_gated(case)
        elif missing := missing or (self._obstacle(case.devices) if case.devices > 1 else ""):
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
            self._history = None
            self._session.report(history)
            if not as_announced:
                self._lookahead.skip_next()
            self._session.apply_attempts(history)
        end = nextitem is None or not as_announced or self._slot.wanted or self._slot.stop.known is not None
        if end and not self._lookahead:
            self.finish()
        if nextitem is None:
            self.search_leaks()

    def _obstacle(self, count: int) -> str:
        """Return why no case can run on `count` healthy devices, or an empty string.

        Devices that this worker has not examined yet are examined. For that, the current executor may end.
        """
        while (missing := self._lane.missing(count)) is None:
            self.finish()
        return missing

    @property
    def has_begun(self) -> bool:
        """Whether the executor was asked for cases that pytest has not asked for yet."""
        return bool(self._lookahead)

    def _not_run(self, case: Case, reason: str) -> None:
        self._journal.record(case.not_run(reason, self._journal.worker))
        self._session.report_not_run(case, reason)

    def finish(self) -> None:
        """Retire the current executor. If it ends badly, find the cases that cause it."""
        handle = self._slot.current
        if handle is None:
            return
        with self._journal.doing(f"ending executor {handle.name}"):
            try:
                ended = leave(handle, self._context.case_timeout, light=False)
            except ZygoteError as error:
                self._slot.drop_zygote()
                self._add_unknown_end(handle, str(error))
                return
            except StoppedError as error:
                self._lane.dispose(handle, str(error))
                return
            self._lane.dispose(handle, "retired")
        if handle.lost:  # the zygote could not report the end in time
            self._add_unknown_end(handle, handle.lost)
            return
        if handle.harness_error is not None:
            return  # no evidence about its cases; `dispose` records a finding
        if not ended or handle.exit_status != 0:
            how = f"ended with {format_exit_code(handle.exit_status or 0)}" if ended else "did not end"
            self._investigate_exit(handle, f"executor {handle.name} {how} at interpreter exit")
        else:
            self._leak_search.suspect(handle)

    def _add_unknown_end(self, handle: ExecutorHandle, why: str) -> None:
        text = f"the exit status of executor {handle.name} is unknown: {why}"
        self._journal.add_finding("zygote", text, handle.cases)

    # Investigations

    def _investigate_exit(self, handle: ExecutorHandle, ending: str) -> None:
        """Bisect the cases of an executor that ended badly, and run those that remain alone. `ending`: how it ended."""
        activity = f"bisecting {format_count(len(handle.cases), 'case')}, because executor {handle.name} ended badly"
        cases = [self._history_of(case).case for case in dict.fromkeys(handle.cases)]
        try:
            with self._journal.doing(activity):
                if missing := self._lane.missing(len(handle.binding.devices)):
                    raise NoDeviceError(missing)
                suspects = suspects_of_exit(self._lane, cases, self._context.case_timeout)
                guilty = [case for case in suspects if self._breaks_alone(case)]
        except (NoDeviceError, StoppedError) as error:
            why = f"{ending}; the case that causes this was not found: {error}"
        else:
            why = "" if guilty else f"{ending}; no single case causes this alone"
        if why:
            self._journal.add_finding("executor_exit", why, handle.cases)

    def _breaks_alone(self, case: Case) -> bool:
        """Run a case once more, alone; that is its last attempt. Return whether its process ends badly."""
        history = self._history_of(case.id)
        attempt = self._run_again_alone(history)
        self._conclude(history, attempt)
        if attempt.outcome.breaks_executor:
            self._report_late(history)
        return attempt.outcome.breaks_executor

    def search_leaks(self) -> None:
        """Search the executors that have grown. Call this when all cases of this worker have been reported."""
        for suspicion in self._leak_search.take_suspicions():
            ran = [self._ran[case] for case in suspicion.cases if not self._ran[case].leaked]
            if ran:
                with self._leak_search.looking_into(suspicion, ran) as accusations:
                    for accusation in accusations:
                        self._accuse(accusation)

    def _accuse(self, accusation: Accusation) -> None:
        history = self._history_of(accusation.case)
        self._conclude(history, accusation.applied_to(self._run_again_alone(history)))
        self._report_late(history)

    def _history_of(self, case_id: str) -> CaseHistory:
        """Return the history of a case, to add attempts to."""
        if self._history is not None and self._history.case.id == case_id:
            return self._history
        ran = self._ran[case_id]
        return CaseHistory(ran.case, ran.attempts)

    def _run_again_alone(self, history: CaseHistory) -> Attempt:
        """Make one more recorded attempt at a case that already has a verdict. Raises NoDeviceError, StoppedError."""
        attempt = self._run_alone(history)
        if attempt.outcome is Outcome.NOT_RUN:  # an attempt that did not run is no evidence
            self._conclude(history, attempt)
            raise StoppedError(message(attempt))
        return attempt

    def _report_late(self, history: CaseHistory) -> None:
        """Report a red case, after pytest got another outcome for it."""
        if history.outcome.is_red and history is not self._history:
            self._session.report_late(history)

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
            if history.attempts and self._obstacle(history.case.devices):
                return
            last = repetition == self._policy.repeat
            following = nextitem if last else None
            first = self._first_attempt(history, following, begun, stay=nextitem is not None or not last)
            attempt = self._confirmation.confirm(history.case, first)
            begun = None
            for _ in range(self._policy.retries):
                if not self._should_retry(history, attempt) or self._obstacle(history.case.devices):
                    break
                self._record(history, attempt)
                attempt = self._confirmation.confirm(history.case, self._run_alone(history))
            enough = self._policy.until_fail and attempt.outcome.is_red
            if last or enough:
                self._conclude(history, attempt)
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
            begun.result()
            self._lookahead.note_end(begun)
            return self._sure(history, self._lane.end_of(begun))
        alone = self._each_fresh or needs_own_process(case)
        handle = self._slot.current
        if handle is not None and (alone or not self._slot.serves(self._lane.pool.claim(case))):
            self.finish()
            handle = None
        if handle is None:
            handle = self._lane.spawn(case)
        last = alone or (not stay and not handle.cases)
        light = (self._each_fresh or takes_short_exit(case)) and not BACKENDS[handle.binding.kind].hardware
        following = None if last else following_id(case, nextitem, self._preparation)
        # On a GPU, the two processes would use the device at the same time.
        ahead = light and stay and (nextitem is None or self._is_alike(case, nextitem))
        attempt = self._lane.make(handle, history, following=following, leave=last, light=light, ahead=ahead)
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
        doubtful = broke_after_others or (first.outcome.is_red and self._lane.is_drained(first.devices))
        if not first.evidence.lost_by_harness and not doubtful:
            return first
        if missing := self._obstacle(case.devices):
            return replace(first, notes=(*first.notes, f"not run again alone: {missing}"))
        self._record(history, first)
        return self._run_alone(history)

    def _verify(self, history: CaseHistory) -> None:
        """Make N attempts in one process, while it stays usable, and N attempts in fresh processes (``--verify``)."""
        self.finish()
        loops = self._policy.verify
        for attempt_number in range(1, 2 * loops + 1):
            if missing := self._obstacle(history.case.devices):
                raise NoDeviceError(missing)
            if attempt_number <= loops:
                handle = self._slot.current or self._lane.spawn(history.case)
                last = attempt_number == loops
                attempt = self._lane.make(handle, history, following=None, leave=last, light=False)
            else:
                attempt = self._run_alone(history)
            if attempt_number == 2 * loops:
                self._conclude(history, attempt)
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
        return self._lane.make(self._lane.spawn(history.case), history, following=None, leave=True, light=False)

    # Verdicts

    def _record(self, history: CaseHistory, attempt: Attempt, *, final: bool = False) -> None:
        """Add an attempt that does not end its case to the history, and record it."""
        self._add(history, attempt, final=final)
        self._journal.record(self._lines.finish(history, attempt, final=final))

    def _conclude(self, history: CaseHistory, attempt: Attempt) -> None:
        """Add the last attempt, apply the rules of the run, and record it. The next cases begin immediately."""
        self._add(history, attempt, final=True)
        if attempt.outcome is not Outcome.NOT_RUN:  # no rule applies to a case that was stopped
            history.ruling = self._ruling(history)
        following = self._lookahead.next_cases(history, attempt)
        # One write: a case that has begun must be in the journal if this process dies now.
        self._journal.record(self._lines.finish(history, attempt, final=True), *self._lookahead.start_lines(following))
        self._lookahead.begin(following)

    def _add(self, history: CaseHistory, attempt: Attempt, *, final: bool) -> None:
        history.add(attempt, final=final)
        before = self._ran.get(history.case.id)
        leaks = attempt.outcome is Outcome.LEAKED
        self._ran[history.case.id] = RanCase(
            history.case,
            history.earlier + len(history.attempts),
            attempt.duration,
            leaked=leaks or (before is not None and before.leaked),
        )
        if leaks:
            self._lane.keep_files_of(attempt.executor)
        if levels := self._lines.levels(history, attempt):
            self._journal.record(*levels)

    def _ruling(self, history: CaseHistory) -> Ruling | None:
        loops = self._policy.verify
        if loops and not history.earlier:
            attempts = [attempt_result(attempt) for attempt in history.attempts]
            return rules.rule_on_verification(attempts[:loops], attempts[loops:], history.case.limit)
        return rules.rule_on_verdict(self._policy, history.settled, history.counting(), history.case.waivers)
