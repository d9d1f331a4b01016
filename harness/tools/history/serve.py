"""A server of the pages of a history: read-only, and by default only for this machine.

Pages have the same addresses as in an export, and every case, group, device and run has one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from harness.core.errors import HarnessError
from harness.reporting.page import inert
from harness.tools.history import front
from harness.tools.history.answers import NIGHTS, Answers, NothingKnownError
from harness.tools.history.database import HistoryError
from harness.tools.history.folder import FolderStore
from harness.tools.history.names import page_names, search_names
from harness.tools.history.pages import EveryLink, Pages, content_policy_of_site, page_file_name, scripts
from harness.tools.history.store import FileStore
from harness.tools.history.suspicion import DeviceSuspicion

if TYPE_CHECKING:
    from starlette.applications import Starlette

#: Maximum characters of a search.
MOST_SEARCHED = 300
#: Seconds for which a file stays open for the next request, and between checks for a waiting writer.
IDLE = 10.0
CHECK = 0.05
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _State:
    """The inputs of every page in one state of the store.

    `names`: by folder, the names of items with a page. `runs`: the names of runs.
    """

    stamp: object
    front: front.Front
    names: Mapping[str, Mapping[str, str]]
    runs: Mapping[int, str]


class Reader:
    """Reads the history for requests, one at a time.

    The history is read once per state of the store. An open file blocks writers, so it is closed when a writer waits,
    and after some seconds without a request.
    """

    def __init__(self, store: FileStore | FolderStore) -> None:
        self._store = store
        self._file = store if isinstance(store, FileStore) else store.copy
        self._lock = threading.Lock()
        self._state: _State | None = None
        self._open = contextlib.ExitStack()
        self._answers: Answers | None = None
        self._opened: object = None
        self._used = 0.0

    def close(self) -> None:
        """Close the open file."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._open.close()
        self._answers = None

    @contextlib.contextmanager
    def pages(self, wanted: str = "") -> Generator[tuple[Pages, Answers, _State]]:
        """Yield the inputs of pages. Raise HarnessError if the history cannot be read or has no run."""
        with self._lock:
            answers = self._reading()
            state = self._current(answers)
            yield Pages(answers, state.front, EveryLink(state.runs), wanted), answers, state
            self._used = time.monotonic()

    def _reading(self) -> Answers:
        """Return queries of the present state of the store."""
        if self._file is not None and self._file.is_wanted():
            self._close()
            self._file.wait_for_writers()
        if self._answers is None or self._opened != self._stamp():
            self._close()
            database = self._open.enter_context(self._store.reading())
            self._opened = self._stamp()  # no writer changes the file while it is open
            # The runs are those of the last state, unless the store has changed since.
            runs = self._state.front.runs if self._state and self._state.stamp == self._opened else None
            self._answers = Answers(database, runs)
            if self._file is not None:
                threading.Thread(target=self._yield_to_writers, args=(self._file,), daemon=True).start()
        return self._answers

    def _yield_to_writers(self, store: FileStore) -> None:
        """Close the file when a writer waits for it, or after some time without a request."""
        answers = self._answers
        while True:
            time.sleep(CHECK)
            with self._lock:
                if self._answers is not answers:  # it has been closed, and perhaps opened again
                    return
                if store.is_wanted() or time.monotonic() - self._used > IDLE:
                    self._close()
                    return

    def _current(self, answers: Answers) -> _State:
        stamp = self._opened
        if self._state is None or self._state.stamp != stamp:
            named = {
                kind: {page_file_name(kind, name): name for name in names}
                for kind, names in page_names(answers.database).items()
            }
            runs = {number: run["run_id"] for number, run in answers.runs.items()}
            self._state = _State(stamp, front.front(answers), named, runs)
        return self._state

    def _stamp(self) -> object:
        """Return a value that changes with the store."""
        path = self._store.path
        with contextlib.suppress(OSError):  # the following read reports the error
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            return tuple((file.name, (seen := file.stat()).st_mtime_ns, seen.st_size) for file in files)
        return None


def render_page(reader: Reader, name: str, words: str = "", since: str = "", wanted: str = "") -> bytes:
    """Return a page by its name, such as ``cases/0123456789abcdef.html``. Raise NothingKnownError if there is none.

    `words`: the search words. `since`: the run that a run is compared with. `wanted`: the filter of a list.
    """
    with reader.pages(wanted) as (made, answers, state):
        lists: dict[str, Callable[[], bytes]] = {
            "index.html": made.index,
            "groups.html": lambda: made.groups(answers.groups(only_open=False)),
            "cases.html": lambda: made.cases(answers.recent_failures(_since(state))),
            "devices.html": made.devices,
            "runs.html": made.runs,
            "search.html": lambda: made.found(words, _search_rows(answers, words)),
        }
        if name in lists:
            return lists[name]()
        kind = name.partition("/")[0]
        value = state.names.get(kind, {}).get(name)
        if value is None:
            raise NothingKnownError(f"the history has no page {inert.inert_line(name, 200)!r}")
        return _one(made, answers, state, kind, value, since)


