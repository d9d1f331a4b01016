"""Summarise one run in few bytes: its machine and the result of each case. Several processes read runs in parallel."""

from __future__ import annotations

import gc
import multiprocessing
import os
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.backends.table import backend_of
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, Outcome, Ruling
from harness.core.text import escape_invalid_xml, single_line
from harness.fleet import conditions
from harness.fleet.folders import is_plain
from harness.fleet.stated import RunLevel, read_levels
from harness.journal import environment, events, identity, journal
from harness.journal.decision import Decision, decide_outcome, not_run_message, reopened_attempts
from harness.journal.environment import EnvironmentFileError
from harness.journal.events import Collected, Event, Finish, MergedShard, Reopened, RunStarted, Start
from harness.journal.journal import JournalError
from harness.journal.ledger import CollectedList, ReadProblems, RunTally, Summary
from harness.journal.reader import Damaged, Unknown, stream_journal

#: Maximum characters of a message, and of a command. A longer command is left out, since a part of it would not work.
MOST_OF_MESSAGE = 300
MOST_OF_COMMAND = 1000
#: Maximum attempts of a run whose messages are kept, and lines among which duplicates are detected.
MOST_MESSAGES = 100_000
MOST_LINES = 1_000_000
#: Maximum findings of a run, and cases of a finding.
MOST_FINDINGS = 100
MOST_CASES = 20
#: The version of a component that a machine does not have.
NONE = "none"
#: Facts of a run that belong to its machine, and the seed. Both may differ between runs.
_MACHINE = frozenset({"torch", "driver", "device", "--seed"})


class ReaderDiedError(HarnessError):
    """A process that reads runs ended before it was done."""


@dataclass(frozen=True, slots=True)
class RunDevice:
    """A device of a run. `parent`: the GPU of a MIG instance. `unique`: no other host has a device with this UUID."""

    uuid: str
    name: str
    parent: str = ""
    unique: bool = True


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case in a run: the outcome, the UUIDs of its devices, and the reason if it did not run.

    `found`: for a gated case, the machine's value, in contrast to `reason`.
    """

    outcome: Outcome
    devices: tuple[str, ...] = ()
    reason: str = ""
    found: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The message of a red or flaky case, and the command that runs it again."""

    message: str
    reproduce: str = ""


@dataclass(frozen=True, slots=True)
class RunFinding:
    """A finding of a run. `cases`: the first of its cases; `concerned`: the number of its cases."""

    kind: str
    message: str
    cases: tuple[str, ...] = ()
    concerned: int = 0
    reproduce: str = ""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. `result_numbers`: for each of `ids` a position in `results`. `troubles`: by position in `ids`.

    `facts`: facts that should be equal in all runs, such as the hash of the suites' files. `deselected`: cases that the
    run's options left out. `elsewhere`: cases of other shards. `unread`: the beginnings of ids that the run has not
    read, because it would have left them out. `parts`: run ids of the shards that it was merged from.
    `print`: runs with the same value are copies of one run. `red`: whether anything in it is red. `notes`: doubts.
    `findings`: the first of them. `exit_status`: that of the run. `conditions`: its facts other than those of the
    machine. `levels`: its statement about levels of conformance.
    """

    name: str
    run_id: str
    begun: float
    host: str
    driver: str
    torch: str
    devices: tuple[RunDevice, ...]
    facts: Mapping[str, str]
    ids: tuple[str, ...]
    result_numbers: array[int]
    results: tuple[CaseResult, ...]
    troubles: Mapping[int, Trouble]
    deselected: tuple[str, ...]
    elsewhere: tuple[str, ...]
    unread: tuple[str, ...]
    parts: tuple[str, ...]
    print: tuple[object, ...]
    fail_on_flaky: bool
    red: bool
    notes: tuple[str, ...]
    findings: tuple[RunFinding, ...] = ()
    exit_status: int = EXIT_OK
    conditions: conditions.Facts = field(default_factory=dict)
    levels: tuple[RunLevel, ...] = ()


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A run directory that cannot be read, with the reason."""

    name: str
    reason: str


