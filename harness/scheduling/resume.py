"""Runs that continue an earlier one: ``--resume DIR``, ``--from DIR --only WORDS``, and the lock of a run directory.

The first part are the finished and unfinished cases of an interrupted run: pure functions of its journal.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from harness.configuration.values import RED
from harness.core import clock
from harness.core.atomic import write_atomically
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.core.text import format_count, list_first
from harness.gating import patterns
from harness.journal import environment, identity, journal, reader
from harness.journal.events import Collected, Executor, Finding, Finish, Reopened, RunStarted, Start
from harness.journal.ledger import Ledger
from harness.journal.reader import JournalContents
from harness.journal.verdicts import Verdict
from harness.scheduling.workers import Finished, ResumeError, Resumption

#: The outcomes of attempts that give no information about the case.
_NO_VERDICT = (Outcome.NOT_RUN, Outcome.LOST)


def resumption_of(contents: JournalContents, *, forced: bool = False) -> Resumption:
    """Return the state of the run in this journal. Raise ResumeError if it had not collected its cases yet."""
    lines = [event for event in contents.events if isinstance(event, Collected)]
    if not lines:
        raise ResumeError("the run ended before it had collected its cases: start it again")
    run = next(event for event in contents.events if isinstance(event, RunStarted))
    if run.imported is not None:
        raise ResumeError(f"its cases were run {run.imported.text}: only a run of the harness can be resumed")
    needed = finals_needed(run)
    verdicts = Ledger.from_lines(contents.events).verdicts
    finished = {verdict.case: _finished(verdict) for verdict in verdicts if is_finished(verdict, needed)}
    last: dict[str, int] = {}
    for event in contents.events:
        if isinstance(event, Start | Finish):
            last[event.case] = max(last.get(event.case, 0), event.attempt)
    return Resumption(
        finished=finished,
        attempts={verdict.case: last.get(verdict.case, 0) for verdict in verdicts if verdict.case not in finished},
        executors=_numbers(event.executor for event in contents.events if isinstance(event, Executor)),
        ids=tuple(dict.fromkeys(case for line in lines for case in line.ids)),
        findings=frozenset((event.kind, event.message) for event in contents.events if isinstance(event, Finding)),
        part=1 + sum(isinstance(event, RunStarted) for event in contents.events),
        forced=forced,
    )


@dataclass(frozen=True, slots=True)
class Needed:
    """The number of attempts that must count before a case has its verdict. `until_red`: one red attempt is enough."""

    finals: int = 1
    until_red: bool = False


def finals_needed(run: RunStarted) -> Needed:
    """Return the numbers that the run's options require."""
    repeat = run.settings.get("repeat")
    if run.isolation == "none" or run.settings.get("verify") or not isinstance(repeat, int):
        return Needed()
    return Needed(repeat, until_red=bool(run.settings.get("until_fail")))


def is_finished(verdict: Verdict, needed: Needed) -> bool:
    """Return whether a case has its verdict.

    A case that was stopped, not run or lost by the harness has no verdict. The loss may be recorded: a worker may live
    for a moment after its zygote and its executor have been killed with the run.
    """
    finals = [finish for finish in verdict.finishes if finish.final]
    if not finals or finals[-1].outcome in _NO_VERDICT:
        return False
    if finals[-1].gate is not None or (needed.until_red and finals[-1].outcome.is_red):
        return True
    return sum(finish.outcome not in _NO_VERDICT for finish in finals) >= needed.finals


def _finished(verdict: Verdict) -> Finished:
    decided = verdict.decided or verdict.finishes[-1]
    return Finished(
        outcome=verdict.outcome,
        message=verdict.message,
        detail=decided.detail,
        duration=verdict.duration,
        phases=decided.phases,
        reproduce=verdict.reproduce or "",
    )


def _numbers(names: Iterable[str]) -> dict[str, int]:
    highest: dict[str, int] = {}
    for name in names:
        worker, _, number = name.rpartition("-e")
        if number.isdecimal():
            highest[worker] = max(highest.get(worker, 0), int(number))
    return highest


def reopened_lines(contents: JournalContents, resumption: Resumption) -> list[Reopened]:
    """Return a journal line for each case that has ended but runs again: its end no longer counts."""
    ended = {
        event.case: None
        for event in contents.events
        if isinstance(event, Finish) and event.final and event.outcome in _NO_VERDICT
    }
    return [Reopened(t=clock.now(), case=case) for case in ended if case in resumption.attempts]


def in_flight(contents: JournalContents, resumption: Resumption) -> frozenset[str]:
    """Return the unfinished cases that ran when the run was interrupted: their last attempt has not ended, or was lost.

    A worker that lived for a moment longer may have written the loss itself.
    """
    last: dict[str, Start | Finish] = {}
    for event in contents.events:
        if isinstance(event, Start | Finish) and event.case in resumption.attempts:
            last[event.case] = event
    return frozenset(case for case, event in last.items() if isinstance(event, Start) or event.outcome is Outcome.LOST)


