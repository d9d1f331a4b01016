"""A real server of a history, in a thread, on a free port of this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import uvicorn

from harness.core.outcome import Outcome
from harness.tools.history.serve import Reader, application
from harness.tools.history.store import FileStore
from tests.tools.history import nights
from tests.tools.matrix.runs import CASES, Machine

HOSTILE = "suites/a/test_a.py::<script>alert(1)</script>\"'&amp;\u202e"


class Server:
    """A server of a history."""

    def __init__(self, store: FileStore, address: tuple[str, int]) -> None:
        self.store, self.address = store, address

    def get(self, path: str, host: str = "localhost", method: str = "GET") -> tuple[HTTPResponse, str]:
        connection = HTTPConnection(*self.address, timeout=30)
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer, text

    def page(self, path: str) -> str:
        answer, text = self.get(path)
        assert answer.status == 200, text
        return text


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Server]:
    """Start a server of three runs: a case with hostile texts is red in the second one."""
    bad = {HOSTILE: Outcome.FAILED, CASES[1]: Outcome.GATED}
    runs = [
        nights.night(folder, 0, {HOSTILE: Outcome.PASSED}),
        nights.night(folder, 1, bad, messages={HOSTILE: "<img src=x onerror=alert(1)>\u202e\x1b[31m"}),
        nights.night(folder, 1, {HOSTILE: Outcome.PASSED}, Machine("<b>n2</b>", driver="<i>")),
    ]
    (runs[1] / "report.html").write_text("<!doctype html><title>the run's own page</title>")
    store = nights.history(folder, runs)
    reader = Reader(store)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        names = ["localhost", "127.0.0.1"]
        config = uvicorn.Config(application(reader, names), log_level="warning", access_log=False, lifespan="off")
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        yield Server(store, listening.getsockname())
        running.should_exit = True
        thread.join()
    reader.close()
