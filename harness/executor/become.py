"""Turns a forked process, or a fresh interpreter that has collected the cases, into an executor."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness import _compat
from harness.backends import accelerator
from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.core import linux
from harness.core.caseid import digest_of_ids
from harness.core.errors import HarnessError
from harness.devices.device import DeviceError
from harness.executor import streams
from harness.executor.channel import report_error_and_exit
from harness.executor.executor import Executor
from harness.executor.session import EXIT_HANDLERS, CollectedSession
from harness.fixtures import CaseSettings
from harness.protocol.endings import EXIT_NO_DEVICE, WATCHDOG_SIGNAL
from harness.protocol.phase_page import PhasePage
from harness.protocol.wire import Channel, Message
from harness.sim.interposer import front
from harness.sim.native import provider
from harness.sim.simcuda.work_checks import RaceWatch


def detach_from_zygote(zygote: int) -> None:
    """Give this forked process its own session, and make the kernel kill it when its parent `zygote` ends."""
    os.setsid()
    linux.die_with_parent(zygote)
    linux.adopt_orphans()


def become_executor(
    collected: CollectedSession, order: Message, descriptors: Sequence[int], *, cold: bool = False
) -> NoReturn:
    """Turn this detached process into the executor that `order` describes, serve, and exit.

    `descriptors`: the socket to the supervisor, standard output, standard error, the file of stacks, the file of facts,
    the page of phases.
    State of the zygote that must not be shared is replaced: standard streams, session, process group, temporary folder,
    signal handlers. A `cold` executor has collected the cases itself, and sends a message when it is ready.
    """
    control, *files = move_up(descriptors)
    channel = Channel(socket.socket(fileno=control), "the supervisor")
    try:
        executor = _become(collected, order, files, channel, cold=cold)
    except Exception as error:  # noqa: BLE001 - no case has run yet, so every error is the harness's own
        report_error_and_exit(error, channel)
    executor.serve()


def _become(
    collected: CollectedSession, order: Message, files: Sequence[int], channel: Channel, *, cold: bool
) -> Executor:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    out, err, stacks, facts, phases = files
    page = PhasePage(phases)
    os.close(phases)
    streams.replace_standard_streams(out, err)
    for name, value in order["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.environ["TMPDIR"] = order["temp"]
    tempfile.tempdir = None
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ:  # otherwise the user has chosen a place for all of them
        _compat.use_basetemp(collected.session.config, Path(order["basetemp"]))
    faulthandler.enable(file=stacks, all_threads=True)
    # C code writes all stacks, even if another thread holds the GIL. The chained default action then ends the process.
    faulthandler.register(WATCHDOG_SIGNAL, file=stacks, all_threads=True, chain=True)
    if order["workerinput"] is not None:
        # Tests and plugins read this to find out in which xdist worker they run.
        collected.session.config.workerinput = order["workerinput"]  # type: ignore[attr-defined]
    if cold:
        channel.send({"op": "ready", "collected": len(collected.items), "hash": digest_of_ids(sorted(collected.items))})
    else:
        renew_thread_pool()
        EXIT_HANDLERS.leave_to_parent()
        for variable in collected.pids:
            variable.renew(os.getpid())
    _check_faults()
    if order["library"] is not None:
        _enter_software_device(BACKENDS[order["kind"]], order["library"], unused=order["unused"])
    elif BACKENDS[order["kind"]].warmed:
        _enter_registered_device(BACKENDS[order["kind"]])
    return Executor(
        collected,
        channel,
        (stacks, facts),
        page,
        backend=BACKENDS[order["kind"]],
        leak_check=order["leak_check"],
        races=None if order["races"] is None else RaceWatch(Path(order["races"])),
        snapshots=None if order["snapshots"] is None else Path(order["snapshots"]),
        settings=CaseSettings(**order["settings"]),
    )


def move_up(descriptors: Sequence[int]) -> list[int]:
    """Move these descriptors above those that code closes by number, as in ``os.closerange(3, 256)``.

    Descriptors that cannot be moved stay.
    """
    lowest = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _ABOVE) - _ROOM
    moved = []
    for descriptor in descriptors:
        try:
            high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except (OSError, OverflowError, ValueError):
            moved.append(descriptor)
        else:
            os.close(descriptor)
            moved.append(high)
    return moved


#: The harness's descriptors are below this number and the limit of the process, with room for all of them.
_ABOVE, _ROOM = 4096, 64


def renew_thread_pool() -> None:
    """Let this thread replace torch's pool of threads, which a fork loses.

    Otherwise the first thread that needs the pool replaces it. Two such threads at the same time, for example of
    autograd, end the process with "Invalid thread pool!" (https://github.com/pytorch/pytorch/issues/178535). A zygote
    has a pool if an imported module called ``torch.set_num_threads``. The pool has one thread: with more, the zygote
    would have threads and must not be forked.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() == 1:
        torch.set_num_threads(1)


def _check_faults() -> None:
    """End the process if the faults of the run are not injected: no case may run, and no case is the cause."""
    try:
        front.check_interposer()
    except HarnessError as error:
        print(error, file=sys.stderr)
        sys.stderr.flush()
        os._exit(EXIT_NO_DEVICE)


def _enter_registered_device(backend: Backend) -> None:
    """Use each visible device once.

    End the process if the visible devices are not those of its lease, or if one fails.
    """
    try:
        torch = backend.import_torch()
        count = backend.device_count(torch)
        wanted = os.environ.get(backend.mask, "") if backend.mask is not None else ""
        if wanted and count != len(wanted.split(",")):
            raise DeviceError(
                f"{backend.mask}={wanted} is to show {len(wanted.split(','))} of the devices, and torch sees {count}: "
                "the mask does nothing in a process that has imported torch; use --start=cold, or correct the "
                f"registration of {backend.kind} (harness backend check {backend.kind})"
            )
        accelerator.enter(backend.torch_type, count, backend.synchronize, torch)
        backend.empty_cache(torch)
    except DeviceError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(EXIT_NO_DEVICE)
    except Exception:  # noqa: BLE001 - the error is printed to the executor's standard error
        sys.excepthook(*sys.exc_info())
        os._exit(EXIT_NO_DEVICE)


def _enter_software_device(backend: Backend, library: str, *, unused: bool) -> None:
    """Make the software devices usable. If that fails, the process ends, because no case is the cause.

    With `unused`, no device is used before the case.
    """
    device = provider.provider_of(backend)
    try:
        (device.enter_inline if unused else device.enter)(library)
    except Exception:  # noqa: BLE001 - the error is printed to the executor's standard error
        sys.excepthook(*sys.exc_info())
        os._exit(EXIT_NO_DEVICE)
