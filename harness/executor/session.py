"""The state that an executor inherits from the process that collected the cases, and what it must not take over.

Test files are imported once, in the zygote. What they register with `atexit` at import belongs to that process and runs
there, once, when all executors have ended. Otherwise the first executor that ends would, for example, delete a folder
that all of them use. A variable with the result of ``os.getpid()``, or with a text that has it, gets the executor's own
id.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import sysconfig
import types
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar

import pytest

from harness import _compat
from harness.checks.state.guard import FixtureWatch, StateGuard
from harness.executor.around_case import PhaseClock
from harness.fixtures import SUITE_PROPERTIES
from harness.marks import marks_of_project
from harness.protocol.endings import SESSION_ENDS, SessionNews

#: The folders of the standard library and of installed packages. Their handlers clean up what a process has used, so
#: they run in each.
_LIBRARIES = tuple(
    {f"{os.path.realpath(sysconfig.get_path(name))}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class ZygotePid(int):
    """The process id of the zygote, as ``os.getpid()`` returns it while test files are imported."""

    #: The names of the modules that have written one into a text, such as ``f"@test_{os.getpid()}"``.
    writers: ClassVar[set[str]] = set()

    def __format__(self, spec: str) -> str:
        """Format the number, and note who does."""
        self.writers.add(str(sys._getframe(1).f_globals.get("__name__")))
        return format(int(self), spec)

    def __str__(self) -> str:
        """Return the digits, and note for whom."""
        self.writers.add(str(sys._getframe(1).f_globals.get("__name__")))
        return str(int(self))


class ExitHandlers:
    """The exit handlers that project files, not libraries, have registered in this process."""

    def __init__(self) -> None:
        self._registered: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []
        self._last_finalizer: weakref.finalize[..., Any] | None = None

    def install(self) -> None:
        """Replace ``atexit.register`` by a function that does the same, and records the call."""
        register = atexit.register
        self._last_finalizer = next(reversed(_compat.finalizers()), None)

        def recorded(func: Callable[..., object], *args: Any, **kwargs: Any) -> Callable[..., object]:
            register(func, *args, **kwargs)
            if not _is_of_library(sys._getframe(1).f_code.co_filename):
                self._registered.append((func, args, kwargs))
            return func

        atexit.register = recorded  # type: ignore[assignment]

    def leave_to_parent(self) -> None:
        """Forget, in a fork, what was registered before."""
        for func, _, _ in self._registered:
            atexit.unregister(func)
        self._registered.clear()
        for finalizer in self._finalizers():
            finalizer.atexit = False

    def run(self) -> None:
        """Run the handlers, last registered first. The error of one is printed, and the others run."""
        for func, args, kwargs in reversed(self._registered):
            try:
                func(*args, **kwargs)
            except Exception:  # noqa: BLE001 - as the interpreter does at its end
                sys.excepthook(*sys.exc_info())
        for finalizer in self._finalizers():
            if finalizer.atexit:
                finalizer()

    def _finalizers(self) -> list[weakref.finalize[..., Any]]:
        """Return the finalizers made since `install`, last made first."""
        made = []
        for finalizer in reversed(_compat.finalizers()):
            if finalizer is self._last_finalizer:
                break
            made.append(finalizer)
        return made


EXIT_HANDLERS = ExitHandlers()


def _is_of_library(file: str) -> bool:
    return file.startswith("<") or os.path.realpath(file).startswith(_LIBRARIES)


@contextlib.contextmanager
def marked_pid() -> Generator[None]:
    """Have ``os.getpid()`` return a `ZygotePid` in this context."""
    bare = os.getpid
    active = True

    def getpid() -> int:
        return ZygotePid(bare()) if active else bare()

    os.getpid = getpid
    try:
        yield
    finally:
        active = False
        if os.getpid is getpid:
            os.getpid = bare


@dataclass(frozen=True, slots=True)
class PidVariable:
    """A variable of a module or class with the process id of the zygote: as a number, or between `parts` of a text.

    `make` makes the value of the number or the text.
    """

    owner: object
    name: str
    make: Callable[[Any], object] = int
    parts: tuple[str, ...] = ()

    def renew(self, pid: int) -> None:
        """Give the variable the process id of an executor."""
        setattr(self.owner, self.name, self.make(str(pid).join(self.parts) if self.parts else pid))


def variables_with_pid(modules: Iterable[object], pid: int) -> list[PidVariable]:
    """Return the variables with the process id `pid` of this process in modules, and in the classes that they define.

    A text counts if a module has written a `ZygotePid` into texts while it was imported, and has the id in the text;
    and so do texts, bytes and paths that have such a text, in all modules.
    """
    owners = [
        owner for module in modules if isinstance(module, types.ModuleType) for owner in (module, *_classes(module))
    ]
    whole = re.compile(rf"(?<!\d){pid}(?!\d)")
    written = {
        value
        for owner in owners
        if vars(owner).get("__name__" if isinstance(owner, types.ModuleType) else "__module__") in ZygotePid.writers
        for value in vars(owner).values()
        if type(value) is str and whole.search(value)
    }
    found: list[PidVariable] = []
    for owner in owners:
        for name, value in vars(owner).items():
            if type(value) is ZygotePid:
                found.append(PidVariable(owner, name))
            elif written and (text := _text(value)) and _has_any(text, written) and whole.search(text):
                make = os.fsencode if isinstance(value, bytes) else type(value)
                found.append(PidVariable(owner, name, make, tuple(whole.split(text))))
    return found


def _text(value: object) -> str:
    """Return a text, or that of bytes or a path; empty for other values."""
    kind = type(value)
    return os.fsdecode(value) if kind in (str, bytes) or issubclass(kind, PurePath) else ""  # type: ignore[arg-type]


def _has_any(text: str, written: set[str]) -> bool:
    # A bare number is too short to be found in other texts.
    return text in written or any(each in text for each in written if not each.isdigit())


def _classes(module: types.ModuleType) -> list[type]:
    # By its real type: `isinstance` also asks a value for its class, and torch's deprecated names warn then.
    values = [value for value in vars(module).values() if issubclass(type(value), type)]
    return [value for value in values if getattr(value, "__module__", None) == module.__name__]


#: Marks that the supervisor reads before it requests the case.
_READ_BEFORE = frozenset({"requires", "timeout", "serial", "own_process", "leaks", "endurance"})

_NONE = SessionNews()
#: Limits of properties that a case may record for the whole run, as for those of the case: a message must not be too
#: long to send.
_MOST_PROPERTIES, _MOST_OF_NAME, _MOST_OF_VALUE = 100, 200, 2000


class ReportRelay:
    """A plugin that passes each report and each warning to a callback.

    It is registered before the fork: pluggy inspects every attribute of a plugin, which would cost each executor 1 ms.
    """

    def __init__(self) -> None:
        self.on_report: Callable[[pytest.TestReport], None] | None = None
        self.on_warning: Callable[[warnings.WarningMessage, str], None] | None = None
        #: The reports that have made pytest count a failure.
        self.failed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # pytest's session does the same before: it is registered later, so its hooks are called first.
        self.failed += report.failed and not hasattr(report, "wasxfail")
        if self.on_report is not None:
            self.on_report(report)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        if self.on_warning is not None:
            self.on_warning(warning_message, when)


@dataclass(frozen=True, slots=True)
class CollectedSession:
    """The state that an executor inherits from the zygote.

    `items` are by the id used in requests. For the short exit, `modules` names all modules at the time of the fork,
    `case_modules` those with cases, and `last_finalizer` was made last before the collection. `relay` passes on
    pytest's reports, `clock` measures phases. `guard` compares state; `watch` notifies it of fixtures.
    `pids`: variables with the process id of the zygote.
    """

    session: pytest.Session
    items: Mapping[str, pytest.Item]
    modules: frozenset[str]
    case_modules: frozenset[str]
    last_finalizer: weakref.finalize[..., Any] | None
    relay: ReportRelay
    clock: PhaseClock
    guard: StateGuard
    watch: FixtureWatch
    pids: Sequence[PidVariable]


def late_marks(item: pytest.Item, added: Iterable[pytest.Mark]) -> list[str]:
    """Return those of the marks that have no effect if they are `added` while a case runs."""
    read = _READ_BEFORE - marks_of_project(item.config)
    return list(dict.fromkeys(mark.name for mark in added if mark.name in read))


def make_late_warning(text: str, item: pytest.Item) -> warnings.WarningMessage:
    """Return a warning with the place of a case."""
    file, line, _ = item.location
    return warnings.WarningMessage(pytest.PytestWarning(text), pytest.PytestWarning, file, (line or 0) + 1)


class SessionWatch:
    """Detects changes to the session of an executor by cases, fixtures and hooks.

    pytest's own session does not see these changes.
    """

    def __init__(self, session: pytest.Session, relay: ReportRelay) -> None:
        self._session = session
        self._relay = relay
        self._others = 0
        self.begin()

    def begin(self) -> None:
        """Start over: earlier changes are not news."""
        self._others = self._failed_otherwise()

    def news(self) -> SessionNews:
        """Return the changes since `begin`."""
        session = self._session
        ends = {name: value for name in SESSION_ENDS if (value := getattr(session, name))}
        failed = self._failed_otherwise() - self._others
        self._others += failed
        properties = session.config.stash.get(SUITE_PROPERTIES, None)
        if not (ends or failed or properties):
            return _NONE
        reasons = {name: value if type(value) is str else f"{name} was set" for name, value in ends.items()}
        kept = [(name[:_MOST_OF_NAME], value[:_MOST_OF_VALUE]) for name, value in (properties or ())[:_MOST_PROPERTIES]]
        news = SessionNews(reasons, failed, tuple(kept))
        if properties:
            properties.clear()
        return news

    def _failed_otherwise(self) -> int:
        """Return the change of the number of failed tests by code other than pytest."""
        count = self._session.testsfailed
        return count - self._relay.failed if isinstance(count, int) else 0
