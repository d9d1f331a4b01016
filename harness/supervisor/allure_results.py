"""Results of allure-pytest for outcomes that only a supervisor knows, such as a crash, a leak or a gate.

allure-pytest itself writes a result when a test ends, in the executor. In a worker it would write an empty one for each
test.
"""

from __future__ import annotations

import hashlib
import importlib
import uuid
from typing import Any

import pytest

from harness.core.clock import now
from harness.core.outcome import Outcome
from harness.protocol.reports import outcome_of_case

_LISTENER = "allure_listener"


def take_over(manager: pytest.PytestPluginManager) -> None:
    """If allure-pytest is active in this process, write its results in its place."""
    if manager.has_plugin(_LISTENER):
        manager.unregister(name=_LISTENER)
        manager.register(AllureResults(), "harness-allure")


class AllureResults:
    """Writes a result for each case whose outcome its executor does not know."""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = outcome_of_case(report)
        if outcome is None or outcome is Outcome.FLAKY or report.passed:
            return
        commons: Any = importlib.import_module("allure_commons")
        model: Any = importlib.import_module("allure_commons.model2")
        first, _, _ = str(report.longreprtext).partition("\n")
        stop = report.stop or now()
        result = model.TestResult(
            uuid=str(uuid.uuid4()),
            name=f"{report.nodeid.rpartition('::')[2]}: {outcome}",
            fullName=report.nodeid,
            historyId=hashlib.md5(report.nodeid.encode(), usedforsecurity=False).hexdigest(),
            status="skipped" if report.skipped else "broken",
            statusDetails=model.StatusDetails(message=first or str(outcome), trace=report.longreprtext),
            start=int(1000 * (stop - report.duration)),
            stop=int(1000 * stop),
        )
        commons.plugin_manager.hook.report_result(result=result)
