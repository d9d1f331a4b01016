"""Process state that a case must leave as it found it: the working folder, resource limits, descriptors, children.

The checks run after every case, so each is a system call or two; what costs more is done only once something is wrong.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness import linux
from harness.outcome import Outcome

_LIMITS = {
    name: getattr(resource, name)
    for name in (
        "RLIMIT_AS",
        "RLIMIT_CORE",
        "RLIMIT_CPU",
        "RLIMIT_DATA",
        "RLIMIT_FSIZE",
        "RLIMIT_NOFILE",
        "RLIMIT_STACK",
    )
}

#: Helper processes that libraries start once, which remove shared memory once all that use it have ended: one of
#: multiprocessing, and one of torch for tensors that are shared through files. By a word of their command line.
CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
#: Helper processes that libraries start once and keep: not a case's leftovers.
KEPT_HELPERS = (*CLEANERS, "multiprocessing.forkserver", "torch/_inductor/compile_worker")

#: What a process is called that a case forked and that began no program of its own: its command line is the harness's.
FORK_OF_CASE = "a fork of the case"

#: The state letters of proc(5) in words.
_STATES = {
    "D": "uninterruptible sleep",
    "I": "idle",
    "R": "running",
    "S": "sleeping",
    "T": "stopped",
    "t": "held by a debugger",
    "X": "dead",
    "Z": "ended, not waited for",
}

#: Seconds that a child which was only just forked is given to begin its own program. It takes milliseconds, on a busy
#: machine more; all of it is waited for a child that has none to begin, which is then told as what it is.
START_PATIENCE = 2.0
_STEP = 0.001


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the process after a case: the outcome it makes, and what it was."""

    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What is compared before and after a case. Descriptors are (device, inode) by number, None when closed.

    `alarm` tells whether a SIGALRM is on its way, which would kill a later case.
    """

    folder: str | None
    limits: dict[str, tuple[int, int]]
    descriptors: dict[int, tuple[int, int] | None]
    alarm: bool = False


def identity(descriptor: int) -> tuple[int, int] | None:
    """What a descriptor refers to, None when it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def capture(descriptors: Iterable[int]) -> ProcessState:
    """The state now; `descriptors` are those that a case has no business to touch."""
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        folder = None
    return ProcessState(
        folder=folder,
        limits={name: resource.getrlimit(number) for name, number in _LIMITS.items()},
        descriptors={number: identity(number) for number in descriptors},
        alarm=signal.getitimer(signal.ITIMER_REAL)[0] > 0,
    )


def compare(before: ProcessState, after: ProcessState) -> list[Problem]:
    """What a case changed and did not put back."""
    changes = []
    if before.folder != after.folder:
        changes.append(f"left the working folder at {after.folder or 'a removed folder'!r} (was {before.folder!r})")
    changes += [
        f"left {name} at {after.limits[name]} (was {limit})"
        for name, limit in before.limits.items()
        if after.limits[name] != limit
    ]
    if after.alarm and not before.alarm:
        changes.append("left an alarm (SIGALRM) to come")
    for number, what in before.descriptors.items():
        if after.descriptors[number] != what:
            verb = "closed" if after.descriptors[number] is None else "replaced"
            changes.append(f"{verb} descriptor {number}, which belongs to the process")
    return [Problem(Outcome.CONTAMINATED, change) for change in changes]


def changed_streams(before: Sequence[object], after: Sequence[object]) -> list[Problem]:
    """Whether Python's standard output and error, in this order, are still the same open files."""
    problems = []
    for name, was, now in zip(("sys.stdout", "sys.stderr"), before, after, strict=True):
        if now is not was:
            problems.append(Problem(Outcome.CONTAMINATED, f"left another object as {name}"))
        elif getattr(now, "closed", False):
            problems.append(Problem(Outcome.CONTAMINATED, f"closed {name}"))
    return problems


class Patience:
    """Called between two looks at something, it waits a moment; false once its `seconds` since the first are over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline: float | None = None

    def __call__(self) -> bool:
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now >= self._deadline:
            return False
        time.sleep(_STEP)
        return True


def await_programs(pids: Iterable[int], starting: Callable[[int], bool], pause: Callable[[], bool]) -> None:
    """Wait for children to begin their own programs: between fork and exec nothing tells a helper from a leftover.

    `starting` tells whether a process has yet to; `pause` waits a moment, and returns false when it was enough.
    """
    for pid in pids:
        while starting(pid) and pause():
            continue


def new_children(
    before: Iterable[int], now: Iterable[int], describe: Callable[[int], tuple[str, str] | None], own: str
) -> list[Problem]:
    """Children that appeared and still run, without those that libraries keep on purpose.

    `describe` gives state letter and command line of a process; `own` is the command line of this one, which its forks
    have as well. A child that has ended and was not waited for (state Z) holds nothing but its number, and is no
    finding.
    """
    known = set(before)
    problems = []
    for pid in sorted(set(now) - known):
        found = describe(pid)
        if found is None or found[0] in "ZX" or any(helper in found[1] for helper in KEPT_HELPERS):
            continue
        what = f"{pid}, {FORK_OF_CASE}" if found[1] == own else f"{pid} {found[1][:200]!r}"
        problems.append(Problem(Outcome.LEAKED, f"left a child process running: {what}"))
    return problems


def stuck_text(pid: int, command: str, state: str, wait_channel: str) -> str:
    """Names a process that does not end although it was killed, and says what it does instead.

    `state` is a letter of proc(5); `wait_channel` the kernel function that it sleeps in, or an empty text.
    """
    where = f" in {wait_channel}" if wait_channel else ""
    return f"process {pid} {command[:200]!r}: state {state}, {_STATES.get(state, 'unknown')}{where}"


def describe_stuck(pid: int) -> str:
    """`stuck_text` about a process as it is now."""
    state, command = linux.describe_process(pid) or ("X", "")
    return stuck_text(pid, command, state, linux.wait_channel(pid))
