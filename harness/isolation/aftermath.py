"""What is found out once an executor has ended: which of its cases broke its end, and which made it grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.checks import batch
from harness.diagnosis.leaks import Culprits
from harness.isolation import inquiry
from harness.isolation.attempt import Attempted, Request, attempt, leave
from harness.isolation.care import NoDeviceError
from harness.isolation.case import Case
from harness.isolation.course import Course
from harness.isolation.handle import ExecutorHandle
from harness.isolation.inquiry import Inquiry
from harness.isolation.keeper import Keeper, Record
from harness.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Means:
    """What a supervisor lends to whoever looks into an executor.

    `lacking` says why there are not so many healthy devices; `spawn` makes an executor for a case. `course_of` is what
    a case has been through so far, `alone` makes one recorded attempt at it in a process of its own, which `enter`
    takes as final. `tell` shows pytest that a case is red which it has heard otherwise of; `find` tells a finding by
    kind, text and cases. Those that need a device raise NoDeviceError.
    """

    lacking: Callable[[int], str]
    spawn: Callable[[Case], ExecutorHandle]
    course_of: Callable[[str], Course]
    alone: Callable[[Course], Attempted]
    enter: Callable[[Course, Attempted], None]
    tell: Callable[[Course], None]
    find: Callable[[str, str, Sequence[str]], None]


class Aftermath:
    """Finds culprits among the cases of executors that have ended."""

    def __init__(self, means: Means, keeper: Keeper, record: Record, *, case_timeout: float, patience: float) -> None:
        """`case_timeout`: seconds that the end of a process may take; `patience`: a factor on other time limits."""
        self._means = means
        self._keeper = keeper
        self._record = record
        self._case_timeout = case_timeout
        self._patience = patience

    # Which case breaks the end of the process

    def explain(self, handle: ExecutorHandle, what: str) -> None:
        """An executor that ran several cases ended badly: halve them down to single ones, try those alone."""
        try:
            if missing := self._means.lacking(len(handle.binding.devices)):
                raise NoDeviceError(missing)
            guilty = self._try_culprits(list(dict.fromkeys(handle.cases)))
        except NoDeviceError as error:
            self._means.find("executor_exit", f"{what}; which case does so was not found out: {error}", handle.cases)
            return
        if not guilty:
            self._means.find("executor_exit", f"{what}; no case does so alone", handle.cases)

    def _try_culprits(self, suspects: list[str]) -> bool:
        """Try those alone that seem to break the end of their process; says whether any does. Raises NoDeviceError."""
        guilty = False
        for course in map(self._means.course_of, self._culprits(suspects)):
            tried = self._means.alone(course)
            self._means.enter(course, tried)
            if tried.outcome.breaks_executor:
                guilty = True
                self._means.tell(course)
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
        cases = [self._means.course_of(case_id).case for case_id in case_ids]
        handle = self._means.spawn(cases[0])
        for case, following in zip(cases, [*case_ids[1:], None], strict=True):
            tried = attempt(handle, Request(case.item, case.id, case.seed, case.limit, following), 0)
            if not tried.usable:
                break
        good = handle.exit_status is None and leave(handle, self._case_timeout, light=False)
        bad = not good or handle.exit_status != 0
        self._keeper.bury(handle, "rehearsal")
        return bad

    # Which cases make a process grow

    def look_into_growth(self, handle: ExecutorHandle, known: frozenset[str]) -> None:
        """Where an executor has grown by more than its cases account for, run them again, and say which of them leak.

        Cases that are `known` to leak have had their verdict.
        """
        suspected = batch.suspicions(handle.grown, len(handle.cases))
        ids = [case_id for case_id in dict.fromkeys(handle.cases) if case_id not in known]
        if not suspected or not ids:
            return
        asking = Inquiry(
            [self._means.course_of(case_id).case for case_id in ids],
            spawn=self._means.spawn,
            keeper=self._keeper,
            seconds=inquiry.MOST_SECONDS * self._patience,
        )
        found: list[Culprits] = []
        failure = ""
        try:
            if missing := self._means.lacking(len(handle.binding.devices)):
                raise NoDeviceError(missing)
            found = asking.find()
            for culprits in found:
                self._accuse(culprits, asking.origins(culprits), len(ids))
        except NoDeviceError as error:
            failure = str(error)
        self._keeper.release()
        self._record(
            {
                "event": "batch",
                "executor": handle.name,
                "cases": ids,
                "suspicions": suspected,
                "leaks": [inquiry.describe(culprits) for culprits in found],
                "trials": asking.trials,
                "seconds": round(asking.seconds, 3),
                "failure": failure or asking.failure,
            }
        )

    def _accuse(self, culprits: Culprits, origins: Mapping[str, Sequence[str]], cases: int) -> None:
        """A single case that leaks is given that verdict; of several a finding tells. Raises NoDeviceError."""
        lines = inquiry.details(culprits, origins)
        if len(culprits.cases) > 1 or not culprits.certain:
            self._means.find("batch_leak", "; ".join([inquiry.describe(culprits), *lines]), culprits.cases)
            return
        course = self._means.course_of(culprits.cases[0])
        tried = self._means.alone(course)
        judgement = tried.judgement
        if judgement.outcome.is_red:  # for a reason of its own
            lines = [inquiry.describe(culprits), *lines]
        else:
            judgement = replace(judgement, outcome=Outcome.LEAKED, message=culprits.leaks[0].text)
        notes = (*tried.notes, f"looked into since a process had grown that ran {cases} cases", *lines)
        self._means.enter(course, replace(tried, judgement=judgement, notes=notes))
        self._means.tell(course)
