"""The server: ``python -m tests.warm.server DESCRIPTOR``. It imports once, and forks on request.

Each packet of the connection is a request, and has one answer. A `Launch`, with descriptors, is answered with a process
id. ``{"reap": PID}`` is answered with the exit status of an ended process. The server ends with the connection.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
import tempfile
from dataclasses import dataclass

import pytest

from tests.warm import spares
from tests.warm.launch import Launch, become, go_on
from tests.warm.spares import MOST_DESCRIPTORS, REQUEST_LIMIT

#: What a controller, a worker and a zygote import before they know of any case; and the command line and its agents.
_IMPORTED = (
    "harness.cli.main",
    "harness.tools.cluster.agent",
    "harness.tools.cluster.run",
    "harness.plugin",
    "harness.controller.run",
    "harness.reporting.page.document",
    "harness.reporting.page.model",
    "harness.supervisor.worker",
    "harness.zygote.cold",
    "harness.zygote.server",
    "execnet.multi",
)
#: What only cases import; and xdist, which keeps the ``sys.path`` of its import for its workers.
_NOT_IMPORTED = ("torch", "numpy", "xdist.plugin")


@dataclass(frozen=True, slots=True)
class _Made:
    """What a forked process is to become."""

    launch: Launch
    descriptors: list[int]


class _Imports:
    """Imports while pytest's import hook is in place, which rewrites the asserts of plugins."""

    def pytest_configure(self) -> None:
        from harness.reporting.page import document

        for name in _IMPORTED:
            importlib.import_module(name)
        document.template()  # kept by the module; reading it is a fifth of a short run


def main() -> None:
    """Import, serve; and in a fork, go on as what it is to become."""
    connection, path = socket.socket(fileno=int(sys.argv[1])), sys.path[1:]
    before = list(sys.path)
    with tempfile.TemporaryDirectory() as empty:
        without = [
            word
            for name in ("cacheprovider", "hypothesispytest", "xdist", "xdist.looponfail")
            for word in ("-p", f"no:{name}")
        ]
        status = pytest.main(["--collect-only", "-q", *without, f"--rootdir={empty}", empty], plugins=[_Imports()])
    sys.stdout.flush()  # each fork has a copy of the buffer
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED, f"pytest's exit status is {status}"
    assert sys.path == before
    imported = [name for name in _NOT_IMPORTED if name in sys.modules]
    assert not imported, f"{imported} must not be imported yet"
    gc.collect()
    gc.freeze()  # else each collection of a fork visits, and so copies, all that was imported
    made = _serve(connection)
    if made is None:
        return
    while True:
        become(made.launch, made.descriptors, path)
        if "--isolation=none" in made.launch.arguments:
            gc.unfreeze()  # cases run in this process or its workers: what they leave is looked for among all objects
        spare = spares.prepare(spares.needed(made.launch.arguments))
        if spare is None:
            break
        made = _Made(*spare)
    go_on(made.launch.arguments)


def _serve(connection: socket.socket) -> _Made | None:
    """Answer requests. Returns in a fork; in the server it returns None at the end of the connection."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, REQUEST_LIMIT, MOST_DESCRIPTORS)
        if not data:
            return None
        request = json.loads(data)
        if "reap" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                return _Made(Launch.from_json(data), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        connection.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
