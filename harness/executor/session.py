"""The state that an executor inherits from the process that collected the cases."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.checks.state.guard import StateGuard
from harness.executor.phase_clock import PhaseClock
from harness.fixtures import SUITE_PROPERTIES

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
        #: The reports that have made pytest count a failure.
        self.failed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # pytest's session does the same before: registered later, its hooks are called first.
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


@dataclass(frozen=True, slots=True)
class SessionNews:
    """What code in an executor has told its session, which is a copy of pytest's.

    `ends`: reasons to fail or to stop, by the attribute of the session. `failed`: what was added to
    ``session.testsfailed``, less if negative. `properties`: of ``record_testsuite_property``.
    """

    ends: Mapping[str, str] = field(default_factory=dict)
    failed: int = 0
    properties: Sequence[tuple[str, str]] = ()

    def __bool__(self) -> bool:
        return bool(self.ends or self.failed or self.properties)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> SessionNews:
        """Return the news in a message of an executor. Raise TypeError, ValueError or AttributeError without any."""
        data = message.get("session")
        if not data:
            return cls()
        return cls(
            {name: str(reason) for name, reason in data["ends"].items() if name in SESSION_ENDS},
            int(data["failed"]),
            [(str(name), str(value)) for name, value in data["properties"]],
        )


class SessionWatch:
    """Finds out what cases, fixtures and hooks tell the session of an executor: pytest's own does not see it."""

    def __init__(self, session: pytest.Session, relay: ReportRelay) -> None:
        self._session = session
        self._relay = relay
        self._others = 0
        self.begin()

    def begin(self) -> None:
        """What has been counted so far is no news."""
        self._others = self._failed_otherwise()

    def news(self) -> dict[str, dict[str, object]]:
        """Return what is new since `begin`, as a part of a message; empty if nothing is."""
        session = self._session
        ends = {name: value for name in SESSION_ENDS if (value := getattr(session, name))}
        failed = self._failed_otherwise() - self._others
        self._others += failed
        properties = session.config.stash.get(SUITE_PROPERTIES, None)
        if not (ends or failed or properties):
            return {}
        told = {name: value if type(value) is str else f"{name} was set" for name, value in ends.items()}
        found = {"ends": told, "failed": failed, "properties": list(properties or ())}
        if properties:
            properties.clear()
        return {"session": found}

    def _failed_otherwise(self) -> int:
        """Return what others than pytest have added to the number of failed tests."""
        count = self._session.testsfailed
        return count - self._relay.failed if isinstance(count, int) else 0
