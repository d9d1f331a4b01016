"""Collects evidence about red cases into the run directory (``--collect-on-failure``), with a time limit per item.

The first part finds the place to which the kernel writes the core file of a process: core(5).
"""

from __future__ import annotations

import glob
import os
import re
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.backends.table import BACKENDS
from harness.configuration.context import RunContext
from harness.core import clock
from harness.core.disposable import run_disposable
from harness.core.outcome import Outcome
from harness.core.text import format_exit_code
from harness.devices import kernel_log
from harness.journal.journal import WorkerJournal
from harness.scheduling.stop_request import StopListener
from harness.supervisor.attempt import Attempt
from harness.supervisor.case import Case
from harness.supervisor.executor_handle import ExecutorHandle

CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
CORE_USES_PID = Path("/proc/sys/kernel/core_uses_pid")
#: Signals whose default action writes a core file: signal(7).
CORE_SIGNALS = frozenset(
    {
        signal.SIGQUIT, signal.SIGILL, signal.SIGABRT, signal.SIGFPE, signal.SIGSEGV, signal.SIGBUS, signal.SIGSYS,
        signal.SIGTRAP, signal.SIGXCPU, signal.SIGXFSZ,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CorePlace:
    """The place of a core file: files that match `files`, or no place, for the reason `why`."""

    files: str = ""
    why: str = ""


def core_place(pattern: str, *, uses_pid: bool, limit: int, pid: int, folder: Path) -> CorePlace:
    """Return the place of a process's core file.

    `pattern`: the kernel's core_pattern. `limit`: the process's limit for core files in bytes. `folder`: its working
    folder.
    """
    pattern = pattern.strip()
    if pattern.startswith("|"):
        program = pattern[1:].split(maxsplit=1)[0] if pattern[1:].strip() else "a program"
        return CorePlace(
            why=f"the kernel gives it to {program} (process {pid}), see coredumpctl or that program's folder"
        )
    if limit == 0:
        return CorePlace(why="the limit for core files is 0, see ulimit -c")
    if not pattern:
        return CorePlace(why="the kernel's core_pattern is empty")
    has_pid = "%p" in pattern or "%P" in pattern
    name = re.sub(r"%(.?)", lambda match: _part_of_name(match[1], pid), glob.escape(pattern))
    if uses_pid and not has_pid:
        name += f".{pid}"
    return CorePlace(files=os.path.join(glob.escape(str(folder)), name))


def newest_core(files: str, since: float) -> Path | None:
    """Return the newest file that matches `files` and was written at `since` or later, in seconds since 1970."""
    candidates = []
    for name in glob.glob(files):
        path = Path(name)
        try:
            written = path.stat().st_mtime
        except OSError:
            continue  # removed since
        if path.is_file() and written >= since:
            candidates.append((written, path))
    return max(candidates)[1] if candidates else None


def core_of_process(pid: int, folder: Path, since: float) -> tuple[Path | None, str]:
    """Return the core file of a process that has ended, or None and the reason."""
    try:
        pattern = CORE_PATTERN.read_text(errors="replace")
        uses_pid = CORE_USES_PID.read_text().strip() != "0"
    except OSError as error:
        return None, f"cannot read the kernel's core_pattern: {error.strerror}"
    limit = resource.getrlimit(resource.RLIMIT_CORE)[0]  # executors inherit the limit of their supervisor
    where = core_place(pattern, uses_pid=uses_pid, limit=limit, pid=pid, folder=folder)
    if where.why:
        return None, where.why
    path = newest_core(where.files, since)
    return path, "" if path is not None else f"there is none at {where.files}"


def _part_of_name(specifier: str, pid: int) -> str:
    """Return the glob pattern for ``%`` and this letter in the name of a core file."""
    if specifier in ("p", "P", "i", "I"):
        return str(pid) if specifier in ("p", "P") else "*"
    return "%" if specifier == "%" else "*" if specifier else ""


#: Seconds that a program may take.
SMI_LIMIT, REPORT_LIMIT = 30.0, 300.0
#: A driver may hold a killed program: do not wait long for it.
_LADDER = ((signal.SIGKILL, 2.0),)
#: How many red cases of one worker get diagnostics: of those that broke their process, and of the others.
MOST = 10
#: The subfolder, in the folder of an executor's files.
FOLDER = "diagnostics"
#: Files that an executor writes into its own folder when a case fails.
SNAPSHOTS = "allocator-snapshot-*"
#: The clock of the kernel's log and the monotonic clock differ by less than this many seconds.
_CLOCKS = 5.0


@dataclass(frozen=True, slots=True)
class RedAttempt:
    """A red attempt. `folder`: where its diagnostics go.

    `begun`: the begin on the monotonic clock, and in seconds since 1970.

    `hardware`: it ran on GPUs. `pid` and `exit_status` are those of its executor.
    """

    outcome: Outcome
    folder: Path
    number: int
    hardware: bool
    pid: int
    exit_status: int | None
    begun: tuple[float, float]


class Diagnostics:
    """Collects files and notes about the red cases of a worker."""

    def __init__(self, context: RunContext, journal: WorkerJournal, stop: StopListener) -> None:
        """After a request to `stop` the run, no program is started."""
        self._items = context.collect_on_failure
        #: The first worker that writes the bug report of the run makes this file.
        self._once = Path(context.temp_dir) / "bug-report-made"
        self._working_folder = Path(context.invocation_dir)
        self._journal = journal
        self._stop = stop
        self._made: Counter[bool] = Counter()

    def add(self, case: Case, handle: ExecutorHandle, attempt: Attempt) -> Attempt:
        """Collect evidence about a red attempt, unless a waiver expects it.

        Returns the attempt with notes about the evidence.
        """
        if not self._items or any(attempt.outcome in waiver.expect for waiver in case.waivers):
            return attempt
        failure = RedAttempt(
            outcome=attempt.outcome,
            folder=attempt.kept,
            number=len(handle.cases),
            hardware=BACKENDS[handle.binding.kind].nvml,
            pid=handle.pid,
            exit_status=attempt.evidence.exit_status,
            begun=(clock.monotonic() - attempt.duration, clock.now() - attempt.duration),
        )
        with self._journal.doing(f"collecting diagnostics after {case.id} was {attempt.outcome}"):
            return replace(attempt, notes=(*attempt.notes, *self.collect(failure)))

    def collect(self, failure: RedAttempt) -> list[str]:
        """Collect all available items. Returns a line for the folder and for each item that is not available."""
        kind = failure.outcome.breaks_executor
        self._made[kind] += 1
        if self._made[kind] > MOST:
            return [f"no diagnostics: this worker has collected those of {MOST} cases, the limit"]
        collected = _Collected(failure.folder / FOLDER / str(failure.number))
        for item in self._items:
            try:
                self._collect(item, failure, collected)
            except OSError as error:
                collected.missing.append(f"{item}: {error.strerror or error}")
        return collected.lines()

    def _collect(self, item: str, failure: RedAttempt, collected: _Collected) -> None:
        if item in ("nvidia-smi", "bug-report"):
            if failure.hardware:
                self._run_program(item, collected)
        elif item == "kernel-log":
            lines = kernel_log.gpu_log_lines_since(failure.begun[0] - _CLOCKS)
            if lines:
                collected.write("kernel-log.txt", lines)
        elif item == "allocator":
            for path in sorted(failure.folder.glob(SNAPSHOTS)):
                collected.take(path)
        elif item == "core" and _writes_core(failure.exit_status):
            core_file, why = core_of_process(failure.pid, self._working_folder, failure.begun[1])
            if core_file is None:
                collected.missing.append(f"core file: {why}")
            else:
                collected.elsewhere.append(f"core file: {core_file}")

    def _run_program(self, item: str, collected: _Collected) -> None:
        if self._stop.receive() is not None:
            collected.missing.append(f"{item}: the run is being stopped")
        elif item == "nvidia-smi":
            collected.program(item, ["nvidia-smi", "-q"], SMI_LIMIT, "nvidia-smi.txt")
        elif self._is_first():
            path = collected.path("nvidia-bug-report.log.gz")
            command = ["nvidia-bug-report.sh", "--output-file", str(path)]
            collected.program(item, command, REPORT_LIMIT, "nvidia-bug-report.txt", makes=path)

    def _is_first(self) -> bool:
        try:
            self._once.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _writes_core(exit_status: int | None) -> bool:
    return exit_status is not None and exit_status < 0 and -exit_status in CORE_SIGNALS


@dataclass
class _Collected:
    """The diagnostics of one failure. `elsewhere` and `missing`: lines about items that are not in the folder."""

    folder: Path
    files: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def path(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def write(self, name: str, lines: Sequence[str]) -> None:
        self.path(name).write_text("\n".join([*lines, ""]), encoding="utf-8", errors="backslashreplace")
        self.files.append(name)

    def take(self, path: Path) -> None:
        shutil.move(path, self.path(path.name))
        self.files.append(path.name)

    def program(self, name: str, command: Sequence[str], limit: float, output: str, makes: Path | None = None) -> None:
        """Run a program for at most `limit` seconds. Keep its output, unless it `makes` a file and that file exists."""
        if shutil.which(command[0]) is None:
            self.missing.append(f"{name}: there is no program {command[0]!r}")
            return
        path = self.path(output)
        with path.open("wb") as file:
            run = run_disposable(command, limit, ladder=_LADDER, both_into=file)
        if not run.in_time:
            self.missing.append(f"{name}: {command[0]} did not end within {limit:g} s")
        elif run.status:
            self.missing.append(f"{name}: {command[0]} ended with {format_exit_code(run.status)}")
        if makes is not None and makes.is_file():
            path.unlink()
            self.files.append(makes.name)
        elif path.stat().st_size:
            self.files.append(output)
        else:
            path.unlink()

    def lines(self) -> list[str]:
        where = [f"diagnostics are in {self.folder}: {', '.join(self.files)}"] if self.files else []
        return [*where, *self.elsewhere, *(f"no diagnostics of {line}" for line in self.missing)]
