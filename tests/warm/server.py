"""The server: ``python -m tests.warm.server DESCRIPTOR``. It imports once, and forks on request.

Each packet on the connection is a request, and has one answer. The answer to a `Launch`, with descriptors, is a process
id. The answer to ``{"reap": PID}`` is the exit status of an ended process. The server ends with the connection.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import importlib.metadata
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.warm import spares
from tests.warm.launch import Launch, become, go_on
from tests.warm.spares import MOST_DESCRIPTORS, REQUEST_LIMIT

#: Modules that a controller, a worker and a zygote import before they know any case; and the command line and its
#: agents.
_IMPORTED = (
    "harness.cli.main",
    "harness.tools.cluster.agent",
    "harness.tools.cluster.run",
    "harness.plugin",
    "harness.collection.stand_ins",
    "harness.controller.hooks",
    "harness.progress.signs_of_life",
    "harness.reporting.page.document",
    "harness.reporting.page.model",
    "harness.scheduling.xdist_scheduling",
    "harness.supervisor.hooks",
    "harness.zygote.cold",
    "harness.zygote.server",
    "execnet.multi",
    "xdist.dsession",
    "xdist.looponfail",
    "xdist.remote",
)
#: Modules that only cases import, and one that the harness keeps from being imported.
_NOT_IMPORTED = ("torch", "numpy", "hypothesis")


@dataclass(frozen=True, slots=True)
class _Made:
    """The process that a fork will become."""

    launch: Launch
    descriptors: list[int]


class _Package(importlib.metadata.PathDistribution):
    """An installed package whose metadata is read once. pytest reads that of all packages twice in each process."""

    @functools.cached_property
    def entry_points(self) -> importlib.metadata.EntryPoints:
        return super().entry_points

    @functools.cached_property
    def files(self) -> list[importlib.metadata.PackagePath] | None:
        return super().files

    @functools.cached_property
    def metadata(self) -> Any:
        return super().metadata


class _Imports:
    """Imports the modules while pytest's import hook, which rewrites assertions of plugins, is active."""

    def pytest_configure(self) -> None:
        from harness.reporting.page import document

        for name in _IMPORTED:
            importlib.import_module(name)
        document.template()  # the module caches it; reading it takes a fifth of a short run


def main() -> None:
    """Import and serve requests; in a fork, continue as the requested process."""
    connection, path = socket.socket(fileno=int(sys.argv[1])), sys.path[1:]
    importlib.metadata.PathDistribution = functools.cache(_Package)  # type: ignore[assignment, misc]
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
    gc.freeze()  # otherwise each collection in a fork visits, and so copies, all imported objects
    made = _serve(connection)
    if made is None:
        return
    has_cases = False
    while True:
        become(made.launch, made.descriptors, path)
        if "--isolation=none" in made.launch.arguments:
            has_cases = True  # this process or its workers
            gc.unfreeze()  # all objects are searched for leaks
        spare = spares.prepare(spares.needed(made.launch.arguments))
        if spare is None:
            break
        made = _Made(*spare)
    if has_cases:
        go_on(made.launch.arguments)
    else:
        _go_on_to_short_exit(made.launch.arguments)


def _go_on_to_short_exit(arguments: Sequence[str]) -> None:
    """Exit as the interpreter does, but free no objects: that copies all of the server's memory."""
    status = 0
    try:
        go_on(arguments)
    except SystemExit as error:
        if isinstance(error.code, str):
            raise
        status = int(error.code or 0)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _serve(connection: socket.socket) -> _Made | None:
    """Answer requests. In a fork, return the process to become; in the server, return None when the connection ends."""
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
