"""Hooks of a worker whose cases run in its own process: isolation ``none``."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from harness.configuration.under import CallWrapperPlugin, WrapperError
from harness.core.outcome import Outcome
from harness.executor.trace_log import TraceLogMuted
from harness.protocol import reports
from harness.supervisor.worker import Worker


def register_inline_hooks(config: pytest.Config, worker: Worker) -> None:
    """Register the hooks for cases in this process.

    Raises pytest.UsageError for a wrapper that this torch cannot make.
    """
    manager = config.pluginmanager
    manager.register(InlineHooks(worker), "harness-inline")
    manager.register(TraceLogMuted(), "harness-unheard")
    if worker.context.under is not None:
        try:
            manager.register(CallWrapperPlugin(worker.context.under), "harness-under")
        except WrapperError as error:
            raise pytest.UsageError(str(error)) from None


class InlineHooks:
    """Hooks around pytest's own run of a case."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._worker.inline(item):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Gate in the setup phase.

        Pytest must run its protocol, or it does not tear down the fixtures of earlier cases.
        """
        objection, why = self._worker.gate(item)
        if objection is not None:
            pytest.fail(objection.text, pytrace=False)
        if why:
            pytest.skip(f"gated: {why}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        objection, why = self._worker.gate(item)
        if why and report.when == "setup":
            reports.attach_outcome(report, Outcome.GATED if objection is None else objection.outcome)
        return report
