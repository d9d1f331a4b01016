"""What an executor inherits from the process that collected the cases."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from harness.checks.state.guard import StateGuard


class ReportRelay:
    """A plugin that hands each report, and each warning, to whoever wants it.

    Registered before the fork: registering inspects every attribute of a plugin, which costs each executor 1 ms.
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
    """What an executor inherits from the zygote.

    The collected session, its items by the id under which they are asked for, and, for a light exit, the names of the
    modules that were there and of those that hold cases. `relay` hands on pytest's reports, `guard` hears of fixtures.
    """

    session: pytest.Session
    items: Mapping[str, pytest.Item]
    modules: frozenset[str]
    case_modules: frozenset[str]
    relay: ReportRelay
    guard: StateGuard