def read_summaries(run_dirs: Sequence[Path], processes: int | None = None) -> Iterator[RunSummary | UnreadableRun]:
    """Return every run, in order. Several processes read, by default one per core. Raise ReaderDiedError."""
    wanted = min(processes or len(os.sched_getaffinity(0)), len(run_dirs))
    if wanted < 2:
        yield from map(read_summary, run_dirs)
        return
    # Not forked: the open files and threads of the caller are unknown.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(wanted, mp_context=context, initializer=gc.disable) as pool:
            yield from pool.map(read_summary, run_dirs)
    except BrokenProcessPool:
        message = "a process that reads runs was killed, perhaps for lack of memory: try again with fewer runs"
        raise ReaderDiedError(message) from None


def read_summary(run_dir: Path) -> RunSummary | UnreadableRun:
    """Read one run directory."""
    path, name = run_dir / journal.FILE_NAME, escape_invalid_xml(str(run_dir))
    if not is_plain(path):
        return UnreadableRun(name, f"{journal.FILE_NAME} is a symbolic link or no regular file")
    reader = _Reader()
    try:
        for line, event in stream_journal(path):
            reader.add(line, event)
        if reader.run is None:
            raise JournalError("no run started there")
        facts = environment.read_environment(run_dir) if is_plain(run_dir / environment.FILE_NAME) else None
    except EnvironmentFileError as error:
        facts = None
        reader.notes.append(str(error))
    except HarnessError as error:
        return UnreadableRun(name, single_line(str(error)))
    assert reader.run is not None
    levels, doubt = read_levels(run_dir, reader.run.run_id)
    if doubt:
        reader.notes.append(doubt)
    return replace(reader.summary(name, facts), levels=levels)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The part of a `finish` line that is kept."""

    outcome: Outcome
    final: bool
    ruling: Ruling | None
    devices: tuple[str, ...]
    message: str
    reproduce: str
    found: str = ""


class _Reader:
    """Processes the events of a run one at a time. Equal attempts are one object, since a run may have millions."""

    def __init__(self) -> None:
        self.run: RunStarted | None = None
        self.notes: list[str] = []
        self._tally = RunTally(keep_ended=False)
        self._parts: list[str] = []
        self._collected: set[str] = set()
        self._ids: dict[str, None] = {}
        self._deselected: dict[str, None] = {}
        self._elsewhere: dict[str, None] = {}
        self._unread: dict[str, None] = {}
        self._started: set[str] = set()
        self._attempts: dict[str, list[_Attempt]] = {}
        self._equal_attempts: dict[object, _Attempt] = {}
        self._lines: set[int] = set()
        self._doubled = 0
        self._damaged: list[Damaged] = []
        self._damages = 0
        self._unknown: dict[str, int] = {}
        self._print = 0
        self._size = 0

    def add(self, line: bytes, event: Event | Damaged | Unknown) -> None:
        self._print = zlib.crc32(line, self._print)
        self._size += len(line)
        match event:
            case Finish():
                self._ids.setdefault(event.case)
                if not self._is_double(line):
                    self._attempts.setdefault(event.case, []).append(self._attempt(event))
            case Start():
                self._is_double(line)
                self._started.add(event.case)
                self._ids.setdefault(event.case)
            case Damaged():
                self._damages += 1
                if len(self._damaged) < 3:
                    self._damaged.append(event)
            case Unknown():
                kind = single_line(event.kind, 40)
                if kind in self._unknown or len(self._unknown) < 20:
                    self._unknown[kind] = self._unknown.get(kind, 0) + 1
            case _:
                self._add_rare(event)

    def _add_rare(self, event: Event) -> None:
        self._tally.add(event)
        match event:
            case RunStarted():
                self.run = event
            case MergedShard():
                self._parts.append(event.run_id)
            case Collected():
                self._tally.add_collected(CollectedList.of(event))
                self._collected.update(event.ids)
                # The collected cases come first, in their order, even if other cases began before this line was
                # written.
                self._ids = dict.fromkeys(event.ids) | self._ids
                self._deselected |= dict.fromkeys(event.deselected)
                self._elsewhere |= dict.fromkeys(event.selected)
                self._unread |= dict.fromkeys(event.unread)
            case Reopened():
                attempts = self._attempts.get(event.case, [])
                self._attempts[event.case] = reopened_attempts(attempts, lambda attempt: replace(attempt, final=False))

    def _is_double(self, line: bytes) -> bool:
        """Return whether the line is a duplicate, and count duplicates. Lines are remembered up to a limit."""
        key = hash(line)
        if key in self._lines:
            self._doubled += 1
            return True
        if len(self._lines) < MOST_LINES:
            self._lines.add(key)
        return False

    def _attempt(self, finish: Finish) -> _Attempt:
        passed = finish.outcome is Outcome.PASSED and finish.ruling is None
        key: object = (finish.devices, finish.final) if passed else None
        if passed and (same := self._equal_attempts.get(key)) is not None:
            return same
        ruling = finish.ruling
        made = _Attempt(
            outcome=finish.outcome,
            final=finish.final,
            ruling=None if ruling is None else Ruling(ruling.outcome, single_line(ruling.text, MOST_OF_MESSAGE)),
            devices=finish.devices,
            message="" if passed else _message(finish),
            reproduce="" if passed or len(finish.reproduce or "") > MOST_OF_COMMAND else finish.reproduce or "",
            found="" if finish.gate is None else single_line(finish.gate.found, MOST_OF_MESSAGE),
        )
        if not passed and len(self._equal_attempts) > MOST_MESSAGES:
            made = replace(made, message="", reproduce="")
        return self._equal_attempts.setdefault(key if passed else made, made)

    def summary(self, name: str, facts: Mapping[str, Any] | None) -> RunSummary:
        run = self.run
        assert run is not None  # `read_summary` has checked this
        result_numbers, results, troubles = self._verdicts()
        unknown = sum(self._unknown.values())
        known_of = self._tally.summary(ReadProblems(self._damages, unknown, self._doubled, tuple(self._damaged)))
        status = known_of.run_exit_status()
        versions = (facts or {}).get("versions")
        torch = versions.get("torch") if isinstance(versions, dict) else None
        uuids = dict.fromkeys([*run.devices, *(uuid for result in results for uuid in result.devices)])
        ids = tuple(self._ids)
        return RunSummary(
            name=name,
            run_id=run.run_id,
            begun=run.t,
            host=single_line(run.host, 200),
            driver=single_line(str((facts or {}).get("driver") or run.identity.get("driver") or NONE), 100),
            torch=single_line(str(torch or run.identity.get("torch") or NONE), 100),
            devices=_devices(tuple(uuids), facts or {}, run),
            facts={name: text for name, text in identity.identity_facts(run).items() if name not in _MACHINE},
            ids=ids,
            result_numbers=result_numbers,
            results=results,
            troubles=troubles,
            deselected=tuple(self._deselected),
            elsewhere=tuple(self._elsewhere.keys() - self._ids.keys()),
            unread=tuple(self._unread),
            parts=tuple(self._parts),
            print=(run.run_id, run.host, run.t, run.pid, self._size, self._print),
            fail_on_flaky=run.fail_on_flaky,
            red=status not in (EXIT_OK, EXIT_NOTHING_RAN),
            notes=(*self.notes, *self._doubts(facts), *_unexplained(known_of)),
            findings=tuple(map(_finding, known_of.findings[:MOST_FINDINGS])),
            exit_status=status,
            conditions=conditions.facts_of(run, facts),
        )

    def _verdicts(self) -> tuple[array[int], tuple[CaseResult, ...], dict[int, Trouble]]:
        places: dict[CaseResult, int] = {}
        result_numbers = array("I")
        troubles: dict[int, Trouble] = {}
        decided: dict[tuple[bool, tuple[int, ...]], tuple[int, Trouble | None, Outcome, bool]] = {}
        for index, case in enumerate(self._ids):
            attempts = self._attempts.get(case, [])
            # Equal attempts are one object, and all objects are alive, so their ids are unique.
            key = (case in self._started, tuple(map(id, attempts)))
            if (verdict := decided.get(key)) is None:
                decision = decide_outcome(attempts, int(key[0]))
                result, trouble = self._result_of(decision)
                ran = decision.outcome.ran and decision.decided is not None and decision.decided.outcome.ran
                verdict = decided[key] = (places.setdefault(result, len(places)), trouble, decision.outcome, ran)
            result_numbers.append(verdict[0])
            self._tally.count(case, verdict[2], ran=verdict[3], collected=case in self._collected)
            if verdict[1] is not None:
                troubles[index] = verdict[1]
        return result_numbers, tuple(places), troubles

    def _result_of(self, decision: Decision[_Attempt]) -> tuple[CaseResult, Trouble | None]:
        outcome, by = decision.outcome, decision.decided
        if decision.ruled is not None and decision.ruled.ruling is not None:
            message = decision.ruled.ruling.text
        elif by is not None:
            message = by.message
        elif outcome is Outcome.NOT_RUN:
            message = not_run_message(self._tally.stopped)
        else:
            message = "it started and never finished"
        devices = () if by is None else by.devices
        if outcome is Outcome.FLAKY or (outcome.is_red and outcome.ran):
            return CaseResult(outcome, devices), Trouble(message or str(outcome), "" if by is None else by.reproduce)
        if outcome is Outcome.GATED and by is not None:
            return CaseResult(outcome, (), message, by.found), None
        return CaseResult(outcome, devices if outcome.ran else (), "" if outcome is Outcome.PASSED else message), None

    def _doubts(self, facts: Mapping[str, Any] | None) -> Iterator[str]:
        if self.run is not None and self.run.imported is not None:
            yield f"its cases were run {single_line(self.run.imported.text, MOST_OF_MESSAGE)}"
        if self._tally.end is None:
            yield "it did not finish"
        if self._damages:
            first = "; ".join(f"line {damaged.number}: {single_line(damaged.reason, 100)}" for damaged in self._damaged)
            yield f"lines of its journal that cannot be read: {self._damages} ({first})"
        if self._unknown:
            kinds = ", ".join(map(repr, self._unknown))
            yield f"lines of its journal of an unknown kind: {sum(self._unknown.values())} ({kinds})"
        if self._doubled:
            yield f"duplicate lines in its journal, counted once: {self._doubled}"
        if facts is None:
            yield f"it has no readable {environment.FILE_NAME}, so names of devices may be missing"


def _unexplained(summary: Summary) -> Iterator[str]:
    """Yield the reason why the run is red if neither a case nor a finding explains it."""
    status = summary.run_exit_status()
    if summary.end is None or status in (EXIT_OK, EXIT_NOTHING_RAN) or summary.red_cases or summary.findings:
        return
    yield f"it ended with exit status {status}, and no case or finding explains it: read the output of pytest"


def _finding(event: events.Finding) -> RunFinding:
    command = event.reproduce or ""
    return RunFinding(
        kind=single_line(event.kind, 100),
        message=single_line(event.message, MOST_OF_MESSAGE),
        cases=event.cases[:MOST_CASES],
        concerned=len(event.cases),
        reproduce="" if len(command) > MOST_OF_COMMAND else escape_invalid_xml(command),
    )


def _message(finish: Finish) -> str:
    if finish.gate is not None:
        gate = finish.gate
        return single_line(f"{gate.capability}: wanted {gate.wanted}", MOST_OF_MESSAGE)
    return single_line(finish.message, MOST_OF_MESSAGE)


def _devices(uuids: Sequence[str], facts: Mapping[str, Any], run: RunStarted) -> tuple[RunDevice, ...]:
    rows = {str(row.get("uuid")): row for row in environment.devices_of(facts)}
    alone = run.identity.get("device", "")
    return tuple(map(partial(_device, rows=rows, alone="" if ", " in alone else alone), uuids))


def _device(uuid: str, rows: Mapping[str, Mapping[str, Any]], alone: str) -> RunDevice:
    """Return a device. `alone`: the common name of all devices of the run, if the run's identity has one."""
    row, backend = rows.get(uuid, {}), backend_of(uuid)
    name = row.get("name") or alone or (backend.label if backend is not None and not backend.nvml else "")
    return RunDevice(
        uuid=single_line(uuid, 200),
        name=single_line(str(name or "unknown device"), 200),
        parent=single_line(str(row.get("mig_parent") or ""), 200),
        unique=backend is None or backend.nvml,
    )
