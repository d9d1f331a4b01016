"""A real server of a history, in a thread, on a free port of this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import uvicorn

from harness.tools.history.serve import Reader, application
from harness.tools.history.store import FileStore
from tests.tools.history import nights

HOSTILE = nights.HOSTILE


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
    runs = nights.hostile(folder)
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
