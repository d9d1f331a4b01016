"""Hooks of a worker, the process that takes cases: an xdist worker or, without xdist, the controller."""

from __future__ import annotations

import hashlib
import importlib
import uuid
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from harness.collection import foreign_plugins
from harness.collection.cases import CASE_ID, NarrowCollection, is_case, select_cases, skip_reason
from harness.configuration import options
from harness.configuration.context import RunContext
from harness.core.clock import now
from harness.core.outcome import EXIT_NOTHING_RAN, Outcome
from harness.devices.device import Inventory
from harness.protocol import worker_messages
from harness.protocol.reports import outcome_of_case
from harness.scheduling.order import Reach
from harness.scheduling.workers import ResumeError
from harness.supervisor.case_reports import Controller
from harness.supervisor.supervisor import Supervisor
from harness.supervisor.worker import Worker


def start_worker(
    config: pytest.Config,
    context: RunContext,
    inventory: Inventory,
    controller: Controller,
    *,
    name: str,
    device: str,
    workerinput: dict[str, Any] | None = None,
) -> None:
    """Make a worker, and register its hooks. See `Worker`."""
    kind = Worker if context.isolation == "none" else Supervisor
    worker = kind(context, inventory, controller, name=name, device=device, workerinput=workerinput)
    manager = config.pluginmanager
    narrowing = NarrowCollection(Reach.of(worker.policy, worker.selection.only))
    manager.register(narrowing, "harness-narrowing")
    manager.register(WorkerHooks(worker, controller, narrowing), "harness-worker")
    if workerinput is not None:
        from harness.protocol.compact_reports import CompactReportsPlugin

        manager.register(CompactReportsPlugin(config), "harness-compact-reports")
    if not isinstance(worker, Supervisor):
        from harness.supervisor.inline import register_inline_hooks

        register_inline_hooks(config, worker)
    elif context.start != "cold":
        from harness.collection.stand_ins import DescribedCollection

        manager.register(DescribedCollection(config, worker), "harness-described")


class DistantController:
    """The controller of an xdist worker, beyond xdist's channel."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def report_late(self, report: pytest.TestReport) -> None:
        """Send the report at the end of this worker: xdist accepts reports only on the running case."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        worker_messages.news_of(self._config)["late"].append(data)

    def report_write_failure(self, text: str) -> None:
        """Send the text at the end of this worker."""
        worker_messages.news_of(self._config)["write_failure"] = text

    def handling_signals(self) -> AbstractContextManager[None]:
        """Handle no signals: an xdist worker leaves them to its controller."""
        return nullcontext()


class MisplacedHooks:
    """Fails the collection of an xdist worker whose root folder or ini file differs from the controller's."""

    def __init__(self, wrong: str) -> None:
        self._wrong = wrong

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        report.outcome, report.longrepr, report.result = "failed", self._wrong, []
        return report


class WorkerHooks:
    """Makes the worker run its cases."""

    def __init__(self, worker: Worker, controller: Controller, narrowing: NarrowCollection) -> None:
        self._worker = worker
        #: None if pytest itself runs the cases.
        self._supervisor = worker if isinstance(worker, Supervisor) else None
        self._controller = controller
        self._narrowing = narrowing
        self._seen: list[pytest.Item] = []
        self._ids: set[str] = set()
        self._selected: list[str] = []
        #: The reasons of the files that skipped themselves.
        self._skipped: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """End the collection of an xdist worker that must stop. `shouldstop` holds the reason."""
        if hasattr(collector.config, "workerinput") and (reason := self._worker.check_stop()):
            collector.session.shouldstop = reason
            pytest.exit(reason, returncode=EXIT_NOTHING_RAN)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        manager, root = session.config.pluginmanager, session.config.rootpath
        if self._supervisor is not None:
            take_over_allure(manager)
        begun = foreign_plugins.may_keep_results(manager, root)
        try:
            result = yield
            names = [name for name in foreign_plugins.may_keep_results(manager, root) if name not in begun]
            if names and self._supervisor is not None and hasattr(session.config, "workerinput"):
                # The controller loads no conftest of a folder.
                self._worker.print_once(foreign_plugins.kept_results_text(names))
            return result
        except pytest.UsageError as error:
            if hasattr(session.config, "workerinput"):
                worker_messages.news_of(session.config)["usage_error"] += map(str, error.args)
            raise

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._seen.append(item)
        self._ids.add(item.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_collection_modifyitems")
    def pytest_refuse_options(self, items: list[pytest.Item]) -> Generator[None, object, object]:
        """Run no case after a usage error. pytest reports the items to xdist even then, and xdist would wait."""
        try:
            return (yield)
        except pytest.UsageError:
            items.clear()
            raise

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skipped[f"{report.nodeid}::"] = skip_reason(report)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self._selected = select_cases(config, items, self._worker.selection)

    @pytest.hookimpl(tryfirst=True)  # before xdist reports to the controller
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        kept = [item for item in session.items if is_case(item)]
        ids = [item.stash[CASE_ID] for item in kept]
        wanted = {*ids, *(self._selected if self._worker.context.shard else ())}
        seen = [item.stash[CASE_ID] for item in self._seen if is_case(item)]
        self._seen.clear()
        if reason := self._worker.check_stop():
            # pytest also calls this hook after an aborted collection, with only some of the cases. xdist must not get
            # them: lists of different lengths would be an error of the collection.
            if hasattr(session.config, "workerinput"):
                pytest.exit(reason, returncode=EXIT_NOTHING_RAN)
            return
        self._worker.note_facts(kept)
        if self._supervisor is not None and not session.testsfailed:
            described = session.config.pluginmanager.get_plugin("harness-described")
            by_itself = described is None or bool(described.collects_itself)
            self._supervisor.seen(self._ids.union(ids), by_itself=by_itself)
        self._ids.clear()
        try:
            deselected = [case for case in seen if case not in wanted]
            self._worker.collected(ids, self._selected, deselected, self._narrowing.unread, self._skipped)
        except ResumeError:
            return  # the controller reports the reason

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if self._supervisor is None or not is_case(item):
            return None
        following = nextitem if nextitem is not None and is_case(nextitem) else None
        with self._controller.handling_signals():
            self._supervisor.run(item, following)
        if self._worker.over:
            item.session.shouldstop = self._worker.over
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._worker.close()
        if hasattr(session.config, "workerinput"):
            options.leave_out_idle_hypothesis(session.config)


_LISTENER = "allure_listener"


def take_over_allure(manager: pytest.PytestPluginManager) -> None:
    """If allure-pytest is active in this process, write its results in its place."""
    if manager.has_plugin(_LISTENER):
        manager.unregister(name=_LISTENER)
        manager.register(AllureResults(), "harness-allure")


class AllureResults:
    """Writes a result of allure-pytest for each outcome that only a supervisor knows, such as a crash or a gate.

    allure-pytest itself writes a result when a test ends, in the executor. In a worker it would write an empty one for
    each test.
    """

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
