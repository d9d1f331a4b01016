"""``--resume DIR``: the run directory of an interrupted run, locked for this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import HarnessError
from harness.core.text import format_count
from harness.journal import environment, identity, journal, reader
from harness.journal.events import RunStarted
from harness.scheduling.resumption import ResumeError, Resumption
from harness.scheduling.run_lock import RunLock
from harness.scheduling.unfinished import in_flight, lost_lines, reopened_lines, resumption_of


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
        """Return the run that ``--resume`` names; None without it. `base`: the working folder. Raise UsageError."""
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
            return cls((base / wanted).resolve(), force=settings["force_resume"])
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


def changed_conditions_message(changes: tuple[str, ...]) -> str:
    """Return the sentence for a run that cannot be resumed because something has changed."""
    return (
        f"the run was started under other conditions: {'; '.join(changes)}; "
        "type the same command as for the run and restore what has changed, or add --force-resume"
    )