def _since(state: _State) -> date:
    return state.front.night - timedelta(days=NIGHTS)


def _search_rows(answers: Answers, words: str) -> list[tuple[str, str, Any]]:
    rows: list[tuple[str, str, Any]] = []
    for kind, name, title in search_names(answers.database, words) if words else ():
        value: Any = (name, title) if kind == "group" else int(name) if kind == "run" else name
        rows.append((kind, kind, value))
    return rows


def _one(made: Pages, answers: Answers, state: _State, kind: str, value: str, since: str) -> bytes:
    if kind == "cases":
        number = answers.case_number(value)
        return made.case(
            value, answers.observations([number], NIGHTS).get(number, {}), answers.failures_of_case(number)
        )
    if kind == "groups":
        return made.group(answers.group(value), answers.failures_of_group(value))
    if kind == "devices":
        return made.device(_suspicion(state, value))
    run = answers.run_by_id(value)
    other = answers.run_by_id(since)["run"] if since else None
    report = Markup(f"../reports/{page_file_name('runs', value).partition('/')[2]}") if _report(run) else Markup("")
    return made.run(run["run"], report, other)


def _suspicion(state: _State, key: str) -> DeviceSuspicion:
    suspected = next((suspicion for suspicion in state.front.suspicions if suspicion.device == key), None)
    if suspected is None:
        raise NothingKnownError(f"the device {key!r} ran in none of the last nights")
    return suspected


def _report(run: Mapping[str, Any]) -> Path | None:
    """Return the file of the run's own page, if it is on this machine."""
    path = Path(run["page"]) if run["page"] else None
    return path if path is not None and path.name == "report.html" and path.is_file() else None


def run_report_file(reader: Reader, name: str) -> Path:
    """Return the file of a run's own page. Raise NothingKnownError if it is not on this machine."""
    with reader.pages() as (_, answers, state):
        value = state.names["runs"].get(f"runs/{name}")
        path = _report(answers.run_by_id(value)) if value is not None else None
    if path is None:
        raise NothingKnownError("the report of this run is not on this machine")
    return path


def application(reader: Reader, hosts: Sequence[str]) -> Starlette:
    """Return the ASGI application. `hosts`: the accepted host names.

    Requests with other names are refused, so that a foreign page cannot read the history through a name that resolves
    to this host.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, PlainTextResponse, Response
    from starlette.routing import Route

    headers = {**_HEADERS, "Content-Security-Policy": f"{content_policy_of_site(search=True)}; frame-ancestors 'none'"}

    def show(request: Request) -> Response:
        name = request.path_params.get("name") or "index.html"
        asked = [request.query_params.get(key, "")[:MOST_SEARCHED].strip() for key in ("q", "since", "filter")]
        return Response(render_page(reader, name, *asked), media_type="text/html; charset=utf-8", headers=headers)

    def show_report(request: Request) -> Response:
        return FileResponse(
            run_report_file(reader, request.path_params["name"]), media_type="text/html", headers=_HEADERS
        )

    def refuse(_: Request, error: Exception) -> Response:
        status = 404 if isinstance(error, NothingKnownError) else 503
        return PlainTextResponse(f"{inert.inert_line(str(error), 500)}\n", status, headers=headers)

    files = {name: text.encode() for name, text in scripts(search=True).items()}

    def show_script(request: Request) -> Response:
        name = request.url.path.removeprefix("/")
        if name not in files:
            raise NothingKnownError(f"the history has no script {inert.inert_line(name, 200)!r}")
        kept = {**_HEADERS, "Cache-Control": "max-age=31536000, immutable"}
        return Response(files[name], media_type="text/javascript", headers=kept)

    routes = [
        Route("/", show),
        Route("/assets/{name}", show_script),
        Route("/reports/{name}", show_report),
        Route("/{name:path}", show),
    ]
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={HarnessError: refuse})


def serve(store: FileStore | FolderStore, host: str, port: int, names: Sequence[str]) -> None:
    """Serve until the user interrupts. `names`: further accepted host names.

    Raise HistoryError if the packages are missing, the history cannot be read, or the port is not available.
    """
    try:
        import uvicorn
    except ImportError:
        raise HistoryError(
            "harness history serve needs the packages starlette and uvicorn: "
            "pip install 'gpu-conformance-harness[history]'"
        ) from None
    reader = Reader(store)
    with reader.pages():
        pass  # an unreadable history is an error now, not later as a page
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise HistoryError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}") from None
    with listening:
        shown = f"[{host}]" if ":" in host else host
        print(f"http://{shown}:{listening.getsockname()[1]}/  (Ctrl-C ends it)", flush=True)
        allowed = ["localhost", "127.0.0.1", "[::1]", host, *names]
        config = uvicorn.Config(application(reader, allowed), log_level="warning", access_log=False, lifespan="off")
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])
    reader.close()
