"""The state that an executor inherits from the process that collected the cases."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from harness.checks.live_fixtures import FixtureWatch
from harness.checks.state.guard import StateGuard
from harness.executor.around_case import PhaseClock
from harness.executor.before_fork import PidVariable
from harness.fixtures import SUITE_PROPERTIES
from harness.marks import marks_of_project
from harness.protocol.endings import SESSION_ENDS, SessionNews

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
