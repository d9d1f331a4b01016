"""Process state that a case must not change: the working folder, resource limits, descriptors, children.

The checks run after every case, so each needs only one or two system calls. More expensive checks run only after a
cheap one found a difference.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

# Imported by name: a case may have replaced the attributes of these modules by the time of the check.
from os import fstat, getcwd, stat
from resource import getrlimit
from signal import ITIMER_REAL, getitimer
from time import sleep

from harness.core import clock, linux
from harness.core.outcome import Outcome

#: All limits of this kernel. RLIMIT_OFILE is another name of RLIMIT_NOFILE.
LIMITS = {
    name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
}

#: Helper processes that libraries start once. They remove shared memory after all its users have ended: one of
#: multiprocessing, one of joblib's loky, and one of torch for tensors shared through files. Each entry is a part of the
#: command line.
CLEANUP_HELPERS = ("multiprocessing.resource_tracker", "loky.backend.resource_tracker", "torch_shm_manager")
#: Helper processes that libraries start once and keep. They are not leftovers of a case. torch keeps an addr2line for
#: each library in which it has looked up a C++ frame (Symbolizer in torch/csrc/profiler/unwind/unwind.cpp). loky keeps
#: the workers of its reusable pool, which joblib and scikit-learn use with each ``n_jobs``.
KEPT_HELPERS = (
    *CLEANUP_HELPERS,
    "multiprocessing.forkserver",
    "loky.backend.popen_loky_posix",
    "torch/_inductor/compile_worker",
    "addr2line -C -f -e ",
)

#: The name for a process that a case forked and that did not call exec: its own command line is the harness's.
FORK_OF_CASE = "a fork of the case"

#: The meaning of the state letters of proc(5).
_STATES = {
    "D": "uninterruptible sleep",
    "I": "idle",
    "R": "running",
    "S": "sleeping",
    "T": "stopped",
    "t": "held by a debugger",
    "X": "dead",
    "Z": "zombie",
}

_UNKNOWN = (-1, -1)
#: Seconds within which a new child must call exec. That takes milliseconds, more on a busy machine. A child that has
#: not called exec after this time is reported as a fork.
START_PATIENCE = 2.0
_STEP = 0.001


@dataclass(frozen=True, slots=True)
class StateProblem:
    """A problem with the process after a case: the outcome that it causes, and a description."""

    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state that is compared before and after a case. Descriptors are (device, inode) by number, None if closed.

    `alarm`: whether a timer for SIGALRM runs, which would kill a later case. `temp`: device and inode of the folder for
    temporary files, None if it was removed.
    """

    folder: str | None
    limits: dict[str, tuple[int, int]]
    descriptors: dict[int, tuple[int, int] | None]
    alarm: bool = False
    temp: tuple[int, int] | None = None


def descriptor_identity(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of a descriptor, None if it is closed."""
    try:
        status = fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _folder_identity(path: str) -> tuple[int, int] | None:
    try:
        status = stat(path)
    except FileNotFoundError:
        return None
    except OSError:  # a case has given up the right to read this
        return _UNKNOWN
    return status.st_dev, status.st_ino


def capture_process_state(descriptors: Iterable[int], temp: str = "") -> ProcessState:
    """Return the current state. `descriptors`: those that a case must not touch. `temp`: the temporary folder."""
    try:
        folder = getcwd()
    except OSError:  # removed
        folder = None
    return ProcessState(
        folder=folder,
        limits={name: getrlimit(number) for name, number in LIMITS.items()},
        descriptors={number: descriptor_identity(number) for number in descriptors},
        alarm=getitimer(ITIMER_REAL)[0] > 0,
        temp=_folder_identity(temp) if temp else None,
    )


def compare_process_states(before: ProcessState, after: ProcessState) -> list[StateProblem]:
    """Return the changes that a case did not restore."""
    changes = []
    if before.folder != after.folder:
        changes.append(f"left the working folder at {after.folder or 'a removed folder'!r} (was {before.folder!r})")
    changes += [
        f"left {name} at {after.limits[name]} (was {limit})"
        for name, limit in before.limits.items()
        if after.limits[name] != limit
    ]
    if after.alarm and not before.alarm:
        changes.append("left a timer running that sends SIGALRM")
    if after.temp not in (before.temp, _UNKNOWN):
        changes.append(f"{'removed' if after.temp is None else 'replaced'} the folder for temporary files")
    for number, identity in before.descriptors.items():
        if after.descriptors[number] != identity:
            verb = "closed" if after.descriptors[number] is None else "replaced"
            changes.append(f"{verb} descriptor {number}, which belongs to the process")
    return [StateProblem(Outcome.CONTAMINATED, change) for change in changes]


def replaced_streams(before: Sequence[object], after: Sequence[object]) -> list[StateProblem]:
    """Return a problem for each of Python's standard streams that is no longer the same open file."""
    problems = []
    for name, was, now in zip(("sys.stdin", "sys.stdout", "sys.stderr"), before, after, strict=True):
        if now is not was:
            problems.append(StateProblem(Outcome.CONTAMINATED, f"left another object as {name}"))
        elif _is_closed(now):
            problems.append(StateProblem(Outcome.CONTAMINATED, f"closed {name}"))
    return problems


def _is_closed(stream: object) -> bool:
    try:
        return bool(getattr(stream, "closed", False))
    except ValueError:  # its buffer was detached
        return True


class ExecPatience:
    """A pause between two checks. Each call waits a moment; it returns false `seconds` after the first call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline: float | None = None

    def __call__(self) -> bool:
        now = clock.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now >= self._deadline:
            return False
        sleep(_STEP)
        return True


def wait_for_exec(pids: Iterable[int], starting: Callable[[int], bool], pause: Callable[[], bool]) -> None:
    """Wait until children have called exec: before that, a helper cannot be distinguished from a leftover process.

    `starting` returns whether a process has not called exec yet. `pause` waits a moment, and returns false at the end
    of the time.
    """
    for pid in pids:
        while starting(pid) and pause():
            continue


def leaked_children(
    before: Iterable[int], now: Iterable[int], describe: Callable[[int], tuple[str, str] | None], own: str
) -> list[StateProblem]:
    """Return a problem for each new child that still runs, except for helpers that libraries keep.

    `describe` returns state letter and command line of a process. `own` is the command line of this process, which its
    forks share. A zombie (state Z) holds only its pid, and is no problem.
    """
    known_pids = set(before)
    problems = []
    for pid in sorted(set(now) - known_pids):
        description = describe(pid)
        if description is None or description[0] in "ZX" or any(helper in description[1] for helper in KEPT_HELPERS):
            continue
        child = f"{pid}, {FORK_OF_CASE}" if description[1] == own else f"{pid} {description[1][:200]!r}"
        problems.append(StateProblem(Outcome.LEAKED, f"left a child process running: {child}"))
    return problems


def stuck_text(pid: int, command: str, state: str, wait_channel: str) -> str:
    """Return text about a process that does not end although it was killed: its command and its state.

    `state` is a letter of proc(5). `wait_channel` is the kernel function in which it sleeps, or an empty string.
    """
    where = f" in {wait_channel}" if wait_channel else ""
    return f"process {pid} {command[:200]!r}: state {state}, {_STATES.get(state, 'unknown')}{where}"


def describe_stuck(pid: int) -> str:
    """Return `stuck_text` for the current state of a process."""
    state, command = linux.describe_process(pid) or ("X", "")
    return stuck_text(pid, command, state, linux.kernel_wait_channel(pid))
