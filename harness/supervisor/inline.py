"""Cases that run in the worker's own process, for debugging: isolation ``none``."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Generator, Mapping

import pytest

from harness.collection.cases import is_case
from harness.configuration.under import CallWrapperPlugin, WrapperError
from harness.core import clock
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome, Ruling
from harness.devices.device import masks_for
from harness.executor.around_case import PhaseClock, TraceLogMuted, seed_everything
from harness.fixtures import CURRENT, SUITE_PROPERTIES, Current
from harness.journal.events import SessionProperty
from harness.protocol import reports
from harness.sim.interposer import front
from harness.sim.native import faults, provider
from harness.supervisor import case_reports
from harness.supervisor.case import Case, first_line, tracebacks
from harness.supervisor.judgement import Evidence, judge, phase_of
from harness.supervisor.worker import Worker

#: The name of the plugin that measures cases in this process.
_PHASE_CLOCK = "harness-phase-clock"


def register_inline_hooks(config: pytest.Config, worker: Worker) -> None:
    """Set up this process for cases on the worker's device, and register the hooks for them.

    Raises pytest.UsageError for a wrapper that this torch cannot make, and for a device that this process cannot use.
    """
    device = worker.pool.device
    if device.backend.accelerator or worker.context.device == device.kind:
        _offer_device(worker)
    manager = config.pluginmanager
    manager.register(InlineHooks(worker), "harness-inline")
    manager.register(TraceLogMuted(), "harness-unheard")
    if worker.context.under is not None:
        try:
            manager.register(CallWrapperPlugin(worker.context.under), "harness-under")
        except WrapperError as error:
            raise pytest.UsageError(str(error)) from None


def _offer_device(worker: Worker) -> None:
    """Set the environment of this process, for cases on the worker's device. Raises pytest.UsageError."""
    device = worker.pool.device
    os.environ.update(masks_for([device]))
    for name, value in device.backend.stated.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if device.backend.injectable:
        os.environ[device.backend.faults_variable] = faults.join_injections(worker.context.inject)
    if worker.context.variables:
        _prepare_process(worker, worker.context.variables)


def _prepare_process(worker: Worker, variables: Mapping[str, str]) -> None:
    """Set up what this process would have got at its start. Raises pytest.UsageError."""
    backend = worker.pool.device.backend
    try:
        provider.provider_of(backend).prepare(variables)
        if backend.interposed and backend.faults_variable in variables:
            front.inject_into_this_process(worker.context.inject)
    except HarnessError as error:
        raise pytest.UsageError(f"--device={worker.context.device}: {error}") from None


class InlineHooks:
    """Hooks around pytest's own run of a case."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._recorded(item):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Gate in the setup phase.

        Pytest must run its protocol, or it does not tear down the fixtures of earlier cases.
        """
        objection, why = self._gate(item)
        if objection is not None:
            pytest.fail(objection.text, pytrace=False)
        if why:
            pytest.skip(f"gated: {why}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        objection, why = self._gate(item)
        if why and report.when == "setup":
            reports.attach_outcome(report, Outcome.GATED if objection is None else objection.outcome)
        return report

    def _gate(self, item: pytest.Item) -> tuple[Ruling | None, str]:
        """Return the ruling against gating this case, or None; and why the case is gated, or an empty text."""
        if not is_case(item):
            return None, ""
        case = self._worker.preparation.prepare(item)
        return case.objection, "" if case.unmet is None else case.unmet.text

    @contextlib.contextmanager
    def _recorded(self, item: pytest.Item) -> Generator[None]:
        """Seed and record one case that runs in this context."""
        if not is_case(item):
            yield
            return
        worker, journal = self._worker, self._worker.journal
        case = worker.preparation.prepare(item)
        if case.unmet is not None:
            with journal.noting_failures():
                journal.record(case.gated(case.unmet, worker.name))
            worker.tell_failure()
            yield
            return
        record = InlineCase(case, worker)
        self._begin(item, case)
        plugins = item.config.pluginmanager
        plugins.register(record)
        with journal.noting_failures():
            record.start()
        stopped = ""
        try:
            yield
        except KeyboardInterrupt as error:
            stopped = str(error) or f"stopped by {signal.SIGINT.name}"
            raise
        except pytest.exit.Exception as error:  # also if the user quits a debugger
            stopped = f"pytest.exit: {error.msg}"
            raise
        finally:
            plugins.unregister(record)
            with journal.noting_failures():
                record.finish(stopped)
                properties = item.config.stash.get(SUITE_PROPERTIES, [])
                journal.record(*(SessionProperty(t=clock.now(), name=name, value=value) for name, value in properties))
                properties.clear()
            worker.tell_failure()
            if worker.over:
                item.session.shouldstop = worker.over

    def _begin(self, item: pytest.Item, case: Case) -> None:
        """Give this process the device, the settings and the seeds of a case."""
        worker = self._worker
        backend = worker.pool.device.backend
        if worker.context.library is not None:
            provider.provider_of(backend).enter_inline(worker.context.library)
        elif backend.warmed:
            backend.import_torch()
        item.config.stash[CURRENT] = Current(backend.kind, case.seed, worker.bindings.settings)
        os.environ.update({name: value for name, value in worker.bindings.types.items() if value is not None})
        seed_everything(case.seed, backend)
        plugins = item.config.pluginmanager
        if not plugins.has_plugin(_PHASE_CLOCK):
            plugins.register(PhaseClock(), _PHASE_CLOCK)


class InlineCase:
    """Collects pytest's reports of one case, and records its start and finish."""

    def __init__(self, case: Case, worker: Worker) -> None:
        self._case = case
        self._worker = worker
        self._devices = (worker.pool.device.uuid,)
        self._reports: list[pytest.TestReport] = []
        self._begun = clock.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def start(self) -> None:
        """Record the start of the case."""
        line = self._case.start(attempt=1, alone=False, worker=self._worker.name, devices=self._devices)
        self._worker.journal.record(line)

    def finish(self, stopped: str = "") -> None:
        """Record the result. `stopped`: why the case was stopped, if it was."""
        over = any(report.when == "teardown" for report in self._reports)
        if not (over or stopped):
            return
        phases = tuple(phase_of(report) for report in self._reports)
        judgement = judge(Evidence(phases=phases, done=over, stopped=stopped))
        red, case = judgement.outcome.is_red, self._case
        self._worker.journal.record(
            case.finish(
                judgement.outcome,
                alone=False,
                worker=self._worker.name,
                devices=self._devices,
                duration=round(clock.monotonic() - self._begun, 6),
                phases={report.when: report.duration for report in self._reports},
                message=judgement.message or first_line(self._reports),
                detail=tracebacks(self._reports),
                properties=case_reports.property_texts(self._reports),
                reproduce=self._worker.context.reproduce(case.id, case.item.path, {}) if red else None,
            )
        )
