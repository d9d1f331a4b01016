"""Runs any program on the simulated CUDA: its environment, what it has used, and the thin parent.

The parent stays in the process group of the program. The terminal therefore sends its signals (Ctrl-C, Ctrl-Z, a window
that closes) to both, and the parent passes on only those that another process has sent to the parent alone. It cannot
tell these from a signal that another process has sent to the whole group: the program then gets that one twice.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.backends import simcuda
from harness.core import linux, temp_folder
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_RED
from harness.core.text import format_bytes, format_count
from harness.sim.interposer import front
from harness.sim.native import faults, provider
from harness.sim.simcuda import build, machine, work_checks

# Reads the pages of the ledger: what processes have used of the simulated devices. The layout is that of
# ``csrc/include/simcuda_ledger.h``.

#: The variable with the folder of the pages, and the variable with a folder that keeps a link to each.
FOLDER, RECORD = "SIMCUDA_LEDGER", "SIMCUDA_RECORD"

_MAGIC = 0x3230756463206D69
_OBJECTS = ("stream", "event", "graph", "executable graph")
_HEAD = struct.Struct(f"<Q{len(_OBJECTS)}q")
_DEVICE = struct.Struct("<QQQQqII")  # used, peak, kernels, busy, since, running, context
_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of one program have used.

    - `processes`: those that have used a device. `kernels`: launched by all of them.
    - `peaks`: by device, the most bytes that one process used at one time.
    - `left`: by kind of object, how many were not destroyed at the end of their process.
    """

    processes: int
    kernels: int
    peaks: Mapping[int, int]
    left: Mapping[str, int]


