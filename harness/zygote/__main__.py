"""Starts a zygote: ``python -m harness.zygote LISTENING_FD``, with a `ZygoteSpec` as a line of JSON on standard input.

Standard input stays open until the run ends. A zygote that restarts itself gets two more arguments: a descriptor with
the specification, and the reason for the restart.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from harness.checks.process_meters import running_children
from harness.collection.recorder import CollectionRecorder
from harness.configuration.rootdir import RootError
from harness.configuration.under import WrapperError
from harness.core import linux
from harness.core.errors import WriteError
from harness.core.text import format_count
from harness.devices import guard
from harness.executor.become import become_executor
from harness.executor.session import CollectedSession
from harness.protocol.wire import Message
from harness.zygote import cold
from harness.zygote.collecting import PreloadError, collect_cases, freeze_baseline, import_preload
from harness.zygote.server import ForkServer
from harness.zygote.spec import LOG_FOLLOWS, ZygoteSpec


def main() -> None:
    """Import, collect and serve. If executors start cold, only serve."""
    number, *more = sys.argv[1:]
    listener = socket.socket(fileno=int(number))
    listener.set_inheritable(False)  # imported modules may start programs, which must not inherit it
    spec = ZygoteSpec.from_json(_first_line(int(more[0]) if more else 0))
    linux.die_with_parent(spec.parent)
    files = redirect_output()
    linux.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if spec.start == "cold":
        ForkServer(partial(cold.exec_cold_executor, spec), listener, cold=more[1] if more else "--start=cold").serve()
    environment, folder = dict(os.environ), os.getcwd()
    try:
        around = import_preload(spec)
    except (WrapperError, PreloadError) as error:
        ForkServer(_refuse, listener, unfit=str(error)).serve()

    def serve(collected: CollectedSession) -> NoReturn:
        if not (reason := _unfit()):
            _get_ready(collected, spec)
            unwritten = next((file.error for file in files if file.error), "")
            ForkServer(partial(become_executor, collected), listener, unwritten=unwritten).serve()
        if spec.start == "auto":
            os.chdir(folder)
            _restart_cold(spec, listener, reason, environment)
        unfit = (
            f"the process that collected the cases must not be forked: {reason}; look for a module or conftest that "
            f"does this when imported, or use --start=cold"
        )
        ForkServer(_refuse, listener, unfit=unfit).serve()

    recorder = CollectionRecorder(Path(spec.description))
    try:
        status = collect_cases(spec, around, serve, recorder)
        if status == pytest.ExitCode.USAGE_ERROR:
            recorder.write()  # supervisors have the same arguments, and so get the same error
        elif recorder.unwritten:
            recorder.write(ended=f"pytest ended with exit status {status}")
    except (RootError, WriteError, PreloadError) as error:
        ForkServer(_refuse, listener, unfit=f"the cases cannot be collected: {error}").serve()
    # The description contains the result of the collection, including errors.
    why = f"pytest's exit status was {status}, and {LOG_FOLLOWS}"
    if recorder.errors:
        why = f"{format_count(recorder.errors, 'error')} during collection"
    ForkServer(_refuse, listener, unfit=f"the cases could not be collected: {why}").serve()


def _unfit() -> str:
    """Return why this process must not be forked, or an empty string."""
    reasons = []
    if touched := guard.cuda_in_use():
        reasons.append(touched)
    if threads := guard.threads_lost_in_fork():
        reasons.append(f"it has other threads than the main thread: {', '.join(threads)}")
    if children := running_children():
        started = ", ".join(f"{pid} {command[:200]!r}" for pid, command in children)
        reasons.append(f"it has started processes, which would be no children of a fork: {started}")
    return "; ".join(reasons)


def _get_ready(collected: CollectedSession, spec: ZygoteSpec) -> None:
    """Do the work once that every executor would otherwise repeat."""
    if spec.skip_early_exit_handlers:
        linux.exit_before_earlier_handlers()
    freeze_baseline(collected)
    if spec.many_forks:
        linux.collapse_memory()


def _restart_cold(spec: ZygoteSpec, listener: socket.socket, reason: str, environment: dict[str, str]) -> NoReturn:
    """Replace this process by a zygote that has collected nothing.

    Its `environment` is that of the start of this process.

    The process id stays the same. The exec drops all imports, with their threads and their use of a device.
    """
    specification = os.memfd_create("specification")
    os.write(specification, replace(spec, start="cold", masked=bool(guard.cuda_in_use())).to_json().encode() + b"\n")
    os.lseek(specification, 0, os.SEEK_SET)
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor in (specification, listener.fileno()):
        os.set_inheritable(descriptor, True)
    command = [sys.executable, "-m", "harness.zygote", str(listener.fileno()), str(specification), reason]
    os.execve(sys.executable, command, environment)


def _refuse(order: Message, descriptors: Sequence[int]) -> NoReturn:
    raise AssertionError(f"a zygote that must not fork got an order for an executor: {order}, {descriptors}")


def _first_line(descriptor: int) -> str:
    """Read up to the first newline, unbuffered. The rest of the stream is the life line, which ends with the run."""
    data = bytearray()
    while not data.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            raise SystemExit("harness zygote: standard input ended before the specification")
        data += byte
    return data.decode()


class LogFile(io.FileIO):
    """A file that stores the first error of a write, and discards all later output: it must not end the zygote."""

    error = ""

    def write(self, data: object) -> int:
        if not self.error:
            try:
                return super().write(data)  # type: ignore[arg-type]
            except OSError as error:
                self.error = error.strerror or str(error)
        return memoryview(data).nbytes  # type: ignore[arg-type]


def redirect_output() -> tuple[LogFile, LogFile]:
    """Make `sys.stdout` and `sys.stderr` write into descriptors 1 and 2 as LogFiles, line by line."""
    files = LogFile(1, "wb", closefd=False), LogFile(2, "wb", closefd=False)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8", errors="backslashreplace", line_buffering=True)
        for file in files
    )
    return files


if __name__ == "__main__":
    main()
