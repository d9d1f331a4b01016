"""The supervisor: takes each case through gate, attempts, verdict, journal, and tells pytest. It runs no case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from harness.context import RunContext
from harness.devices.device import Device
from harness.devices.health import Health
from harness.devices.visibility import DEVICE_VARIABLES
from harness.fixtures import kept
from harness.gating import policy as rules
from harness.gating.policy import Policy
from harness.isolation import confirmation, examination, reports, showing
from harness.isolation.aftermath import Aftermath, Means
from harness.isolation.attempt import Attempted, Request, attempt, leave
from harness.isolation.care import Care, NoDeviceError
from harness.isolation.case import Case, ruling_line
from harness.isolation.course import Course, message, summary
from harness.isolation.handle import Binding, ExecutorHandle
from harness.isolation.keeper import Keeper, Record
from harness.isolation.nursery import ZygoteError
from harness.outcome import Outcome, Ruling
from harness.text import exit_text


class Supervisor:
    """Runs the cases of one worker, one at a time."""

    def __init__(
        self,
        context: RunContext,
        policy: Policy,
        *,
        worker: str,
        record: Record,
        prepare: Callable[[pytest.Item], Case],
        late: Callable[[pytest.TestReport], None],
        keeper: Keeper,
        care: Care,
        bind: Callable[[Sequence[Device]], Binding],
    ) -> None:
        """`prepare` decides about an item, the same each time it is asked while the device in use stays the same.

        `late` shows pytest a report on a case that was reported before; `bind` says what an executor is given.
        """
        self._context = context
        self._policy = policy
        self._worker = worker
        self._record = record
        self._prepare = prepare
        self._late = late
        self._keeper = keeper
        self._care = care
        self._bind = bind
        self._each_fresh = context.isolation == "case"
        #: The cases that have come to a verdict, with the number of attempts at each, and the one that is being run.
        self._ran: dict[str, tuple[Case, int]] = {}
        self._course: Course | None = None
        self._red: set[str] = set()
        self._leaky: set[str] = set()
        means = Means(
            lacking=self._lacking,
            spawn=self._spawn,
            course_of=self._course_of,
            alone=self._try_alone,
            enter=lambda course, tried: self._finish(course, tried, final=True),
            tell=self._tell_late,
            find=self._find,
        )
        patience = context.timeout_multiplier
        self._aftermath = Aftermath(means, keeper, record, case_timeout=context.case_timeout, patience=patience)

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Take one case to its verdict and report it. Raises ZygoteError when no zygote can be had."""
        missing = self._lacking(1)  # before all else, since what is decided about a case depends on its device
        case = self._prepare(item)
        if case.unmet is not None:
            self._record(case.gated(case.unmet, self._worker))
            reports.log(item, [reports.gated(item, case.unmet.text, case.objection)])
        elif missing := missing or self._lacking(case.devices):
            self._not_run(case, missing)
        else:
            self._course = course = Course(case)
            try:
                self._conduct(course, nextitem)
            except NoDeviceError as error:  # the last one was drained a moment ago, by another worker
                if not any(course.finals):
                    self._not_run(case, str(error))
                    return
            except BaseException:
                self._keeper.abandon("interrupted")
                raise
            self._ran[case.id], self._course = (case, len(course.tries)), None
            for warning in course.decisive.warnings:
                reports.show_warning(item, warning)
            reports.log(item, showing.shown(course, self._reproduce(course)))
            interruption = course.tries[-1].evidence.interruption
            if interruption.startswith("raised Exit"):
                item.session.shouldstop = interruption
        if nextitem is None or self._keeper.wanted:
            self.finish()

    def _not_run(self, case: Case, reason: str) -> None:
        self._record(case.not_run(reason, self._worker))
        reports.log(case.item, [reports.skipped(case.item, outcome=Outcome.NOT_RUN, text=reason)])

    def finish(self) -> None:
        """Retire the executor in use; when it ends badly, or has grown, find out which of its cases made it so."""
        handle = self._keeper.current
        if handle is None:
            return
        try:
            ended = leave(handle, self._context.case_timeout, light=False)
        except ZygoteError as error:
            self._keeper.drop()
            self._find("zygote", f"how executor {handle.name} ended is not known: {error}", handle.cases)
            return
        self._bury(handle, "retired")
        if not ended or handle.exit_status != 0:
            how = f"ended with {exit_text(handle.exit_status or 0)}" if ended else "did not end"
            self._aftermath.explain(handle, f"executor {handle.name} {how} at interpreter exit")
        else:
            self._aftermath.look_into_growth(handle, frozenset(self._leaky))

    def close(self) -> None:
        """Let go of everything; what still runs is killed."""
        self._keeper.close("the session ended")

    # Attempts

    def _conduct(self, course: Course, nextitem: pytest.Item | None) -> None:
        """Make all the attempts that the case is due."""
        if self._policy.verify:
            self._verify(course)
            return
        for repetition in range(1, self._policy.repeat + 1):
            if course.tries and self._lacking(course.case.devices):
                return
            last = repetition == self._policy.repeat
            following = nextitem if last else None
            tried = self._confirmed(course, self._first(course, following, stay=nextitem is not None or not last))
            for _ in range(self._policy.retries):
                if not self._worth_another(course, tried) or self._lacking(course.case.devices):
                    break
                self._finish(course, tried, final=False)
                tried = self._confirmed(course, self._try_alone(course))
            enough = self._policy.until_fail and tried.outcome.is_red
            self._finish(course, tried, final=True, last=last or enough)
            if tried.outcome is Outcome.LEAKED:
                self.finish()  # nothing is to run after it in the same process
            if enough:
                return

    def _first(self, course: Course, nextitem: pytest.Item | None, *, stay: bool) -> Attempted:
        """An attempt, and a second one where the first alone must not be believed; the one that counts.

        `stay`: the executor will be needed again.
        """
        case = course.case
        if _apart(case) and not self._each_fresh:
            return self._try_alone(course)
        handle = self._keeper.current
        devices = self._care.choose(case.devices)
        if handle is not None and (self._each_fresh or handle.binding.devices != tuple(d.uuid for d in devices)):
            self.finish()
            handle = None
        if handle is None:
            handle = self._spawn(case)
        last = self._each_fresh or (not stay and not handle.cases)
        light = self._each_fresh and handle.binding.kind != "cuda"
        following = None if last else self._following(case, nextitem)
        first = self._try(handle, course, following=following, leave=last, light=light)
        sick = any(self._care.drained(device) is not None for device in self._care.known(first.devices))
        doubtful = (first.outcome.breaks_executor and not first.alone) or (first.outcome.is_red and sick)
        if not first.evidence.zygote_lost and not doubtful:
            return first
        if missing := self._lacking(case.devices):
            return replace(first, notes=(*first.notes, f"not confirmed alone: {missing}"))
        self._finish(course, first, final=False)
        return self._try_alone(course)

    def _confirmed(self, course: Course, tried: Attempted) -> Attempted:
        """Look into what an attempt is suspected to leak; the attempt as it is to be judged."""
        if not tried.suspicions or tried.outcome.is_red:
            return tried
        case = course.case
        request = Request(case.item, case.id, case.seed, case.limit)
        with self._keeper.beside():
            repeated = self._repeated(case, request)
            found = confirmation.leaks(tried.suspicions, repeated)
            where = None
            if found:
                self._rehearsed()
                where = self._repeated(case, request, [leak.meter for leak in found]).origins
        self._record(
            {
                "event": "confirmation",
                "case": case.id,
                "suspicions": dict(tried.suspicions),
                "growths": [dict(each) for each in repeated.growths],
                "leaks": [leak.text for leak in found],
                "failure": repeated.failure,
            }
        )
        if repeated.failure:
            notes = (*tried.notes, f"suspected of a leak, which could not be confirmed {repeated.failure}")
            return replace(tried, notes=notes)
        if not found:
            return tried
        judgement = replace(tried.judgement, outcome=Outcome.LEAKED, message=found[0].text)
        return replace(tried, judgement=judgement, notes=(*tried.notes, *confirmation.lines(found, where)))

    def _repeated(self, case: Case, request: Request, history: Sequence[str] = ()) -> confirmation.Repeated:
        handle = self._spawn(case)
        try:
            return confirmation.repeat(handle, request, history)
        except ZygoteError as error:
            self._keeper.drop()
            return confirmation.Repeated(failure=f"when it was run again and again: {str(error).splitlines()[0]}")

    def _rehearsed(self) -> None:
        if self._keeper.current is not None:
            self._keeper.bury(self._keeper.current, "rehearsal", hold=True)

    def _verify(self, course: Course) -> None:
        """``--verify``: so many attempts in one process, as far as it lasts, and as many in fresh ones."""
        self.finish()
        loops = self._policy.verify
        for attempt_number in range(1, 2 * loops + 1):
            if missing := self._lacking(course.case.devices):
                raise NoDeviceError(missing)
            if attempt_number <= loops:
                handle = self._keeper.current or self._spawn(course.case)
                tried = self._try(handle, course, following=None, leave=attempt_number == loops, light=False)
            else:
                tried = self._try_alone(course)
            self._finish(course, tried, final=attempt_number == 2 * loops)

    def _worth_another(self, course: Course, tried: Attempted) -> bool:
        """Whether ``--retries`` is for this attempt: for what is red and is not what a waiver expects."""
        if not tried.outcome.is_red or tried.outcome is Outcome.UNEXPECTED_PASS:
            return False
        ruling = rules.on_verdict(self._policy, tried.outcome, [summary(tried)], course.case.waivers)
        return ruling is None or ruling.outcome.is_red

    def _try_alone(self, course: Course) -> Attempted:
        self.finish()
        return self._try(self._spawn(course.case), course, following=None, leave=True, light=False)

    def _spawn(self, case: Case) -> ExecutorHandle:
        """An executor on healthy devices. Raises NoDeviceError when there are none left."""
        while True:
            devices = self._care.choose(case.devices)
            handle = self._keeper.spawn(self._bind(devices))
            if all(self._care.drained(device) is None for device in devices):
                return handle
            self._keeper.bury(handle, "its device was drained while it waited for its turn")
            if missing := self._lacking(case.devices):
                raise NoDeviceError(missing)

    def _try(
        self, handle: ExecutorHandle, course: Course, *, following: str | None, leave: bool, light: bool
    ) -> Attempted:
        """One recorded attempt; afterwards the executor is current only if it may run another case."""
        case, number = course.case, course.next_number
        self._record(
            case.line(
                "start",
                attempt=number,
                alone=not handle.cases,
                worker=self._worker,
                executor=handle.name,
                devices=handle.binding.devices,
                pid=handle.pid,
            )
        )
        # With a process for each attempt there is nothing to compare.
        levels = self._policy.repeat > 1 and not self._each_fresh
        request = Request(case.item, case.id, case.seed, case.limit, following, leave, light, levels)
        tried = attempt(handle, request, number)
        if tried.outcome.is_red:
            self._red.add(handle.name)
        if tried.evidence.zygote_lost:
            self._keeper.drop()
        elif not tried.usable:
            self._end_unfit(handle, tried)
        tried = self._look_after(case, handle, tried)
        self._keeper.release()
        return tried

    def _following(self, case: Case, nextitem: pytest.Item | None) -> str | None:
        """The id of the next case if it will run in the same executor, so that fixtures they share are kept."""
        if nextitem is None:
            return None
        following = self._prepare(nextitem)
        together = following.unmet is None and following.devices == case.devices and not _apart(following)
        return following.id if together else None

    # Devices

    def _lacking(self, count: int) -> str:
        """Why there are not so many healthy devices, or an empty text; those that nobody has looked at are examined."""
        while True:
            if self._care.move():
                self.finish()
            try:
                devices = self._care.choose(count)
            except NoDeviceError as error:
                return str(error)
            new = self._care.unexamined(devices)
            if not new:
                return ""
            self.finish()
            for device in new:
                for _, sign in self._care.news([device.uuid]):
                    if sign.severity == "fatal":
                        self._care.drain(device, sign.text, "at the start", [])
                    else:
                        self._find("device_sign", f"device {device.uuid} at the start: {sign.text}", [])
                if self._care.drained(device) is None:
                    self._examine(device, "at the start", [])
            self._keeper.release()

    def _examine(self, device: Device, moment: str, cases: Sequence[str]) -> Health:
        """Find out in a process of its own whether a device computes rightly; it is drained when it does not."""
        limit = examination.LIMIT * self._context.timeout_multiplier
        handle = self._keeper.spawn(self._bind([device]))
        try:
            found = examination.examine(handle, seed=self._context.seed, limit=limit)
        except ZygoteError:  # which says nothing of the device
            self._keeper.drop()
            handle = self._keeper.spawn(self._bind([device]))
            found = examination.examine(handle, seed=self._context.seed, limit=limit)
        self._keeper.bury(handle, "examination", hold=True)
        self._care.enter(
            device, healthy=found.healthy, text=found.text, moment=moment, seconds=found.seconds, cases=cases
        )
        for _, sign in self._care.news([device.uuid]):
            if sign.severity == "fatal":
                self._care.drain(device, sign.text, f"while it was examined {moment}", cases)
        return found

    def _look_after(self, case: Case, handle: ExecutorHandle, tried: Attempted) -> Attempted:
        """What NVML tells after an attempt, and an examination where there is reason; the attempt with notes on it."""
        if not self._care.looks:
            return tried
        moment = f"after {case.id} {'was ' if tried.outcome is Outcome.POISONED else ''}{tried.outcome}"
        notes = list(tried.notes)
        broke = tried.outcome in (Outcome.CRASHED, Outcome.TIMEOUT, Outcome.POISONED)
        doubted = set(handle.binding.devices) if broke else set()
        for device, sign in self._care.news(handle.binding.devices):
            notes.append(f"device {device.uuid} while it ran: {sign.text}")
            if sign.severity == "fatal":
                self._care.drain(device, sign.text, moment, [case.id])
            elif sign.severity == "suspect":
                doubted.add(device.uuid)
        for device in self._care.known(handle.binding.devices):
            if handle.unkillable:
                self._care.drain(device, f"executor {handle.name} could not be killed", moment, [case.id])
            elif device.uuid in doubted and self._care.drained(device) is None:
                with self._keeper.beside():
                    found = self._examine(device, moment, [case.id])
                notes.append(f"device {device.uuid} examined afterwards: {found.text}")
        return replace(tried, notes=tuple(notes))

    def _end_unfit(self, handle: ExecutorHandle, tried: Attempted) -> None:
        """End an executor that must not run another case, by asking first: it may hold fixtures."""
        seen = tried.evidence
        if handle.exit_status is None and not seen.late:
            try:
                leave(handle, seen.limit, light=False)
            except ZygoteError:
                self._keeper.drop()
                return
        # Nobody else gets a device before it is known whether it is a sick one that broke the case.
        self._bury(handle, "retired" if tried.evidence.leaving and handle.exit_status == 0 else "unfit", hold=True)

    def _bury(self, handle: ExecutorHandle, reason: str, *, hold: bool = False) -> None:
        self._keeper.bury(handle, reason, keep_files=handle.name in self._red, hold=hold)
        if handle.teardown_error:
            self._find("teardown", handle.teardown_error, handle.cases)

    def _course_of(self, case_id: str) -> Course:
        """What a case has been through so far, to go on with."""
        if self._course is not None and self._course.case.id == case_id:
            return self._course
        return Course(*self._ran[case_id])

    def _tell_late(self, course: Course) -> None:
        """Show pytest that a case is red which it has heard otherwise of."""
        if course.outcome.is_red and course is not self._course:
            self._late(showing.failure(course, "teardown", self._reproduce(course)))

    # Journal

    def _finish(self, course: Course, tried: Attempted, *, final: bool, last: bool = True) -> None:
        """Enter an attempt and write it down; with the `last` that counts, what the rules of the run make of it."""
        course.add(tried, final=final)
        if tried.outcome is Outcome.LEAKED:
            self._leaky.add(course.case.id)
        if final and last:
            course.ruling = self._ruling(course)
        if tried.levels:
            line = {"event": "levels", "case": course.case.id, "attempt": tried.number, "executor": tried.executor}
            self._record({**line, "values": dict(tried.levels)})
        self._record(
            course.case.line(
                "finish",
                attempt=tried.number,
                alone=tried.alone,
                worker=self._worker,
                executor=tried.executor,
                devices=tried.devices,
                outcome=tried.outcome.value,
                final=final,
                duration=round(tried.duration, 6),
                phases={report.when: report.duration for report in tried.reports},
                message=message(tried),
                detail=showing.detail(tried),
                stdout=tried.stdout,
                stderr=tried.stderr,
                log=_log_text(tried.reports),
                exit_status=tried.evidence.exit_status,
                struck=dict(tried.struck) or None,
                keeps=kept(course.case.item),
                notes=[*tried.notes, *showing.kept_files(tried)],
                reproduce=self._reproduce(course) if tried.outcome.is_red or course.outcome.is_red else None,
                ruling=ruling_line(course.ruling),
            )
        )

    def _ruling(self, course: Course) -> Ruling | None:
        loops = self._policy.verify
        if loops and not course.earlier:
            tries = [summary(tried) for tried in course.tries]
            return rules.on_verification(tries[:loops], tries[loops:], course.case.limit)
        return rules.on_verdict(self._policy, course.settled, course.counting(), course.case.waivers)

    def _find(self, kind: str, text: str, cases: Sequence[str]) -> None:
        self._record({"event": "finding", "kind": kind, "message": text, "cases": list(cases)})

    def _reproduce(self, course: Course) -> str:
        tried = course.decisive
        shown = {name: value for name, value in tried.environment.items() if name in DEVICE_VARIABLES and value}
        return self._context.reproduce(course.case.id, shown)


def _apart(case: Case) -> bool:
    """Whether a waiver expects the case to break its process, which may show at the end of that process only."""
    expected = {outcome for waiver in case.waivers for outcome in waiver.expect}
    return any(outcome.breaks_executor for outcome in expected) and Outcome.FLAKY not in expected


def _log_text(shown: Sequence[pytest.TestReport]) -> str:
    return "\n".join(text for report in shown for name, text in report.sections if name.startswith("Captured log"))
