"""Derive one verdict per case, and the facts of the run, from the events of a journal. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from harness.backends.table import labels
from harness.caseid import suite_of
from harness.outcome import EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED, Outcome, exit_status
from harness.reporting.decision import decide, reopened
from harness.reporting.events import (
    Bisected,
    Collected,
    End,
    Event,
    Executor,
    Finding,
    Finish,
    Levels,
    MustPass,
    Reopened,
    RunStarted,
    Start,
    Stopped,
)
from harness.reporting.journal import JournalContents, digest
from harness.text import counted, exit_text


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one case.

    `finishes` are all ended attempts in order. `decided` is the attempt that gave the outcome, or to which a rule of
    the run was applied; None for `lost` and `not_run`. `message` is one line, "" for a plain pass. `collected` is
    False for a case that has events but is in no collected list.
    """

    case: str
    suite: str
    outcome: Outcome
    message: str
    finishes: tuple[Finish, ...]
    decided: Finish | None
    started: int
    collected: bool

    @property
    def ran(self) -> bool:
        """Whether the case's own code ran to a verdict. False if a rule made a gated or skipped case red."""
        return self.outcome.ran and self.decided is not None and self.decided.outcome.ran

    @property
    def earlier(self) -> tuple[Finish, ...]:
        """The red attempts that did not decide the verdict, in order.

        `lost` attempts are left out: they give no information about the case.
        """
        others = (finish for finish in self.finishes if finish is not self.decided)
        return tuple(finish for finish in others if finish.outcome.is_red and finish.outcome is not Outcome.LOST)

    @property
    def reproduce(self) -> str | None:
        """The command of the latest attempt that has one: the deciding attempt, otherwise the last red one."""
        return next((finish.reproduce for finish in reversed(self.finishes) if finish.reproduce), None)

    @property
    def duration(self) -> float:
        """Seconds of all attempts together."""
        return sum(finish.duration for finish in self.finishes)