def lost_lines(contents: JournalContents) -> list[Finish]:
    """Return a journal line for each attempt that was in flight when the run was interrupted: the attempt is lost."""
    begun: Counter[tuple[str, int, str, str | None]] = Counter()
    starts: dict[tuple[str, int, str, str | None], Start] = {}
    for event in contents.events:
        if isinstance(event, Start | Finish):
            key = event.case, event.attempt, event.worker, event.executor
            begun[key] += 1 if isinstance(event, Start) else -1
            if isinstance(event, Start):
                starts[key] = event
    return [
        start.ended(Outcome.LOST, "the run was interrupted while the case ran", t=clock.now(), final=False)
        for key, start in starts.items()
        if begun[key] > 0
    ]


# ``--resume DIR``: the run directory of an interrupted run, locked for this process.
#
# One command must start a run or continue it, whatever is in the folder: a batch system repeats the command of a
# job without looking. A run of which no case has started has nothing to continue, so the new run takes its place.

#: A file system may fill a file with zeros if the power fails.
_PADDING = b"\0\n "


class InterruptedRun:
    """The files of a run to resume. While the object exists, no other run can write there."""

    def __init__(self, run_dir: Path, *, force: bool) -> None:
        """`force`: resume despite any changes. Raise HarnessError if the folder has no run, or another run uses it."""
        self.run_dir = run_dir
        self.force = force
        contents = reader.read_run_journal(run_dir / journal.FILE_NAME)
        try:
            self._lock = RunLock(run_dir)
        except OSError as error:
            raise ResumeError(f"cannot write into {str(run_dir)!r}: {error.strerror}") from None
        try:
            contents = reader.read_run_journal(run_dir / journal.FILE_NAME)  # again: another run may have written since
            self.resumption: Resumption = resumption_of(contents, forced=force)
        except BaseException:
            self._lock.release()
            raise
        self.lost = lost_lines(contents)
        self._in_flight = in_flight(contents, self.resumption)
        self.reopened = reopened_lines(contents, self.resumption)
        self._first = next(event for event in contents.events if isinstance(event, RunStarted))

    @classmethod
    def of(cls, settings: Mapping[str, Any], base: Path) -> InterruptedRun | None:
        """Return the run that ``--resume`` names. None without it, or if the folder has nothing to continue.

        `base`: the working folder. Raise UsageError.
        """
        wanted = settings["resume"]
        if wanted is None:
            if settings["force_resume"]:
                raise pytest.UsageError("--force-resume needs --resume=DIR: the run to continue")
            return None
        if settings["results_dir"] is not None and (base / settings["results_dir"]) != base / wanted:
            raise pytest.UsageError(
                f"--resume={str(wanted)!r} and --results-dir={str(settings['results_dir'])!r}: "
                "a resumed run continues in its own run directory, so leave out --results-dir"
            )
        try:
            run_dir = (base / wanted).resolve()
            return None if nothing_to_continue(run_dir) else cls(run_dir, force=settings["force_resume"])
        except HarnessError as error:
            raise pytest.UsageError(f"--resume={str(wanted)!r}: {error}") from None

    @property
    def seed(self) -> int:
        return self._first.seed

    @property
    def text(self) -> str:
        """The remaining work of the run, for people."""
        total, finished, running = len(self.resumption.ids), len(self.resumption.finished), len(self._in_flight)
        flight = f", {running} of them in flight when it was interrupted" if running else ""
        replayed = f"{finished} of {format_count(total, 'case')} have their verdict and are replayed"
        return f"resumed, part {self.resumption.part}: {replayed}; {total - finished} are left{flight}"

    def changes(self, run: RunStarted) -> tuple[str, ...]:
        """Return what has changed since the run was started, one text per fact. `run`: its next ``run`` line.

        Raise ResumeError if something has changed and the run is not forced.
        """
        before, now = (
            {**identity.identity_facts(started), "devices": ", ".join(started.devices), "--shard": started.shard}
            for started in (self._first, run)
        )
        changes = tuple(difference.text for difference in identity.differences(before, now))
        if changes and not self.force:
            raise ResumeError(changed_conditions_message(changes))
        return changes

    def keep_environment(self) -> None:
        """Keep the environment.json of the earlier part. Raise OSError."""
        path = self.run_dir / environment.FILE_NAME
        if path.exists():
            path.rename(path.with_stem(f"{path.stem}-{self.resumption.part - 1}"))

    def release(self) -> None:
        """Release the folder for other runs."""
        self._lock.release()