@contextmanager
def recorded(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield a folder for `RECORD`, beside the ledger, and remove it at the end. Raise WriteError if it cannot be made.

    Folders that killed processes have left are removed.
    """
    parent = Path(environ.get(FOLDER) or "/dev/shm")
    temp_folder.remove_abandoned_temp_folders(parent)
    made = temp_folder.make_temp_folder(parent)
    try:
        yield made
    finally:
        temp_folder.remove_temp_folder(made)


def read_usage(folder: Path) -> Usage:
    """Return the sum of the pages in a folder. A file that is no page, or not complete, does not count."""
    processes = kernels = 0
    peaks: dict[int, int] = {}
    left = dict.fromkeys(_OBJECTS, 0)
    for path in folder.iterdir():
        page = path.read_bytes()
        if len(page) < _HEAD.size + _DEVICES * _DEVICE.size:
            continue
        magic, *objects = _HEAD.unpack_from(page)
        if magic != _MAGIC:
            continue
        devices = list(_DEVICE.iter_unpack(page[_HEAD.size : _HEAD.size + _DEVICES * _DEVICE.size]))
        used = {index: peak for index, (_, peak, *_) in enumerate(devices) if peak}
        processes += bool(used)
        kernels += sum(launched for _, _, launched, *_ in devices)
        peaks |= {index: max(peak, peaks.get(index, 0)) for index, peak in used.items()}
        left = {name: left[name] + number for name, number in zip(_OBJECTS, objects, strict=True)}
    return Usage(processes, kernels, dict(sorted(peaks.items())), left)


#: Signals that end a program by default, or that programs give a meaning, and that a parent can pass on.
_PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGWINCH,
)
#: The variable with the order in which work begins (``csrc/runtime/process.cpp``).
ORDER = "SIMCUDA_ORDER"
_NOT_FOUND, _NOT_EXECUTABLE, _BY_SIGNAL = 127, 126, 128  # statuses of a shell
#: What each check of work has not found, in the line at the end.
_NOTHING = {"races": "races", "memory": "wrong use of memory"}
_FROM_PROCESS = 0  # si_code of kill(); every si_code above it is the kernel's


class ProgramError(HarnessError):
    """The program cannot be run on the simulated CUDA as asked."""


def program_environment(
    devices: int | None, memory: str | None, inject: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that a program needs on the simulated CUDA, in addition to `environ`.

    `devices`: 1 to 64 (default: 2). `memory`: of each, as in ``80GiB`` (default: 2 GiB). `inject`: faults, as for
    ``--inject``. The libraries are built now unless the cache has them.

    Raise BuildError if they cannot be built, MachineError for a wrong number or size and for a mask that hides all
    devices, and ProgramError for faults.
    """
    wanted = {simcuda.COUNT: None if devices is None else str(devices), simcuda.MEMORY: memory}
    variables = {name: value for name, value in wanted.items() if value is not None}
    provider.parse_device_count("--devices", variables.get(simcuda.COUNT), 1)
    provider.parse_device_memory("--memory", memory, 0)
    wanted_faults = _checked_faults(inject)
    built = build.provide()
    machine.simulated_inventory({**environ, **variables})
    provided = front.add_interposer(built, simcuda.BACKEND, wanted_faults, inline=False) or built
    return {**variables, **provided.variables}


def _checked_faults(inject: Sequence[str]) -> list[str]:
    """Return the injections in their normal form. Raise ProgramError."""
    try:
        for text in inject:
            faults.parse_injection(text, simcuda.BACKEND.kind)
        return [str(fault) for fault in faults.parse_injections(faults.join_injections(inject))]
    except faults.InjectionError as error:
        raise ProgramError(f"--inject: the simulated CUDA expects {error}") from None


def replace_process(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Become the program. Return the status of a shell if it cannot be executed, with a line on stderr."""
    sys.stdout.flush()
    try:
        os.execvpe(command[0], list(command), dict(environ))
    except OSError as error:
        print(f"harness: {command[0]!r} cannot be run: {error.strerror}", file=sys.stderr, flush=True)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def run_program(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the program as a child, and return its exit status: 128 and the number for a signal, as in a shell.

    Must be called in the main thread of a process without other threads.
    """
    watched = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        own = os.getpid()
        child = os.fork()
        if child == 0:
            linux.die_with_parent(own)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os._exit(replace_process(command, environ))
        status = None
        while status is None:
            arrived = signal.sigwaitinfo(watched)
            if arrived.si_signo == signal.SIGCHLD:
                status = _status_of(child)
            elif arrived.si_code <= _FROM_PROCESS:
                os.kill(child, arrived.si_signo)
        return status
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _status_of(child: int) -> int | None:
    """Return the status of the child; None if it has not ended. Stop together with a child that has stopped."""
    ended, how = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
    if ended == 0:
        return None
    if os.WIFSTOPPED(how):
        os.kill(os.getpid(), signal.SIGSTOP)  # the shell sees that the job has stopped, and continues both
        os.kill(child, signal.SIGCONT)  # only this process may have been continued
        return None
    return _BY_SIGNAL + os.WTERMSIG(how) if os.WIFSIGNALED(how) else os.WEXITSTATUS(how)


@dataclass(frozen=True, slots=True)
class Watch:
    """What to look for: objects that are not destroyed, and what the checks of work find (``races``, ``memory``).

    `report`: a JSON file for the findings.
    """

    leaks: bool = False
    checks: Sequence[str] = ()
    report: Path | None = None


def run_with_summary(
    command: Sequence[str], environ: Mapping[str, str], say: Callable[[str], object], watch: Watch
) -> int:
    """Run the program as `run_program` does. `say` gets one line at its end: what its processes have used.

    The status is 1 if it would be 0 and there are findings. Raise WriteError if there is no room for the record, or if
    the report cannot be written.
    """
    with recorded(environ) as record, recorded(environ) as findings:
        watching = {work_checks.CHECK: ",".join(watch.checks), work_checks.FINDINGS: str(findings)}
        status = run_program(command, {**environ, RECORD: str(record), **(watching if watch.checks else {})})
        used, found = read_usage(record), work_checks.read_findings(findings)
    if watch.report is not None:
        work_checks.write_report(watch.report, found)
    if used.processes or status not in (_NOT_FOUND, _NOT_EXECUTABLE):
        line = summary_line(used, leaks=watch.leaks)
        nothing = f"no {' and no '.join(_NOTHING[check] for check in watch.checks)}"
        say(f"{line}; {work_checks.summary(found) or nothing}" if watch.checks else line)
    return EXIT_RED if found and not status else status


def summary_line(used: Usage, *, leaks: bool) -> str:
    """Return what a program has used of the simulated CUDA, in one line."""
    if not used.processes:
        return (
            f"{simcuda.BACKEND.label}: no process used a device; a program uses it with this environment's torch: "
            f"{sys.executable}"
        )
    peaks = ", ".join(f"device {index} {format_bytes(peak)}" for index, peak in used.peaks.items())
    line = (
        f"{simcuda.BACKEND.label}: {format_count(used.kernels, 'kernel')} in "
        f"{format_count(used.processes, 'process', 'processes')}; peak memory of a process: {peaks}"
    )
    if leaks:
        left = ", ".join(format_count(number, noun) for noun, number in used.left.items() if number)
        line += f"; not destroyed: {left or 'nothing'}"
    return line
