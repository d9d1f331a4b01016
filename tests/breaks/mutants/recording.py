"""A pytest plugin that records, in executors, the lines and calls of each case in some modules.

``python -m tests.breaks record`` loads it with ``-p``. The variable `VARIABLE` has a line of JSON: the folder for the
records, the folder above the modules, and the patterns of the modules. Each executor appends to its own file, one line
of JSON per case, and one per fork of a case.

From Python 3.12 on, `sys.monitoring` reports a line once per case, in all threads. Before, `sys.settrace` and
`threading.settrace` report only in threads that Python started: code that autograd calls in the thread of a device is
not recorded.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator
from types import CodeType, FrameType
from typing import Any, NoReturn

import pytest

from tests.breaks.mutants.modules import chooser

VARIABLE = "HARNESS_MUTATION_RECORDING"
#: The most calls of a function by one case whose arguments are recorded.
CALLS = 20
#: The most values of an argument that are kept per case.
VALUES = 6
_PLAIN = (bool, int, float, type(None))


class Watch:
    """Records between `start` and `stop`: lines by file, and values of the arguments by file and function."""

    def __init__(self, root: str, patterns: tuple[str, ...]) -> None:
        self._root = root.rstrip("/") + "/"
        self._is_wanted = chooser(patterns)
        #: By code: the file below the root and the first line of each instruction; None for other code.
        self._places: dict[CodeType, tuple[str, frozenset[int]] | None] = {}
        self._seen: dict[CodeType, set[int]] = {}
        self._calls: dict[CodeType, int] = {}
        self.arguments: dict[str, dict[str, set[str]]] = {}

    def start(self) -> None:
        self._seen, self._calls, self.arguments = {}, {}, {}
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def lines(self) -> dict[str, list[int]]:
        """Return the lines that ran, by file."""
        by_file: dict[str, set[int]] = {}
        for code, lines in self._seen.items():
            place = self._places[code]
            assert place is not None
            by_file.setdefault(place[0], set()).update(lines)
        return {name: sorted(lines) for name, lines in sorted(by_file.items())}

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG002
        code = frame.f_code
        try:
            place = self._places[code]
        except KeyError:
            place = self._places[code] = self._place(code)
        except TypeError:  # constants of code that Dynamo has written may not be hashable
            return None
        if place is None:
            return None
        seen = self._seen.get(code)
        if seen is None:
            seen = self._seen[code] = set()
        count = self._calls.get(code, 0)
        if count < CALLS:
            self._calls[code] = count + 1
            self._note_arguments(place[0], code, frame)
        seen.add(code.co_firstlineno)
        if len(seen) >= len(place[1]):
            return None

        def on_line(inner: FrameType, event: str, argument: object) -> Any:  # noqa: ARG001
            seen.add(inner.f_lineno)
            return on_line

        return on_line

    def _place(self, code: CodeType) -> tuple[str, frozenset[int]] | None:
        if not code.co_filename.startswith(self._root) or code.co_name == "<module>":
            return None
        path = code.co_filename[len(self._root) :]
        if not self._is_wanted(path):
            return None
        return path, frozenset(lines_of(code)) | {code.co_firstlineno}

    def _note_arguments(self, path: str, code: CodeType, frame: FrameType) -> None:
        count = code.co_argcount + code.co_kwonlyargcount
        noted = self.arguments.setdefault(f"{path}:{code.co_qualname}", {})
        local = frame.f_locals
        for name in code.co_varnames[:count]:
            values = noted.setdefault(name, set())
            if name != "self" and name in local and len(values) < VALUES:
                values.add(value_text(local[name]))


def lines_of(code: CodeType) -> list[int]:
    """Return the lines of a code object that have instructions."""
    return [line for _, _, line in code.co_lines() if line is not None]


def value_text(value: object) -> str:
    """Return a plain value as source text, and the type of another value."""
    kind = type(value)
    if kind in _PLAIN or (kind is str and len(value) < 30):  # type: ignore[arg-type]
        return repr(value)
    return kind.__name__


class MonitoringWatch(Watch):
    """Does the same with `sys.monitoring`, which costs nothing for lines that were reported once."""

    _TOOL = 4

    def start(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        self._seen, self._calls, self.arguments = {}, {}, {}
        if monitoring.get_tool(self._TOOL) is None:
            monitoring.use_tool_id(self._TOOL, "tests.breaks")
            monitoring.register_callback(self._TOOL, monitoring.events.LINE, self._on_line)
            monitoring.register_callback(self._TOOL, monitoring.events.PY_START, self._on_start)
        monitoring.restart_events()
        monitoring.set_events(self._TOOL, monitoring.events.LINE | monitoring.events.PY_START)

    def stop(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        monitoring.set_events(self._TOOL, 0)

    def _on_start(self, code: CodeType, offset: int) -> object:  # noqa: ARG002
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        if not self._is_known(code):
            return monitoring.DISABLE
        self._seen.setdefault(code, set()).add(code.co_firstlineno)
        count = self._calls.get(code, 0)
        if count >= CALLS:
            return monitoring.DISABLE
        self._calls[code] = count + 1
        frame = sys._getframe(1)
        place = self._places[code]
        if place is not None and frame.f_code is code:
            self._note_arguments(place[0], code, frame)
        return None

    def _on_line(self, code: CodeType, line: int) -> object:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        if self._is_known(code):
            self._seen.setdefault(code, set()).add(line)
        return monitoring.DISABLE

    def _is_known(self, code: CodeType) -> bool:
        try:
            place = self._places[code]
        except KeyError:
            place = self._places[code] = self._place(code)
        except TypeError:  # constants of code that Dynamo has written may not be hashable
            return False
        return place is not None


def make_watch(root: str, patterns: tuple[str, ...]) -> Watch:
    """Return the watch for this Python."""
    kind = MonitoringWatch if hasattr(sys, "monitoring") else Watch
    return kind(root, patterns)


class RecordingPlugin:
    """Writes a record for each case."""

    def __init__(self, folder: str, root: str, patterns: tuple[str, ...]) -> None:
        self._folder = folder
        self._watch = make_watch(root, patterns)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        process, begin = os.getpid(), time.perf_counter()
        self._watch.start()
        try:
            with self._forks_recorded(item.nodeid, process):
                return (yield)
        finally:
            self._watch.stop()
            if os.getpid() == process:  # a case may have left a running fork of itself
                self._write(item.nodeid, time.perf_counter() - begin)

    @contextlib.contextmanager
    def _forks_recorded(self, case: str, process: int) -> Iterator[None]:
        """Make a fork of the case in this context write its record before it ends with `os._exit`."""
        leave = os._exit

        def write_and_leave(status: int) -> NoReturn:
            if os.getpid() != process:
                self._write(case, None)
            leave(status)

        os._exit = write_and_leave
        try:
            yield
        finally:
            os._exit = leave

    def _write(self, case: str, seconds: float | None) -> None:
        """Write a record. `seconds`: None for a fork of the case."""
        arguments = {
            name: {argument: sorted(values) for argument, values in noted.items()}
            for name, noted in self._watch.arguments.items()
        }
        record = {
            "case": case,
            "seconds": None if seconds is None else round(seconds, 4),
            "lines": self._watch.lines(),
            "arguments": arguments,
        }
        with open(f"{self._folder}/{os.getpid()}.ndjson", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Record in the zygote's session, whose forks run the cases."""
    if any(getattr(plugin, "is_harness_zygote", False) for plugin in config.pluginmanager.get_plugins()):
        folder, root, patterns = json.loads(os.environ[VARIABLE])
        config.pluginmanager.register(RecordingPlugin(folder, root, tuple(patterns)), "tests-breaks-recording")