def nothing_to_continue(run_dir: Path) -> str:
    """Return why a run in this folder starts from the beginning. Empty if a case of a run there has started.

    Raise JournalError, ResumeError if the folder holds something else than a run.
    """
    path = run_dir / journal.FILE_NAME
    try:
        if path.stat().st_size == 0 or not path.read_bytes().strip(_PADDING):
            return "its journal is empty"
    except FileNotFoundError:
        return _no_journal(run_dir)
    except OSError as error:
        raise ResumeError(f"cannot read {str(path)!r}: {error.strerror}") from None
    events = reader.read_journal(path).events
    return "" if any(isinstance(event, Start | Finish) for event in events) else "no case of the run there had started"


def _no_journal(run_dir: Path) -> str:
    try:
        names = {path.name for path in run_dir.iterdir()}
    except FileNotFoundError:
        return "there is no such folder yet"
    except OSError as error:
        raise ResumeError(f"cannot read {str(run_dir)!r}: {error.strerror}") from None
    if names and LOCK_FILE not in names:
        raise ResumeError(
            f"the folder has {list_first(sorted(names), 3)} and no run: name a run directory or a new one"
        )
    return "there is no run in it"


def set_aside(run_dir: Path) -> None:
    """Rename the journal of a run of which no case had started, so that a new run can begin. Raise OSError."""
    path = run_dir / journal.FILE_NAME
    number = 1
    while (kept := path.with_stem(f"{path.stem}-not-begun-{number}")).exists():
        number += 1
    with contextlib.suppress(FileNotFoundError):
        path.rename(kept)


def changed_conditions_message(changes: tuple[str, ...]) -> str:
    """Return the sentence for a run that cannot be resumed because something has changed."""
    return (
        f"the run was started under other conditions: {'; '.join(changes)}; "
        "type the same command as for the run and restore what has changed, or add --force-resume"
    )


# The lock of a run directory: one run writes to it at a time.

LOCK_FILE = ".lock"


class RunLockedError(HarnessError):
    """Another process writes to the run directory."""


class RunLock:
    """The lock of a run's controller. The kernel releases it when the process ends in any way."""

    def __init__(self, run_dir: Path) -> None:
        """Take the lock. Raise RunLockedError if another process has it, OSError if the folder is not writable."""
        self._lock = FileLock(run_dir / LOCK_FILE, thread_local=False)
        try:
            # Without file locks, runs work, but cannot detect that two of them share a folder.
            with contextlib.suppress(NotImplementedError):
                self._lock.acquire(blocking=False)
        except Timeout:
            raise RunLockedError("another run writes to it now: wait for its end, or stop it") from None

    def release(self) -> None:
        """Release the lock. The file stays, because a file that is removed and created again could be locked twice."""
        self._lock.release()


# ``--from DIR --only WORDS``: the cases that had certain verdicts in an earlier run.

_FILE = "only.json"


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The cases of an earlier run that have one of the wanted verdicts. `text`: what was selected, for people."""

    ids: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, settings: Mapping[str, Any], base: Path) -> EarlierRun | None:
        """Return the cases that ``--from`` and ``--only`` select; None without them. `base`: the working folder.

        Raise pytest.UsageError.
        """
        if settings["from"] is None:
            if settings["only"]:
                raise pytest.UsageError(
                    f"--only={','.join(settings['only'])} needs --from=DIR: the run with the verdicts"
                )
            return None
        try:
            return cls.read(base / settings["from"], settings["only"])
        except HarnessError as error:
            raise pytest.UsageError(f"--from={str(settings['from'])!r}: {error}") from None

    @classmethod
    def read(cls, run_dir: Path, only: Sequence[str]) -> EarlierRun:
        """Read a run directory. `only`: words of `harness.configuration.options.VERDICTS`; empty for red cases.

        Raise JournalError if it has no run.
        """
        ledger = Ledger.of(run_dir)
        red = {verdict.case for verdict in ledger.red}
        words = only or (RED,)
        ids = tuple(
            verdict.case
            for verdict in ledger.verdicts
            if verdict.outcome.value in words or (RED in words and verdict.case in red)
        )
        return cls(ids, f"{format_count(len(ids), 'case')} of {run_dir} that {_are(ids)} {', '.join(words)}")

    def gone(self, cases: Container[str], arguments: Sequence[str]) -> str:
        """Return a sentence if cases no longer exist; else an empty text.

        `cases`: all collected cases, even deselected ones.

        Cases outside the `arguments` of this run are ignored.
        """
        missing = [case for case in self.ids if case not in cases and patterns.pattern_reaches(case, arguments)]
        if not missing:
            return ""
        amount = "a case" if len(missing) == 1 else f"{len(missing)} cases"
        return f"--from names {amount} that this tree does not have: {list_first(missing)}"

    def write(self, folder: Path) -> Path:
        """Write the ids to a file that workers read (`harness.scheduling.order.read_ids`). Raise WriteError."""
        return write_atomically(folder / _FILE, json.dumps(self.ids).encode("ascii"))


def _are(ids: Sequence[str]) -> str:
    return "is" if len(ids) == 1 else "are"
