"""The supervisor: takes each case through gate, attempts and verdict to journal and pytest. It runs no case itself.

It is the only part of a worker that decides. The lane makes attempts; the investigations, of leaks and of processes
that end badly, return the cases to run once more, and the supervisor runs them.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.backends.table import BACKENDS
from harness.collection.cases import CASE_ID
from harness.collection.description import CollectionDescription, DescriptionError
from harness.configuration.context import RunContext
from harness.core import clock
from harness.core.errors import NoDeviceError
from harness.core.outcome import Outcome, Ruling
from harness.core.text import format_count, format_exit_code
from harness.devices.device import Inventory
from harness.gating import policy as rules
from harness.journal.events import Wait
from harness.scheduling import device_leases, stop_request
from harness.scheduling.device_leases import BoardError, DeviceLeases
from harness.scheduling.stop_request import StopListener, StoppedError
from harness.scheduling.workers import CaseFacts, HandedOutList
from harness.supervisor import case_reports, device_monitor
from harness.supervisor.attempt import Attempt, CaseHistory, attempt_result, leave, message
from harness.supervisor.burst import Begun
from harness.supervisor.case import Case, needs_own_process, takes_short_exit
from harness.supervisor.case_reports import CaseLines, Controller, PytestSession
from harness.supervisor.device_monitor import DeviceMonitor
from harness.supervisor.diagnostics import Diagnostics
from harness.supervisor.executor_handle import ExecutorHandle
from harness.supervisor.executor_slot import CollectionCheck, ExecutorSlot, ZygoteLinks
from harness.supervisor.lane import Lane, suspects_of_exit
from harness.supervisor.leak_confirmation import LeakConfirmation, SearchTime
from harness.supervisor.leak_search import Accusation, LeakSearch, RanCase
from harness.supervisor.lookahead import Lookahead, RunOrder, following_id
from harness.supervisor.worker import FIRST, Worker
from harness.zygote.client import ZygoteError

#: An attempt may take this many case time limits: it may be repeated, and a suspected leak runs seven times, twice.
_ATTEMPT_FACTOR = 20
#: Errors of a process that has no descriptor, process or memory left.
_STARVED = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


class Supervisor(Worker):
    """Runs the cases of one worker in executors, one at a time."""

    def __init__(
        self,
        context: RunContext,
        inventory: Inventory,
        controller: Controller,
        *,
        name: str,
        device: str,
        workerinput: dict[str, Any] | None,
    ) -> None:
        """See `Worker`."""
        super().__init__(context, inventory, controller, name=name, device=device, workerinput=workerinput)
        journal, pool, temp = self.journal, self.pool, Path(context.temp_dir)
        self._stop = StopListener(temp / stop_request.FOLDER, name)
        self._is_closed = False
        self._zygotes = ZygoteLinks(
            context, journal, self._stop, skip_early_exit_handlers=not pool.device.backend.hardware
        )
        self._check = CollectionCheck(journal)
        #: The list of what the controller hands out; None in a session without xdist, which follows its own list.
        self._handed_out = None if workerinput is None else HandedOutList(temp, name)
        self._order = RunOrder(self._handed_out)
        #: Whether the run has cases that take several devices; None until this is known.
        self._has_wide: bool | None = None
        slot = ExecutorSlot(
            self._zygotes,
            pool,
            journal,
            temp=temp,
            run_dir=Path(context.run_dir),
            stop=self._stop,
            leases=self._device_leases(inventory),
            check=self._check,
            last=self._resumption.executors.get(name, 0),
        )
        limit = device_monitor.EXAMINATION_LIMIT * context.timeout_multiplier
        monitor = DeviceMonitor(pool, slot, self.bindings, journal, seed=context.seed, limit=limit)
        lines = CaseLines(context, name, verify=self.policy.verify)
        session = PytestSession(controller, lines, journal)
        lane = Lane(
            slot,
            pool,
            monitor,
            Diagnostics(context, journal, self._stop),
            self.bindings,
            session,
            lines,
            journal,
            # If each attempt has its own process, there are no levels of one process to compare.
            levels=self.policy.repeat > 1 and context.isolation != "case",
        )
        self._use(lane, session, lines)

    def _use(self, lane: Lane, session: PytestSession, lines: CaseLines) -> None:
        """Run cases with these parts."""
        self._lane = lane
        self._slot = lane.slot
        self._session = session
        self._lines = lines
        self._each_fresh = self.context.isolation == "case"
        #: The cases that have a verdict, and the history of the current case.
        self._ran: dict[str, RanCase] = {}
        self._history: CaseHistory | None = None
        in_turn = self._each_fresh or self.policy.repeat > 1 or self.policy.verify > 0
        self._lookahead = Lookahead(lane, self.preparation, lines, self.journal, enabled=not in_turn)
        search_time = SearchTime(self.context.leak_search, self.context.timeout_multiplier)
        self._confirmation = LeakConfirmation(lane, self.journal, search_time)
        self._leak_search = LeakSearch(lane, lines, self.journal, search_time)

    def _device_leases(self, inventory: Inventory) -> DeviceLeases:
        """Return the leases of GPUs. The CPU and software devices need none: each process has its own."""
        # A worker checks for waiting workers only between cases: it first makes all attempts and repetitions of a case.
        attempts = max(self.policy.repeat * (1 + self.policy.retries), 2 * self.policy.verify)
        longest = _ATTEMPT_FACTOR * attempts * self.context.case_timeout
        return DeviceLeases(
            device_leases.default_folder() if self.pool.device.backend.hardware else None,
            worker=self.name,
            memory={device.uuid: device.memory for device in inventory.usable if device.memory},
            limit=max(device_leases.LIMIT, longest) * self.context.timeout_multiplier,
            first_message=device_leases.FIRST_MESSAGE * self.context.timeout_multiplier,
            log=self._log_wait,
        )

    def _log_wait(self, text: str) -> None:
        """Record and print what this worker waits for."""
        self.journal.record(Wait(t=clock.now(), worker=self.name, message=text))
        self._print(text)

    def description(self) -> CollectionDescription:
        """Wait for the collection of the run's zygote, and return its description.

        Raises DescriptionError, StoppedError.
        """
        return self._zygotes.description()

    def seen(self, ids: Collection[str], *, by_itself: bool) -> None:
        """Note the ids of all tests that this process has collected, before any was deselected.

        If this process has collected them `by_itself`, compare them with those of the zygote.
        """
        self._check.note(ids)
        if self.context.start == "cold" or not by_itself or self.name not in FIRST:
            return
        # Without a description the run ends with the error that `description` has raised elsewhere.
        with contextlib.suppress(DescriptionError, StoppedError):
            self._check.compare_with_zygote(self.description().order)

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Run one case in an executor, unless this worker is `over`. A fatal error sets `over`.

        A case that had its verdict before the run was resumed is only reported.
        """
        if self.check_stop():
            return
        self._order.at(item, nextitem)
        finished = self._resumption.finished.get(item.stash[CASE_ID])
        try:
            with self.journal.noting_failures():
                if finished is None:
                    self.run_case(item, nextitem)
                    if self._may_be_waited_for():
                        self.finish()
                else:
                    case_reports.log_reports(item, case_reports.replayed_reports(item, finished))
                    if nextitem is None:
                        self.finish()
                        self.search_leaks()
        except (ZygoteError, BoardError) as error:
            self._over = f"harness: {error}"
        except (OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno not in _STARVED:
                raise  # a bug in the harness: pytest shows its traceback
            self._over = (
                f"harness: worker {self.name} cannot continue: {error!r}; check the limits on open files and processes "
                f"(`ulimit -n`, `ulimit -u`) and the free memory"
            )
        self.tell_failure()
        self.check_stop()

    def _may_be_waited_for(self) -> bool:
        """Return whether this worker might wait for cases while another worker waits for its devices.

        A worker notices a waiting worker only between cases. In a cluster run, the next case may be handed out only
        when the other worker has ended its case.
        """
        if not self.context.node or self._lookahead or not self._order.starves:
            return False
        if self._has_wide is None:
            self._has_wide = bool(CaseFacts.read(Path(self.context.temp_dir)).devices)
        return self._has_wide

    def check_stop(self) -> str:
        """Check for a request to stop. Returns `over`. Cases that have begun may end within the grace period."""
        stop = None if self._is_closed else self._stop.receive()
        if stop is not None and not self._lookahead:
            self._over = self._over or stop.reason
        return self.over

    def run_case(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Take one case to its verdict and report it. Raises ZygoteError if no zygote is available.

        The next cases may begin while this one is reported. After a request to stop, a case is `not_run` if it has not
        begun or does not finish within the grace period.
        """
        self._session.begin_case(item)
        begun = self._lookahead.take(item)
        # If pytest's next item differs from the announced one, the wrong fixtures are still set up.
        as_announced = begun is None or begun.nextitem is nextitem
        self._lookahead.order = self._order if as_announced else None
        # Check this before the decisions about a case, because they depend on its device.
        missing = "" if begun is not None else self._obstacle(1)
        case = self.preparation.prepare(item)
        if case.unmet is not None:
            self.journal.record(case.gated(case.unmet, self.journal.worker))
            self._session.report_gated(case)
        elif missing := missing or (self._obstacle(case.devices) if case.devices > 1 else ""):
            self._not_run(case, missing)
        else:
            new = CaseHistory(case, earlier=self._lookahead.earlier_attempts(case))
            self._history = history = new if begun is None else begun.history
            try:
                self._run_attempts(history, nextitem, begun)
            except (NoDeviceError, StoppedError) as error:  # for example, another worker just drained the last device
                if not history.counting():
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

    def _not_run(self, case: Case, reason: str) -> None:
        self.journal.record(case.not_run(reason, self.journal.worker))
        self._session.report_not_run(case, reason)

    def finish(self, *, owned: bool = False) -> None:
        """Retire the current executor. If it ends badly, find the cases that cause it. `owned`: see `leave`."""
        handle = self._slot.current
        if handle is None:
            return
        with self.journal.doing(f"ending executor {handle.name}"):
            try:
                ended = leave(handle, self.context.case_timeout, light=False, owned=owned)
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
        self.journal.add_finding("zygote", text, handle.cases)

    # Investigations

    def _investigate_exit(self, handle: ExecutorHandle, ending: str) -> None:
        """Bisect the cases of an executor that ended badly, and run those that remain alone. `ending`: how it ended."""
        activity = f"bisecting {format_count(len(handle.cases), 'case')}, because executor {handle.name} ended badly"
        cases = [self._history_of(case).case for case in dict.fromkeys(handle.cases)]
        try:
            with self.journal.doing(activity):
                if missing := self._lane.missing(len(handle.binding.devices)):
                    raise NoDeviceError(missing)
                suspects = suspects_of_exit(self._lane, cases, self.context.case_timeout)
                guilty = [case for case in suspects if self._breaks_alone(case)]
        except (NoDeviceError, StoppedError) as error:
            why = f"{ending}; the case that causes this was not found: {error}"
        else:
            why = "" if guilty else f"{ending}; no single case causes this alone"
        if why:
            self.journal.add_finding("executor_exit", why, handle.cases)

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
        self.journal.begin_to_close()
        if self._lookahead:
            stop = self._stop.receive()
            self._lookahead.close("the session ended before the case finished" if stop is None else stop.reason)
        self._leak_search.close("the session ended before the search")
        self._slot.close("the session ended")
        if self._handed_out is not None:
            self._handed_out.close()
        self._zygotes.close()
        if not self._is_closed:
            self._is_closed = True
            self._stop.close()
        super().close()

    # Attempts

    def _run_attempts(self, history: CaseHistory, nextitem: pytest.Item | None, begun: Begun | None) -> None:
        """Make all attempts that the policy asks for. The first may have `begun`."""
        if self.policy.verify:
            self._verify(history)
            return
        for repetition in range(1, self.policy.repeat + 1):
            if history.attempts and self._obstacle(history.case.devices):
                return
            last = repetition == self.policy.repeat
            following = nextitem if last else None
            first = self._first_attempt(history, following, begun, stay=nextitem is not None or not last)
            attempt = self._confirmation.confirm(history.case, first)
            begun = None
            for _ in range(self.policy.retries):
                if not self._should_retry(history, attempt) or self._obstacle(history.case.devices):
                    break
                self._record(history, attempt)
                attempt = self._confirmation.confirm(history.case, self._run_alone(history))
            enough = self.policy.until_fail and attempt.outcome.is_red
            if last or enough:
                self._conclude(history, attempt)
            else:
                self._record(history, attempt, final=True)
            if attempt.outcome is Outcome.LEAKED:
                # No other case may run in a process with a leak.
                self.finish(owned="children" in attempt.suspicions)
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
        if handle is not None and (alone or not self._slot.serves(self._lane.claim(case))):
            self.finish()
            handle = None
        if handle is None:
            handle = self._lane.spawn(case)
        last = alone or (not stay and not handle.cases)
        light = (self._each_fresh or takes_short_exit(case)) and not BACKENDS[handle.binding.kind].hardware
        following = None if last else following_id(case, nextitem, self.preparation)
        # On a GPU, the two processes would use the device at the same time.
        ahead = light and stay and (nextitem is None or self._is_alike(case, nextitem))
        attempt = self._lane.make(handle, history, following=following, leave=last, light=light, ahead=ahead)
        return self._sure(history, attempt)

    def _is_alike(self, case: Case, nextitem: pytest.Item) -> bool:
        """Return whether the next case will run, on as many devices, and in the same kind of executor."""
        following = self.preparation.prepare(nextitem)
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
        loops = self.policy.verify
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
        ruling = rules.rule_on_verdict(self.policy, attempt.outcome, [attempt_result(attempt)], history.case.waivers)
        return ruling is None or ruling.outcome.is_red

    def _run_alone(self, history: CaseHistory) -> Attempt:
        self.finish()
        return self._lane.make(self._lane.spawn(history.case), history, following=None, leave=True, light=False)

    # Verdicts

    def _record(self, history: CaseHistory, attempt: Attempt, *, final: bool = False) -> None:
        """Add an attempt that does not end its case to the history, and record it."""
        self._add(history, attempt, final=final)
        self.journal.record(self._lines.finish(history, attempt, final=final))

    def _conclude(self, history: CaseHistory, attempt: Attempt) -> None:
        """Add the last attempt, apply the rules of the run, and record it. The next cases begin immediately."""
        self._add(history, attempt, final=True)
        if attempt.outcome is not Outcome.NOT_RUN:  # no rule applies to a case that was stopped
            history.ruling = self._ruling(history)
        following = self._lookahead.next_cases(history, attempt)
        # One write: a case that has begun must be in the journal if this process dies now.
        self.journal.record(self._lines.finish(history, attempt, final=True), *self._lookahead.start_lines(following))
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
            self.journal.record(*levels)

    def _ruling(self, history: CaseHistory) -> Ruling | None:
        loops = self.policy.verify
        if loops and not history.earlier:
            attempts = [attempt_result(attempt) for attempt in history.attempts]
            return rules.rule_on_verification(attempts[:loops], attempts[loops:], history.case.limit)
        return rules.rule_on_verdict(self.policy, history.settled, history.counting(), history.case.waivers)