@dataclass(frozen=True, slots=True)
class ListResult:
    """The result of a must-pass list: its name, the hash and number of its ids, and the ids that did not pass.

    `where` names the device if a result on it is no statement about a GPU.
    """

    name: str
    hash: str
    cases: int
    missed: tuple[str, ...]
    where: str = ""

    @property
    def text(self) -> str:
        """One line: ``must-pass list cpu (124 cases, sha256:0123456789ab): satisfied``."""
        where = f" on {self.where}" if self.where else ""
        what = f"must-pass list {self.name} ({counted(self.cases, 'case')}, {self.hash[:19]}){where}"
        if not self.missed:
            return f"{what}: satisfied"
        return f"{what}: not satisfied, {len(self.missed)} did not pass, the first {self.missed[0]}"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of isolation: executors started, the seconds that starting took, restarts and retries.

    `restarts`: executors started after the first of each worker. `retries`: attempts beyond those that count.
    """

    executors: int
    startup: float
    restarts: int
    retries: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """The results of a run: one verdict per case in collection order, and the problems beyond single cases.

    `run` and `end` are the latest lines of their kind, or None. A run without `end` was cut off. `forced`: what had
    changed when the run was resumed all the same.
    """

    run: RunStarted | None
    end: End | None
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]
    cost: Cost
    lists: tuple[ListResult, ...] = ()
    bisected: tuple[Bisected, ...] = ()
    levels: tuple[Levels, ...] = ()
    forced: tuple[str, ...] = ()

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> Self:
        """Decide the verdict of every case that was collected or has events, in collection order."""
        builder = _LedgerBuilder()
        for event in events:
            builder.add(event)
        ids, ordered = builder.collection()
        verdicts = tuple(builder.verdict(case, collected=case in ids) for case in ordered)
        lists = builder.lists(verdicts)
        return cls(
            run=builder.run,
            end=builder.end,
            verdicts=verdicts,
            findings=(*builder.findings, *builder.contradictions(), *builder.shortfalls(verdicts, lists)),
            cost=builder.cost(),
            lists=lists,
            bisected=tuple(builder.bisected),
            levels=tuple(builder.levels),
            forced=tuple(builder.forced),
        )

    @classmethod
    def from_journal(cls, contents: JournalContents) -> Self:
        """Like `from_events`. Unreadable lines are a finding, because their contents are unknown."""
        events = list(contents.events)
        if contents.damaged:
            lines = ", ".join(str(line.number) for line in contents.damaged[:10])
            message = f"the journal has {len(contents.damaged)} unreadable lines (line {lines}): their events are lost"
            when = events[-1].t if events else 0.0
            events.append(Finding(event="finding", t=when, kind="damaged_journal", message=message))
        return cls.from_events(events)

    @property
    def counts(self) -> dict[Outcome, int]:
        """The number of cases with each outcome, in the order of severity, without zeros."""
        counter = Counter(verdict.outcome for verdict in self.verdicts)
        return {outcome: counter[outcome] for outcome in Outcome if counter[outcome]}

    @property
    def fail_on_flaky(self) -> bool:
        """Whether this run counts a flaky case as red."""
        return self.run is not None and self.run.fail_on_flaky

    @property
    def red(self) -> tuple[Verdict, ...]:
        """The verdicts that make the run red, in collection order."""
        return tuple(
            verdict
            for verdict in self.verdicts
            if verdict.outcome.is_red or (self.fail_on_flaky and verdict.outcome is Outcome.FLAKY)
        )

    def exit_status(self) -> int:
        """The exit status that follows from the recorded events: see harness.outcome.exit_status; 1 for any finding.

        A run without cases and without findings is 5 (nothing ran).
        """
        if self.findings:
            return EXIT_RED
        return exit_status([verdict.outcome for verdict in self.verdicts], fail_on_flaky=self.fail_on_flaky)

    def run_exit_status(self) -> int:
        """The exit status that the run ended with. 1 if the run did not finish, or if a green status has red events.

        The run's own status may be worse than the events suggest: pytest also counts tests that are not cases.
        """
        if self.end is None:
            return EXIT_RED
        status = self.end.exit_status
        return EXIT_RED if status in (EXIT_OK, EXIT_NOTHING_RAN) and self.exit_status() == EXIT_RED else status


class _LedgerBuilder:
    """The events of a run, grouped by kind and case."""

    def __init__(self) -> None:
        self.run: RunStarted | None = None
        self.end: End | None = None
        self.stopped: Stopped | None = None
        self.findings: list[Finding] = []
        self.bisected: list[Bisected] = []
        self.levels: list[Levels] = []
        self.forced: dict[str, None] = {}
        self._last = 0.0
        self._collected: list[Collected] = []
        self._lists: list[MustPass] = []
        self._starts: dict[str, list[Start]] = {}
        self._finishes: dict[str, list[Finish]] = {}
        self._mentioned: dict[str, None] = {}
        self._executors: list[Executor] = []
        self._ended: dict[str, Executor] = {}

    def add(self, event: Event) -> None:
        self._last = max(self._last, event.t)
        match event:
            case RunStarted():
                self.run, self.end, self.stopped = event, None, None
                self.forced |= dict.fromkeys(event.forced)
            case End():
                self.end = event
            case Collected():
                self._collected.append(event)
            case Stopped():
                self.stopped = event
            case MustPass():
                self._lists.append(event)
            case Start():
                self._starts.setdefault(event.case, []).append(event)
                self._mentioned[event.case] = None
            case Finish():
                self._finishes.setdefault(event.case, []).append(event)
                self._mentioned[event.case] = None
            case Reopened():
                self._reopen(event.case)
            case Executor(state="started"):
                self._executors.append(event)
            case Executor():
                self._ended[event.executor] = event
            case Bisected():
                self.bisected.append(event)
            case Levels():
                self.levels.append(event)
            case Finding():
                self.findings.append(event)

    def _reopen(self, case: str) -> None:
        """The attempts at a case that ended without a verdict on it do not count any more."""
        finishes = self._finishes.get(case, [])
        self._finishes[case] = reopened(finishes, lambda each: each.model_copy(update={"final": False}))

    def collection(self) -> tuple[dict[str, None], list[str]]:
        """The collected ids, and all ids that need a verdict: the collected ones, then those that only have events."""
        ids = dict.fromkeys(case for line in self._collected for case in line.ids)
        return ids, list(ids | self._mentioned)

    def contradictions(self) -> list[Finding]:
        """The findings for collected lines that contradict each other."""
        found = []
        by_hash = {line.hash: line.worker or "the controller" for line in self._collected}
        for part in sorted({line.part for line in self._collected}):
            lists = {line.hash: line.worker or "the controller" for line in self._collected if line.part == part}
            if len(lists) > 1:
                who = ", ".join(f"{worker} has {hash_[:15]}…" for hash_, worker in lists.items())
                found.append(self._finding("collections_differ", f"workers collected different cases: {who}"))
        listed = {line.hash: line for line in self._collected if line.ids or not line.count}
        for hash_, worker in by_hash.items():
            line = listed.get(hash_)
            if line is None:
                message = f"the journal has no ids for the list that {worker} collected"
                found.append(self._finding("collection_missing", message))
            elif line.count != len(line.ids) or line.hash != digest(line.ids):
                message = f"the list that {worker} collected does not match its own count and hash"
                found.append(self._finding("collection_wrong", message))
        twice = [case for line in listed.values() for case, times in Counter(line.ids).items() if times > 1]
        if twice:
            message = (
                "several cases have the same id, so only one of them counts; if their files are outside the root "
                "folder, use --rootdir to name a folder that contains them"
            )
            found.append(self._finding("duplicate_ids", message, twice))
        ids, ordered = self.collection()
        unlisted = [case for case in ordered if case not in ids]
        if unlisted:
            message = f"{len(unlisted)} cases have events but are in no collected list"
            found.append(self._finding("not_collected", message, unlisted))
        return found

    def lists(self, verdicts: Sequence[Verdict]) -> tuple[ListResult, ...]:
        """The result of each must-pass list. None for a shard: only all shards together can satisfy a list."""
        if self.run is not None and self.run.shard:
            return ()
        passed = {verdict.case for verdict in verdicts if verdict.outcome is Outcome.PASSED}
        devices = self.run.devices if self.run is not None else ()
        where = ", ".join(filter(None, [labels(devices), "a run that was resumed by force" if self.forced else ""]))
        return tuple(
            ListResult(line.name, line.hash, len(line.ids), tuple(c for c in line.ids if c not in passed), where)
            for line in self._lists
        )

    def shortfalls(self, verdicts: Sequence[Verdict], lists: Sequence[ListResult]) -> list[Finding]:
        """The findings for must-pass lists that were not satisfied and for too few cases."""
        found = [self._finding("must_pass", each.text, each.missed) for each in lists if each.missed]
        ran = sum(verdict.ran for verdict in verdicts)
        if self.run is not None and not self.run.shard and ran < self.run.minimum_cases:
            message = (
                f"{counted(ran, 'case')} ran, but profile {self.run.profile} requires at least {self.run.minimum_cases}"
            )
            found.append(self._finding("too_few_cases", message))
        return found

    def _finding(self, kind: str, message: str, cases: Sequence[str] = ()) -> Finding:
        return Finding(event="finding", t=self._last, kind=kind, message=message, cases=tuple(cases))

    def verdict(self, case: str, *, collected: bool) -> Verdict:
        starts = self._starts.get(case, [])
        finishes = self._finishes.get(case, [])
        decision = decide(finishes, len(starts))
        outcome, decided = decision.outcome, decision.decided
        ruling = None if decision.ruled is None else decision.ruled.ruling
        if ruling is not None:
            message = ruling.text
        elif outcome is Outcome.NOT_RUN and decided is None:
            how = f"was stopped by {self.stopped.by}" if self.stopped is not None else "ended"
            message = f"the run {how} before it started"
        elif outcome is Outcome.LOST and decided is None:
            message = self._lost_message(starts, finishes)
        elif outcome is Outcome.FLAKY:
            message = _flaky_message(finishes)
        else:
            message = "" if decided is None else _message(decided)
        return Verdict(
            case=case,
            suite=suite_of(case),
            outcome=outcome,
            message=message,
            finishes=tuple(finishes),
            decided=decided,
            started=len(starts),
            collected=collected,
        )

    def _lost_message(self, starts: Sequence[Start], finishes: Sequence[Finish]) -> str:
        if finishes:
            broke = finishes[-1]
            message = f"broke in company ({broke.outcome}) and was never confirmed alone"
            return f"{message}: {broke.message}" if broke.message else message
        start = starts[-1]
        where = f"worker {start.worker or 'none'}, executor {start.executor or 'none'}"
        devices = " ".join(start.devices) or "none"
        message = f"started on {where}, devices {devices}, seed {start.seed}, and never finished"
        ended = self._ended.get(start.executor or "")
        if ended is not None and ended.exit_status is not None:
            message += f"; that executor ended with {exit_text(ended.exit_status)}"
        if ended is not None and ended.reason:
            message += f" ({ended.reason})"
        return message

    def cost(self) -> Cost:
        workers = {executor.worker for executor in self._executors}
        return Cost(
            executors=len(self._executors),
            startup=sum(executor.startup or 0.0 for executor in self._executors),
            restarts=len(self._executors) - len(workers),
            retries=sum(max(0, len(starts) - self._counting(case)) for case, starts in self._starts.items()),
        )

    def _counting(self, case: str) -> int:
        """How many attempts at a case count: one, or every repetition with ``--repeat``."""
        return max(1, sum(finish.final for finish in self._finishes.get(case, [])))


def _flaky_message(finishes: Sequence[Finish]) -> str:
    for finish in finishes:
        if finish.outcome.is_red and not finish.final:
            how = "at first, passed when tried again" if finish.alone else "in company, passed alone"
            return f"{finish.outcome} {how}: {_message(finish)}"
    return "broke in company, passed alone"


def _message(finish: Finish) -> str:
    """The attempt's own message. If it has none: the gate, exit status or outcome; "" for a plain pass."""
    if finish.message or finish.outcome is Outcome.PASSED:
        return finish.message
    if finish.gate is not None:
        gate = finish.gate
        return f"{gate.capability}: wanted {gate.wanted}, found {gate.found}"
    if finish.exit_status is not None:
        return f"{finish.outcome}: {exit_text(finish.exit_status)}"
    return str(finish.outcome)
