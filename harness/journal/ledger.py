"""The results of a run: its verdicts, and the facts beyond single cases. Pure functions of journal events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Protocol, Self

from harness.backends.table import labels
from harness.core.caseid import digest_of_ids
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED, Outcome, run_exit_status
from harness.core.text import format_count, single_line
from harness.journal.events import (
    Batch,
    Bisected,
    Collected,
    End,
    Event,
    Executor,
    Finding,
    Finish,
    Levels,
    MergedShard,
    MustPass,
    Reopened,
    RunStarted,
    SecondDevice,
    SessionProperty,
    Start,
    Stopped,
)
from harness.journal.journal import FILE_NAME
from harness.journal.reader import Damaged, JournalContents, Unknown, read_run_journal
from harness.journal.verdicts import CaseEvents, Verdict, decide_verdict

#: Maximum number of line numbers, and of unknown kinds, that a text names.
_NAMED = 10
#: The events about a case. A tuple, which `isinstance` takes ten times as fast as a union.
_ABOUT_CASE = (Start, Finish, Levels, Reopened)


@dataclass(frozen=True, slots=True)
class ListResult:
    """The result of a must-pass list: its name, the hash and number of its ids, and the ids that did not pass.

    `where`: the device, if its results prove nothing about a GPU; otherwise empty.
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
        title = f"must-pass list {self.name} ({format_count(self.cases, 'case')}, {self.hash[:19]}){where}"
        if not self.missed:
            return f"{title}: satisfied"
        return f"{title}: not satisfied, {len(self.missed)} did not pass, the first {self.missed[0]}"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of isolation: started executors, the seconds that starting took, restarts and retries.

    `restarts`: executors started after the first of each worker. `retries`: attempts beyond those that count.
    """

    executors: int
    startup: float
    restarts: int
    retries: int


@dataclass(frozen=True, slots=True)
class ReadProblems:
    """The number of irregular lines of a journal: unreadable, of an unknown kind, or duplicate.

    `damaged` and `unknown` hold at least the first ten of them.
    """

    damaged_lines: int = 0
    unknown_lines: int = 0
    doubled_lines: int = 0
    damaged: tuple[Damaged, ...] = ()
    unknown: tuple[Unknown, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """One sentence per irregularity that is not a finding. Unreadable lines are a finding."""
        texts = []
        if self.unknown_lines:
            named = ", ".join(f"line {line.number} {single_line(line.kind, 40)!r}" for line in self.unknown[:_NAMED])
            amount = format_count(self.unknown_lines, "line")
            texts.append(f"the journal has {amount} of an unknown kind, which a newer harness may read: {named}")
        if self.doubled_lines:
            texts.append(f"the journal has {format_count(self.doubled_lines, 'duplicate line')}, counted once")
        return tuple(texts)


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a run beyond single cases.

    `runs`: the ``run`` lines, one per part of the run. `end`: the latest line of its kind; a run without it was cut
    off. `counts`: the number of cases per outcome, in the order of severity, without zeros. `forced`: what had changed
    when the run was resumed by force. `properties`: those of the run as a whole that cases recorded, each once.
    """

    runs: tuple[RunStarted, ...] = ()
    end: End | None = None
    findings: tuple[Finding, ...] = ()
    cost: Cost = field(default_factory=lambda: Cost(0, 0.0, 0, 0))
    counts: dict[Outcome, int] = field(default_factory=dict)
    lists: tuple[ListResult, ...] = ()
    bisected: tuple[Bisected, ...] = ()
    forced: tuple[str, ...] = ()
    shards: tuple[MergedShard, ...] = ()
    second_devices: tuple[SecondDevice, ...] = ()
    searches: tuple[Batch, ...] = ()
    read_problems: ReadProblems = field(default_factory=ReadProblems)
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def run(self) -> RunStarted | None:
        """The latest ``run`` line."""
        return self.runs[-1] if self.runs else None

    @property
    def fail_on_flaky(self) -> bool:
        """Whether this run counts a flaky case as red."""
        return self.run is not None and self.run.fail_on_flaky

    def is_red(self, outcome: Outcome) -> bool:
        """Return whether a case with this outcome makes the run red."""
        return outcome.is_red or (self.fail_on_flaky and outcome is Outcome.FLAKY)

    @property
    def red_cases(self) -> int:
        """The number of cases that make the run red."""
        return sum(number for outcome, number in self.counts.items() if self.is_red(outcome))

    def exit_status(self) -> int:
        """Return the exit status of the recorded events: see harness.core.outcome.run_exit_status; 1 for any finding.

        A run without cases and without findings returns 5 (no case ran).
        """
        if self.findings:
            return EXIT_RED
        return run_exit_status(list(self.counts), fail_on_flaky=self.fail_on_flaky)

    def run_exit_status(self) -> int:
        """Return the exit status that the run ended with; 1 if it did not finish, or if a green status has red events.

        The run's own status may be worse than the events suggest: pytest also counts tests that are not cases.
        """
        if self.end is None:
            return EXIT_RED
        status = self.end.exit_status
        return EXIT_RED if status in (EXIT_OK, EXIT_NOTHING_RAN) and self.exit_status() == EXIT_RED else status


