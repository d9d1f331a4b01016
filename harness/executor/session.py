"""The state that an executor inherits from the process that collected the cases."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from harness.checks.state.guard import StateGuard
from harness.executor.phase_clock import PhaseClock

#: The attributes of a session that end it after the current test.
SESSION_ENDS = ("shouldfail", "shouldstop")
#: Marks that the supervisor reads before it requests the case.
_READ_BEFORE = frozenset({"requires", "timeout", "serial", "own_process", "leaks", "endurance"})


class ReportRelay:
    """A plugin that passes each report and each warning to a callback.

    It is registered before the fork: pluggy inspects every attribute of a plugin, which would cost each executor 1 ms.
    """

    def __init__(self) -> None:
        self.on_report: Callable[[pytest.TestReport], None] | None = None
        self.on_warning: Callable[[warnings.WarningMessage, str], None] | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
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
    pytest's reports, `clock` measures phases. `guard` is notified of fixtures.
    """

    session: pytest.Session
    items: Mapping[str, pytest.Item]
    modules: frozenset[str]
    case_modules: frozenset[str]
    last_finalizer: weakref.finalize[..., Any] | None
    relay: ReportRelay
    clock: PhaseClock
    guard: StateGuard


def late_marks(added: Iterable[pytest.Mark]) -> list[str]:
    """Return those of the marks that have no effect if they are `added` while a case runs."""
    return list(dict.fromkeys(mark.name for mark in added if mark.name in _READ_BEFORE))


def make_late_warning(text: str, item: pytest.Item) -> warnings.WarningMessage:
    """Return a warning at the place of a case."""
    file, line, _ = item.location
    return warnings.WarningMessage(pytest.PytestWarning(text), pytest.PytestWarning, file, (line or 0) + 1)


def session_requests(session: pytest.Session) -> dict[str, dict[str, str]]:
    """Return the requests of a case, a fixture or a hook to its session: to fail or to stop, with the reason.

    The executor has a copy of the session, so pytest does not see them.
    """
    requests = {name: value for name in SESSION_ENDS if (value := getattr(session, name))}
    if not requests:
        return {}
    return {"session": {name: value if type(value) is str else f"{name} was set" for name, value in requests.items()}}
