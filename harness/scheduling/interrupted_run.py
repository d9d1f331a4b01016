"""``--resume DIR``: the run directory of an interrupted run, locked for this process.

One command must start a run or continue it, whatever is in the folder: a batch system repeats the command of a job
without looking. A run of which no case has started has nothing to continue, so the new run takes its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import HarnessError
from harness.core.text import format_count, list_first
from harness.journal import environment, identity, journal, reader
from harness.journal.events import Finish, RunStarted, Start
from harness.scheduling.resumption import ResumeError, Resumption
from harness.scheduling.run_lock import LOCK_FILE, RunLock
from harness.scheduling.unfinished import in_flight, lost_lines, reopened_lines, resumption_of

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