class Results(Protocol):
    """The results of a run in memory (`Ledger`) or on disk (`StoredRun`)."""

    @property
    def summary(self) -> Summary:
        """The results beyond single cases."""

    @property
    def runs(self) -> tuple[RunStarted, ...]:
        """The ``run`` lines, one per part of the run."""

    @property
    def shards(self) -> tuple[MergedShard, ...]:
        """The shards that a merged run was made of."""

    def ids(self) -> Iterator[str]:
        """Iterate over the ids of all cases, in any order."""

    def cases(self) -> Iterator[tuple[Verdict, tuple[Levels, ...]]]:
        """Iterate over the cases with verdict and ``levels`` lines, in collection order."""


@dataclass(frozen=True, slots=True)
class Ledger(Summary):
    """The results of a run in memory: one verdict per case in collection order.

    `levels`: the ``levels`` lines of the cases that have any.
    """

    verdicts: tuple[Verdict, ...] = ()
    levels: Mapping[str, tuple[Levels, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, run_dir: Path) -> Self:
        """Return the results of the run in a run directory. Raise JournalError without a journal of a run."""
        return cls.from_journal(read_run_journal(run_dir / FILE_NAME))

    @classmethod
    def from_journal(cls, contents: JournalContents) -> Self:
        """Return the results of a journal. Unreadable lines are a finding, because their contents are unknown."""
        return cls.from_lines((*contents.events, *contents.damaged, *contents.unknown))

    @classmethod
    def from_lines(cls, lines: Iterable[Event | Damaged | Unknown]) -> Self:
        """Return the results of lines, which are taken one at a time.

        There is a verdict on every case that was collected or has events, in collection order.
        """
        damaged: list[Damaged] = []
        unknown: list[Unknown] = []
        tally = RunTally()
        ids: dict[str, None] = {}
        cases: dict[str, CaseEvents] = {}
        for event in lines:
            if isinstance(event, _ABOUT_CASE):
                tally.see(event.t)
                case_events = cases.get(event.case)
                if case_events is None:
                    case_events = cases[event.case] = CaseEvents()
                case_events.add(event)
                continue
            if isinstance(event, Damaged):
                damaged.append(event)
                continue
            if isinstance(event, Unknown):
                unknown.append(event)
                continue
            tally.add(event)
            if isinstance(event, Collected):
                ids |= dict.fromkeys(event.ids)
        mentioned = dict.fromkeys(case for case, case_events in cases.items() if case_events.mentioned)
        nothing = CaseEvents()
        verdicts = []
        for case in ids | mentioned:
            case_events = cases.get(case, nothing)
            verdicts.append(tally.decide(case, case_events, collected=case in ids, ended=tally.ended.get))
        doubled = sum(case_events.doubled for case_events in cases.values())
        problems = ReadProblems(len(damaged), len(unknown), doubled, tuple(damaged[:_NAMED]), tuple(unknown[:_NAMED]))
        summary = tally.summary(problems)
        levels = {case: tuple(case_events.levels) for case, case_events in cases.items() if case_events.levels}
        beyond = {entry.name: getattr(summary, entry.name) for entry in fields(Summary)}
        return cls(**beyond, verdicts=tuple(verdicts), levels=levels)

    @property
    def summary(self) -> Summary:
        return self

    def ids(self) -> Iterator[str]:
        return (verdict.case for verdict in self.verdicts)

    def cases(self) -> Iterator[tuple[Verdict, tuple[Levels, ...]]]:
        """Yield each verdict with the ``levels`` lines of its case."""
        for verdict in self.verdicts:
            yield verdict, self.levels.get(verdict.case, ())

    @property
    def red(self) -> tuple[Verdict, ...]:
        """The verdicts that make the run red, in collection order."""
        return tuple(verdict for verdict in self.verdicts if self.is_red(verdict.outcome))


@dataclass(frozen=True, slots=True)
class CollectedList:
    """The facts of a ``collected`` line beside its ids.

    `listed`: the line has ids, or needs none. `matches`: the ids have its count and hash. `twice`: ids that occur
    twice.
    """

    worker: str
    part: int
    hash: str
    listed: bool
    matches: bool
    twice: tuple[str, ...]

    @classmethod
    def of(cls, line: Collected) -> Self:
        """Return the facts of a line whose ids are in memory."""
        return cls(
            worker=line.worker or "the controller",
            part=line.part,
            hash=line.hash,
            listed=bool(line.ids or not line.count),
            matches=line.count == len(line.ids) and line.hash == digest_of_ids(line.ids),
            twice=tuple(case for case, times in Counter(line.ids).items() if times > 1),
        )


class RunTally:
    """Totals of a run beyond single cases: add all events first, then each verdict.

    A tally keeps only cases that are unlisted or on a must-pass list, so its size does not grow with the number of
    cases. `runs`, `end`, `shards`, `stopped` and `second_devices` (by case) are known after the last event. `ended`
    holds how each executor ended, unless `keep_ended` is False because the caller keeps it.
    """

    def __init__(self, *, keep_ended: bool = True) -> None:
        self.stopped = ""
        self.ended: dict[str, Executor] = {}
        self._keep_ended = keep_ended
        self.runs: list[RunStarted] = []
        self.end: End | None = None
        self._findings: list[Finding] = []
        self._bisected: list[Bisected] = []
        self.second_devices: dict[str, list[SecondDevice]] = {}
        self._searches: list[Batch] = []
        self._forced: dict[str, None] = {}
        self._properties: dict[tuple[str, str], None] = {}
        self.shards: list[MergedShard] = []
        self._last = 0.0
        self._collected: list[CollectedList] = []
        self._lists: list[MustPass] = []
        self._executors = 0
        self._startup = 0.0
        self._workers: set[str] = set()
        self._on_lists: set[str] = set()
        self._passed: set[str] = set()
        self._unlisted: list[str] = []
        self._counts: Counter[Outcome] = Counter()
        self._ran = 0
        self._retries = 0

    def add(self, event: Event) -> None:
        """Add the next event."""
        self.see(event.t)
        match event:
            case RunStarted():
                self.runs.append(event)
                self.end, self.stopped = None, ""
                self._forced |= dict.fromkeys(event.forced)
            case End():
                self.end = event
            case Stopped():
                self.stopped = event.by
            case Collected():
                self._collected.append(CollectedList.of(event))
            case MustPass():
                self._lists.append(event)
                self._on_lists.update(event.ids)
            case Executor(state="started"):
                self._executors += 1
                self._startup += event.startup or 0.0
                self._workers.add(event.worker)
            case Executor():
                if self._keep_ended:
                    self.ended[event.executor] = event
            case MergedShard():
                self.shards.append(event)
            case Bisected():
                self._bisected.append(event)
            case SecondDevice():
                earlier = self.second_devices.setdefault(event.case, [])
                earlier += [event] if event not in earlier else []
            case Finding():
                self._findings.append(event)
            case SessionProperty():
                self._properties[event.name, event.value] = None
            case Batch():
                self._searches.append(event)

    def see(self, moment: float) -> None:
        """Record the time of an event about a case."""
        self._last = max(self._last, moment)

    def decide(
        self,
        case: str,
        events: CaseEvents,
        *,
        collected: bool,
        ended: Callable[[str], Executor | None],
        counted: bool = True,
    ) -> Verdict:
        """Return the verdict on a case, and count it. `ended` returns how an executor ended, if it is known."""
        verdict = decide_verdict(
            case,
            events,
            collected=collected,
            stopped=self.stopped,
            ended=ended,
            second_devices=self.second_devices.get(case, ()),
        )
        if counted:
            self.count(case, verdict.outcome, ran=verdict.ran, collected=collected, retries=events.retries)
        return verdict

    def count(self, case: str, outcome: Outcome, *, ran: bool, collected: bool, retries: int = 0) -> None:
        """Count the verdict on a case. `ran`: the case's own code ran to its verdict.

        `retries`: attempts beyond those that count.
        """
        self._counts[outcome] += 1
        self._ran += ran
        self._retries += retries
        if outcome is Outcome.PASSED and case in self._on_lists:
            self._passed.add(case)
        if not collected:
            self._unlisted.append(case)

    def summary(self, read_problems: ReadProblems) -> Summary:
        """Return the results beyond single cases."""
        lists = self._list_results()
        findings = [
            *self._findings,
            *self._unreadable(read_problems),
            *self._contradictions(),
            *self._shortfalls(lists),
        ]
        return Summary(
            runs=tuple(self.runs),
            end=self.end,
            findings=tuple(findings),
            cost=Cost(self._executors, self._startup, self._executors - len(self._workers), self._retries),
            counts={outcome: self._counts[outcome] for outcome in Outcome if self._counts[outcome]},
            lists=lists,
            bisected=tuple(self._bisected),
            forced=tuple(self._forced),
            shards=tuple(self.shards),
            searches=tuple(self._searches),
            second_devices=tuple(event for events in self.second_devices.values() for event in events),
            read_problems=read_problems,
            properties=tuple(self._properties),
        )

    def _unreadable(self, problems: ReadProblems) -> Iterator[Finding]:
        if problems.damaged_lines:
            lines = ", ".join(str(line.number) for line in problems.damaged[:_NAMED])
            message = f"the journal has {problems.damaged_lines} unreadable lines (line {lines}): their events are lost"
            yield self._finding("damaged_journal", message)

    def _contradictions(self) -> Iterator[Finding]:
        """Yield the findings for collected lines that contradict each other."""
        for part in sorted({line.part for line in self._collected}):
            lists = {line.hash: line.worker for line in self._collected if line.part == part}
            if len(lists) > 1:
                who = ", ".join(f"{worker} has {hash_[:15]}…" for hash_, worker in lists.items())
                yield self._finding("collections_differ", f"workers collected different cases: {who}")
        listed = {line.hash: line for line in self._collected if line.listed}
        for hash_, worker in {line.hash: line.worker for line in self._collected}.items():
            line = listed.get(hash_)
            if line is None:
                message = f"the journal has no ids for the list that {worker} collected"
                yield self._finding("collection_missing", message)
            elif not line.matches:
                message = f"the list that {worker} collected does not match its own count and hash"
                yield self._finding("collection_wrong", message)
        twice = [case for line in listed.values() for case in line.twice]
        if twice:
            message = (
                "several cases have the same id, so only one of them counts; if their files are outside the root "
                "folder, use --rootdir to name a folder that contains them"
            )
            yield self._finding("duplicate_ids", message, twice)
        if self._unlisted:
            message = f"{len(self._unlisted)} cases have events but are in no collected list"
            yield self._finding("not_collected", message, self._unlisted)

    def _list_results(self) -> tuple[ListResult, ...]:
        """Return the result of each must-pass list.

        Empty for a shard, since only all shards together can satisfy a list.
        """
        run = self.runs[-1] if self.runs else None
        if run is not None and run.shard:
            return ()
        devices = run.devices if run is not None else ()
        where = ", ".join(filter(None, [labels(devices), "a run that was resumed by force" if self._forced else ""]))
        return tuple(
            ListResult(line.name, line.hash, len(line.ids), tuple(c for c in line.ids if c not in self._passed), where)
            for line in self._lists
        )

    def _shortfalls(self, lists: Sequence[ListResult]) -> Iterator[Finding]:
        """Yield the findings for must-pass lists that were not satisfied and for too few cases."""
        for result in lists:
            if result.missed:
                yield self._finding("must_pass", result.text, result.missed)
        run = self.runs[-1] if self.runs else None
        # A run that ended early is red for that, and names its cause.
        early = self._counts[Outcome.NOT_RUN] > 0
        if run is not None and not run.shard and not early and self._ran < run.minimum_cases:
            least = run.minimum_cases
            message = f"{format_count(self._ran, 'case')} ran, but profile {run.profile} requires at least {least}"
            yield self._finding("too_few_cases", message)

    def _finding(self, kind: str, message: str, cases: Sequence[str] = ()) -> Finding:
        return Finding(t=self._last, kind=kind, message=message, cases=tuple(cases))
