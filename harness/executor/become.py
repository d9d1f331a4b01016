"""Makes an executor of a freshly forked process, or of a fresh interpreter that has collected by itself."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from typing import NoReturn

from harness import linux
from harness.backends.table import BACKENDS
from harness.executor import failure, streams
from harness.executor.executor import Executor
from harness.executor.session import CollectedSession
from harness.protocol.exit_status import EXIT_NO_DEVICE, WATCHDOG_SIGNAL
from harness.protocol.wire import Channel, Message


def detach(zygote: int) -> None:
    """Give this freshly forked process a session of its own, and a life that ends with its parent's, `zygote`."""
    os.setsid()
    linux.die_with_parent(zygote)
    linux.adopt_orphans()


def become_executor(
    collected: CollectedSession, order: Message, descriptors: Sequence[int], *, cold: bool = False
) -> NoReturn:
    """Turn this detached process into the executor that `order` describes, serve, and exit.

    `descriptors`: the socket to the supervisor, then standard output and error, the file for stacks and that for facts.
    Nothing of the zygote's that could be shared by mistake (standard streams, session, process group, temporary folder,
    signal handlers) survives. A `cold` one has collected by itself, and says when it is ready.
    """
    control, *files = descriptors
    channel = Channel(socket.socket(fileno=control), "the supervisor")
    try:
        executor = _become(collected, order, files, channel, cold=cold)
    except Exception as error:  # noqa: BLE001 - no case has run yet: all of it is ours
        failure.end_process(error, channel)
    executor.serve()


def _become(
    collected: CollectedSession, order: Message, files: Sequence[int], channel: Channel, *, cold: bool
) -> Executor:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    out, err, stacks, facts = files
    streams.replace(out, err)
    for name, value in order["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.environ["TMPDIR"] = order["temp"]
    tempfile.tempdir = None
    faulthandler.enable(file=stacks, all_threads=True)
    # Chained to the default action: all stacks are written by C code, whoever holds the GIL, then the process dies.
    faulthandler.register(WATCHDOG_SIGNAL, file=stacks, all_threads=True, chain=True)
    if order["workerinput"] is not None:
        # What tests and plugins ask to know which xdist worker they are in.
        collected.session.config.workerinput = order["workerinput"]  # type: ignore[attr-defined]
    if cold:
        channel.send({"op": "ready"})
    if order["library"] is not None:
        _load_software_device(order["library"])
    return Executor(
        collected, channel, (stacks, facts), backend=BACKENDS[order["kind"]], leak_check=order["leak_check"]
    )


def _load_software_device(library: str) -> None:
    """Give this process the software devices. One in which that fails ends: it is no case's doing."""
    from harness.softdevice import faults, loading, warming

    try:
        loading.load(library)
        warming.warm(os.environ.get(faults.VARIABLE, ""))
    except Exception:  # noqa: BLE001 - whatever went wrong stands in what the process printed
        sys.excepthook(*sys.exc_info())
        os._exit(EXIT_NO_DEVICE)
