"""The supervisor: takes each case through gate, attempts, verdict, journal, and tells pytest. It runs no case."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from harness.context import RunContext
from harness.devices.visibility import MASK
from harness.isolation import reports
from harness.isolation.attempt import Attempted, Request, attempt, leave
from harness.isolation.case import Case, first_line, tracebacks
from harness.isolation.handle import ExecutorHandle
from harness.isolation.keeper import Keeper, Record
from harness.isolation.nursery import ZygoteError
from harness.isolation.stacks import fold
from harness.outcome import Outcome
from harness.text import exit_text


class Supervisor:
    """Runs the cases of one worker, one at a time."""

    def __init__(
        self,
        context: RunContext,
        *,
        worker: str,
        record: Record,
        prepare: Callable[[pytest.Item], Case],
        late: Callable[[pytest.TestReport], None],
        keeper: Keeper,
    ) -> None:
        """`prepare` decides about an item, the same each time it is asked; `late` shows pytest a report on a case that
        was reported before.
        """
        self._context = context
        self._worker = worker
        self._record = record
        self._prepare = prepare
        self._late = late
        self._keeper = keeper
        self._each_fresh = context.isolation == "case"
        self._ran: dict[str, Case] = {}
        self._red: set[str] = set()

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Take one case to its verdict and report it. Raises ZygoteError when no zygote can be had."""
        case = self._prepare(item)
        if case.unmet is not None:
            self._record(case.gated(case.unmet, self._worker))
            reports.log(item, [reports.skipped(item, outcome=Outcome.GATED, text=f"gated: {case.unmet.text}")])
        else:
            self._ran[case.id] = case
            try:
                tries = self._attempts(case, nextitem)
            except BaseException:
                self._keeper.abandon("interrupted")
                raise
            for warning in tries[-1].warnings:
                reports.show_warning(item, warning)
            reports.log(item, self._presented(case, tries))
            if tries[-1].evidence.interruption.startswith("raised Exit"):
                item.session.shouldstop = tries[-1].evidence.interruption
        if nextitem is None:
            self.finish()

    def finish(self) -> None:
        """Retire the executor in use; when it ends badly, find out which of its cases made it so."""
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
            self._explain(handle, f"executor {handle.name} {how} at interpreter exit")

    def close(self) -> None:
        """Let go of everything; what still runs is killed."""
        self._keeper.close("the session ended")

    # Attempts

    def _attempts(self, case: Case, nextitem: pytest.Item | None) -> list[Attempted]:
        handle = self._keeper.current
        if handle is not None and (self._each_fresh or len(handle.binding.devices) != case.devices):
            self.finish()
            handle = None
        if handle is None:
            handle = self._keeper.spawn(case.devices)
        last = self._each_fresh or (nextitem is None and not handle.cases)
        light = self._each_fresh and not handle.binding.cuda
        following = None if last else self._following(case, nextitem)
        first = self._try(handle, case, 1, following=following, leave=last, light=light)
        if not first.evidence.zygote_lost and (first.alone or not first.outcome.breaks_executor):
            self._finish(case, first, final=True)
            return [first]
        self._finish(case, first, final=False)
        second = self._try_alone(case, 2)
        self._finish(case, second, final=True)
        return [first, second]

    def _try_alone(self, case: Case, number: int) -> Attempted:
        return self._try(self._keeper.spawn(case.devices), case, number, following=None, leave=True, light=False)

    def _try(
        self, handle: ExecutorHandle, case: Case, number: int, *, following: str | None, leave: bool, light: bool
    ) -> Attempted:
        """One recorded attempt; afterwards the executor is current only if it may run another case."""
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
        request = Request(case.item, case.id, case.seed, case.limit, following, leave, light)
        tried = attempt(handle, request, number)
        if tried.outcome.is_red:
            self._red.add(handle.name)
        if tried.evidence.zygote_lost:
            self._keeper.drop()
        elif not tried.usable:
            self._end_unfit(handle, tried)
        return tried

    def _following(self, case: Case, nextitem: pytest.Item | None) -> str | None:
        """The id of the next case if it will run in the same executor, so that fixtures they share are kept."""
        if nextitem is None:
            return None
        following = self._prepare(nextitem)
        return following.id if following.unmet is None and following.devices == case.devices else None

    def _end_unfit(self, handle: ExecutorHandle, tried: Attempted) -> None:
        """End an executor that must not run another case, by asking first: it may hold fixtures."""
        seen = tried.evidence
        if handle.exit_status is None and not seen.late:
            try:
                leave(handle, seen.limit, light=False)
            except ZygoteError:
                self._keeper.drop()
                return
        self._bury(handle, "retired" if tried.evidence.leaving and handle.exit_status == 0 else "unfit")

    def _bury(self, handle: ExecutorHandle, reason: str) -> None:
        self._keeper.bury(handle, reason, keep_files=handle.name in self._red)
        if handle.teardown_error:
            self._find("teardown", handle.teardown_error, handle.cases)

    # Which case breaks the end of the process

    def _explain(self, handle: ExecutorHandle, what: str) -> None:
        """An executor that ran several cases ended badly: halve them down to single ones, try those alone."""
        suspects = self._culprits(list(dict.fromkeys(handle.cases)))
        guilty = False
        for case in [self._ran[case_id] for case_id in suspects]:
            tried = self._try_alone(case, 2)
            self._finish(case, tried, final=True)
            if tried.outcome.breaks_executor:
                guilty = True
                self._late(self._synthetic(case, [tried], "teardown"))
        if not guilty:
            self._find("executor_exit", f"{what}; no case does so alone", handle.cases)

    def _culprits(self, suspects: list[str]) -> list[str]:
        """Those of `suspects`, which together break the end of their process, that are left when halves are tried."""
        if len(suspects) == 1:
            return suspects
        middle = len(suspects) // 2
        halves = (suspects[:middle], suspects[middle:])
        return [culprit for half in halves if self._rehearsal_breaks(half) for culprit in self._culprits(half)]

    def _rehearsal_breaks(self, case_ids: Sequence[str]) -> bool:
        """Run these cases in one process again, for the sake of its end; says whether it was a bad one."""
        cases = [self._ran[case_id] for case_id in case_ids]
        handle = self._keeper.spawn(cases[0].devices)
        for case, following in zip(cases, [*case_ids[1:], None], strict=True):
            tried = attempt(handle, Request(case.item, case.id, case.seed, case.limit, following), 0)
            if not tried.usable:
                break
        good = handle.exit_status is None and leave(handle, self._context.case_timeout, light=False)
        bad = not good or handle.exit_status != 0
        self._keeper.bury(handle, "rehearsal")
        return bad

    # Journal and pytest

    def _finish(self, case: Case, tried: Attempted, *, final: bool) -> None:
        red = tried.outcome.is_red
        self._record(
            case.line(
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
                message=tried.judgement.message or first_line(tried.reports),
                detail=_detail(tried),
                stdout=tried.stdout,
                stderr=tried.stderr,
                log=_log_text(tried.reports),
                exit_status=tried.evidence.exit_status,
                notes=[*tried.notes, *_kept_files(tried)],
                reproduce=self._reproduce(case, tried) if red else None,
            )
        )

    def _find(self, kind: str, message: str, cases: Sequence[str]) -> None:
        self._record({"event": "finding", "kind": kind, "message": message, "cases": list(cases)})

    def _reproduce(self, case: Case, tried: Attempted) -> str:
        mask = {name: value for name, value in tried.environment.items() if name == MASK and value}
        return self._context.reproduce(case.id, mask)

    def _presented(self, case: Case, tries: Sequence[Attempted]) -> list[pytest.TestReport]:
        """The reports pytest is shown: the last attempt's own, or ones that stand for what pytest has no word for."""
        tried = tries[-1]
        own = list(tried.reports)
        recovered = tries[0].outcome.breaks_executor and not tried.outcome.is_red
        if not tried.outcome.is_red and not recovered:
            return own
        footer = ("harness", self._footer(case, tries))
        failing = [report for report in own if report.failed]
        if recovered or (failing and not tried.outcome.breaks_executor):
            for report in own if recovered else failing:
                report.sections.append(footer)
            for report in own if recovered else []:
                if report.when == "call" or report.skipped:
                    reports.mark(report, Outcome.FLAKY)
            return own
        when = tried.judgement.when if tried.judgement.when == "setup" else "call"
        before = [report for report in own if report.when == "setup" and report.passed and when != "setup"]
        return [*before, self._synthetic(case, tries, when), reports.plain(case.item, "teardown")]

    def _synthetic(self, case: Case, tries: Sequence[Attempted], when: str) -> pytest.TestReport:
        """The failing report of the last attempt."""
        tried = tries[-1]
        text = f"{tried.outcome}: {tried.judgement.message}"
        return reports.synthetic(
            case.item,
            outcome=tried.outcome,
            text="\n\n".join(part for part in (text, _detail(tried)) if part),
            when=when,
            duration=tried.duration,
            sections=[*_output_sections(tried), ("harness", self._footer(case, tries))],
        )

    def _footer(self, case: Case, tries: Sequence[Attempted]) -> str:
        tried = tries[-1]
        lines = [f"reproduce: {self._reproduce(case, tried)}"]
        lines.append(f"device {', '.join(tried.devices)}, seed {case.seed}, executor {tried.executor}")
        if len(tries) > 1:
            company = tries[0]
            lines.append(f"attempt 1, after other cases: {company.outcome}: {company.judgement.message}")
            lines.append(f"attempt 2, alone: {tried.outcome}")
        return "\n".join([*lines, *tried.notes, *_kept_files(tried)])


def _kept_files(tried: Attempted) -> list[str]:
    """Where the temporary files of a red attempt are, if it made any."""
    made = tried.outcome.is_red and tried.temp.is_dir() and any(tried.temp.iterdir())
    return [f"temporary files are kept in {tried.temp}"] if made else []


def _detail(tried: Attempted) -> str:
    """Tracebacks of failed phases, then the stacks of all threads when the process broke."""
    if not tried.evidence.stacks and not tried.outcome.is_red:
        return ""
    return "\n\n".join(part for part in (tracebacks(tried.reports), fold(tried.evidence.stacks).strip()) if part)


def _log_text(shown: Sequence[pytest.TestReport]) -> str:
    return "\n".join(text for report in shown for name, text in report.sections if name.startswith("Captured log"))


def _output_sections(tried: Attempted) -> list[tuple[str, str]]:
    named = (("Captured stdout", tried.stdout), ("Captured stderr", tried.stderr))
    return [(name, text) for name, text in named if text]
