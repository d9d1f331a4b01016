"""The pytest plugin: short hooks that call the modules which do the work.

Roles: the *controller* is the process that the user started. A *worker* runs cases; it is an xdist worker or, without
xdist, the controller. The *zygote* only collects. A session without conformance cases is not changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness import _compat, fixtures
from harness.backends import cuda
from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.collection import scope
from harness.collection.ignored_marks import IgnoredMarks
from harness.collection.scope import Scope
from harness.configuration import command_line, neighbours, options
from harness.configuration.command_line import CommandLine
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_INTERNAL, EXIT_NOTHING_RAN, Outcome

if TYPE_CHECKING:
    from execnet import XSpec
    from xdist.scheduler.protocol import Scheduling
    from xdist.workermanage import WorkerController

    from harness.configuration.under import Around
    from harness.controller.run import Run
    from harness.scheduling.remote_queue import RemoteQueue
    from harness.scheduling.selection import Selection
    from harness.supervisor.worker import Worker

_RUN = pytest.StashKey["Run"]()
_WORKER = pytest.StashKey["Worker"]()
_DEVICE = "harness_device"
_LATE = "harness_late"
_FAILURE = "harness_failure"


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None]:
    """Some devices must be in a process before torch is. If cases run in this one, the first conftest may import it."""
    line = CommandLine(early_config, parser, args)
    backend = _needed_from_start(options.EarlyConfig(early_config))
    if backend is not None:
        from harness.sim.interposer import front
        from harness.sim.native import provider

        try:
            wanted = provider.of(backend).provide().variables
            if backend.faults_variable == cuda.INJECT:
                wanted = front.preload(options.get(options.EarlyConfig(early_config), "inject"), wanted)
            provider.of(backend).prepare(wanted)
        except HarnessError as error:
            raise pytest.UsageError(f"--device={backend.kind}: {error}") from None
    result = yield
    line.settle()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    return command_line.run_again(config)


def _needed_from_start(config: options.EarlyConfig) -> Backend | None:
    """The device that this process must have from its start on, because cases run in it. None for most sessions."""
    try:
        backend = BACKENDS.get(options.get(config, "device"))
        inline = options.get(config, "isolation") == "none" or options.steps_aside(config)
    except pytest.UsageError:
        return None  # an invalid option is reported once it is known whether the session is ours
    return backend if backend is not None and backend.from_start and inline and not _runs_nothing(config) else None


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """``-n auto``: one worker per GPU or software device, else by cores and memory. xdist's variable has priority."""
    if not Scope.of(config).any or os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    from harness.controller import plan
    from harness.scheduling import workers

    devices = plan.inventory(config).accelerators
    slots = plan.slots(config)
    software = sum(device.backend.software for device in devices)
    cores, memory = workers.usable_cores(), workers.available_memory()
    return workers.worker_count(len(devices) - software, cores, memory, software=software, slots=slots)


def pytest_configure(config: pytest.Config) -> None:
    ours = bool(Scope.of(config).any or config.getini("harness_suites"))
    if ours:  # an installed harness that is not active adds nothing to a session
        fixtures.provide(config, foreign=Scope.of(config).all)
    if _in_zygote(config):
        return
    if _runs_nothing(config):
        if Scope.of(config).any and config.getoption("collectonly", False):
            config.pluginmanager.register(ListingHooks(config), "harness-listing")
        return
    if ours and not Scope.of(config).all:
        config.pluginmanager.register(IgnoredMarks(), "harness-ignored-marks")
    if not Scope.of(config).any:
        return
    from harness.configuration.context import RunContext
    from harness.configuration.rootdir import Root
    from harness.controller import machine, stop_signals
    from harness.protocol import compact_reports
    from harness.supervisor.worker import Worker

    heeded: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    if hasattr(config, "workerinput"):
        told = config.workerinput
        context = RunContext.from_json(told[scope.CONTEXT])
        if context.isolation != "none":
            neighbours.settle(config)
            stop_signals.leave_to_controller()
        stop_signals.release()  # a signal that came before, and is not ignored, is handled now
        if config.invocation_params.args == context.told_args and (wrong := context.root.difference(Root.of(config))):
            config.pluginmanager.register(MisplacedHooks(wrong), "harness-misplaced")
            return
        worker = Worker(
            context,
            machine.inventory(context.device),
            name=told["workerid"],
            device=told[_DEVICE],
            workerinput=told,
            late=functools.partial(_send_late, config),
            fail=functools.partial(_send_failure, config),
        )
    else:
        from harness.controller import plan  # a worker needs neither these two nor pydantic, which they import
        from harness.controller.run import Run
        from harness.scheduling.remote_queue import RemoteQueue

        queue = RemoteQueue.of_this_process()
        run = Run(config, plan.inventory(config), plugin_argument=scope.named(config), queue=queue)
        config.stash[_RUN] = run
        if run.context.isolation != "none":
            run.notes += neighbours.settle(config)
        config.pluginmanager.register(ControllerHooks(run, config), "harness-controller")
        heeded = run.signals.heeded
        if config.getoption("dist", "no") != "no":
            config.pluginmanager.register(compact_reports.ExpandingHooks(), "harness-compact-reports")
            return
        leased = run.leases.take("main")
        late = functools.partial(_show_late, config)
        worker = Worker(
            run.context, run.inventory, name="main", device=leased, workerinput=None, late=late, fail=run.fail
        )
    config.stash[_WORKER] = worker
    config.pluginmanager.register(WorkerHooks(worker, heeded), "harness-worker")
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(compact_reports.CompactingHooks(config), "harness-compact-reports")
    if worker.isolated and worker.context.start != "cold":
        from harness.collection.hooks import DescribedCollection

        config.pluginmanager.register(DescribedCollection(config, worker.description, worker.tell), "harness-described")
    if not worker.isolated:
        from harness.executor import trace_log as tracelog

        config.pluginmanager.register(InlineHooks(worker), "harness-inline")
        config.pluginmanager.register(tracelog.TraceLogMuted(), "harness-unheard")
        if worker.context.under is not None:
            config.pluginmanager.register(_around(worker.context.under), "harness-under")


def _around(name: str) -> Around:
    from harness.configuration.under import Around, WrapperError

    try:
        return Around(name)
    except WrapperError as error:
        raise pytest.UsageError(str(error)) from None


def _show_late(config: pytest.Config, report: pytest.TestReport) -> None:
    """Give pytest another report on a case that was already reported."""
    config.hook.pytest_runtest_logreport(report=report)


def _send_late(config: pytest.Config, report: pytest.TestReport) -> None:
    """Add a report to an xdist worker's final output: xdist accepts reports only on the running case."""
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    config.workeroutput.setdefault(_LATE, []).append(data)  # type: ignore[attr-defined]


def _send_failure(config: pytest.Config, what: str) -> None:
    """Add the file that cannot be written to an xdist worker's final output."""
    config.workeroutput[_FAILURE] = what  # type: ignore[attr-defined]


def _choose(config: pytest.Config, items: list[pytest.Item], selection: Selection) -> list[str]:
    """Keep the cases of the run, in its order. Tests that are not cases keep their place.

    Returns the ids of all selected cases, of all shards, in collection order.
    """
    from harness.supervisor.worker import CASE_ID

    cases = [item for item in items if CASE_ID in item.stash]
    ids = [case.stash[CASE_ID] for case in cases]
    chosen = selection.choose(ids)
    kept = [cases[position] for position in chosen.here]
    keep = {id(case) for case in kept}
    dropped = [case for case in cases if id(case) not in keep]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    following = iter(kept)
    left = [item for item in items if CASE_ID not in item.stash or id(item) in keep]
    items[:] = [next(following) if CASE_ID in item.stash else item for item in left]
    return [ids[position] for position in chosen.selected]


class ListingHooks:
    """With ``--collect-only``: keep the cases that a run would select. With ``--seed``, in the order of that run."""

    def __init__(self, config: pytest.Config) -> None:
        from harness.controller import plan
        from harness.scheduling.earlier_run import EarlierRun
        from harness.scheduling.selection import Selection

        made = plan.make(config)
        seed: int | None = made.settings["seed"]
        policy = made.policy if seed is not None else dataclasses.replace(made.policy, shuffle=False)
        earlier = EarlierRun.of(made.settings, config.invocation_params.dir, plan.configs(config))
        only = None if earlier is None else frozenset(earlier.ids)
        self._selection = Selection.of(policy, seed or 0, made.settings["shard"], only)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        _choose(config, items, self._selection)


class MisplacedHooks:
    """For an xdist worker whose root folder or ini file differs from the controller's: the collection fails."""

    def __init__(self, wrong: str) -> None:
        self._wrong = wrong

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        report.outcome, report.longrepr, report.result = "failed", self._wrong, []
        return report


class ControllerHooks:
    """Hooks of the controller."""

    def __init__(self, run: Run, config: pytest.Config) -> None:
        self._run = run
        self._config = config
        from harness.progress.signs_of_life import SignsOfLife

        here = run.inline and config.getoption("dist", "no") == "no"
        self._signs = SignsOfLife(run.plan.settings["progress"], run.snapshot, here=here)
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session
        self._run.signals.say = self._say
        self._signs.start(session.config)

    def _say(self, text: str) -> None:
        """Print a line about the run's end, in a signal's handler: whatever it interrupted may be printing."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            with contextlib.suppress(RuntimeError, OSError), self._signs.printing():
                reporter.ensure_newline()
                reporter.write_line(f"harness: {text}. To go on later: the same command with {self._resume}")

    @property
    def _resume(self) -> str:
        return f"--resume {shlex.quote(str(self._run.run_dir))}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self) -> Generator[None]:
        with self._signs.printing():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self) -> Generator[None]:
        with self._signs.printing():
            return (yield)

    def pytest_enter_pdb(self) -> None:
        self._signs.stop()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[XSpec]) -> None:
        """Give the root folder and the ini file to workers that start in this folder, through xdist's arguments."""
        if all(spec.popen and not spec.chdir for spec in specs):
            told = self._run.context.told_args
            config.invocation_params = dataclasses.replace(config.invocation_params, args=told)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        node.workerinput[scope.CONTEXT] = self._run.context.to_json()
        node.workerinput[_DEVICE] = self._run.leases.take(node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object | None) -> None:
        self._run.worker_down(node.gateway.id, error)
        told = getattr(node, "workeroutput", {})
        if _FAILURE in told:
            self._run.fail(told[_FAILURE])
        for data in told.get(_LATE, ()):
            report = node.config.hook.pytest_report_from_serializable(config=node.config, data=data)
            report.node = node  # as xdist does, for reports that name their worker
            _show_late(node.config, report)

    def pytest_report_header(self) -> list[str]:
        from harness.collection import real_items
        from harness.controller.header import header

        lines = header(self._run.context, self._run.plan, self._run.inventory, self._run.aside)
        reasons = self._run.local_collection
        reasons = reasons or real_items.needed_by(self._config.pluginmanager, self._config.rootpath)
        lines += [f"harness: {line}" for line in (*self._run.selected_lines, *self._run.notes)]
        if others := command_line.unavailable(self._run.context.taken):
            lines.append(f"harness: {others}")
        return [*lines, *([f"harness: {real_items.sentence(reasons)}"] if reasons else [])]

    @pytest.hookimpl(wrapper=True, specname="pytest_sessionstart")
    def pytest_hold_signals(self) -> Generator[None]:
        """Hold signals while xdist's workers start: a new worker cannot leave signals to the controller yet."""
        with self._run.signals.held():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        self._run.signals.begin()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._accept()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        self._accept()

    def _accept(self) -> None:
        """Begin a resumed run, unless the collection has failed: pytest then reports that, and no case runs."""
        if not self._has_failed():
            self._run.accept()

    def _has_failed(self) -> bool:
        failed = self._session is not None and self._session.testsfailed
        return bool(failed) and not self._config.option.continue_on_collection_errors

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config) -> Scheduling | None:
        """The longest cases first, unless the user chose an order or a way to distribute cases."""
        if self._run.queue is not None:
            return self._pulling(config, self._run.queue)
        wanted = config.known_args_namespace
        chosen = wanted.dist != "no" or wanted.maxschedchunk is not None
        if chosen or config.getoption("dist") != "load" or self._run.plan.policy.shuffle:
            return None
        from harness.scheduling.handed_out import HandedOut
        from harness.scheduling.xdist_scheduler import LongestFirstScheduling

        handed_out = HandedOut(Path(self._run.context.temp_dir))
        return LongestFirstScheduling(
            config, self._run.expected, self._run.widths, handed_out, devices=len(self._run.devices)
        )

    def _pulling(self, config: pytest.Config, queue: RemoteQueue) -> Scheduling:
        """In a session of a cluster run: the head gives out the cases."""
        from harness.scheduling.handed_out import HandedOut
        from harness.scheduling.pull_scheduler import PullScheduling

        return PullScheduling(
            config,
            queue,
            HandedOut(Path(self._run.context.temp_dir)),
            describe=self._run.described,
            widths=self._run.widths,
            device_of=self._run.leases.take,
            stop=self._run.signals.ask,
            failed=self._has_failed,
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        self._run.signals.end()

    @pytest.hookimpl(tryfirst=True, specname="pytest_sessionfinish")
    def pytest_begin_to_finish(self) -> None:
        """Runs before xdist ends its workers, so that a worker which still runs a case can record its outcome."""
        self._run.signals.end()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None]:
        """After xdist has ended the workers, also where it could not, and before pytest prints its summary."""
        status = int(exitstatus)
        told: str | None = None
        try:
            yield
        except pytest.exit.Exception as error:
            told = error.msg
            status = status if error.returncode is None else int(error.returncode)
        except Exception as error:  # noqa: BLE001 - without a thread or a descriptor xdist cannot end its workers
            text = f"the session could not be ended in order: {error!r}\n{traceback.format_exc()}"
            self._run.add_finding("session", text)
            status = EXIT_INTERNAL
        self._signs.stop()
        if status == int(exitstatus):  # a plugin or a conftest may have decided otherwise
            status = int(session.exitstatus)
        session.exitstatus = self._run.report(status)
        if told is not None:  # pytest shows no summary then, and takes the exit status from the exception
            self._show_summary()
            raise pytest.exit.Exception(told, int(session.exitstatus)) from None
        if self._run.context.isolation != "none":
            # pytest collects garbage twice more before it ends. Reports and nodes live until then: they are left out.
            gc.collect()
            gc.freeze()

    def _show_summary(self) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            self.pytest_terminal_summary(reporter)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        from harness.reporting import plot, terminal

        if self._run.failure:
            terminalreporter.section("harness", red=True)
            terminalreporter.line(self._run.failure_text)
        elif self._run.ledger is not None:
            terminalreporter.section("harness")
            for remark in (*self._run.durations.remarks, *self._run.remarks):
                terminalreporter.line(remark)
            blocks = plot.fits(sys.stdout.encoding)
            for line in terminal.summary(self._run.ledger, self._run.run_dir, blocks=blocks):
                terminalreporter.line(line)

    @pytest.hookimpl(trylast=True, specname="pytest_terminal_summary")
    def pytest_count_findings(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Behind other plugins, which take all that pytest counts for reports."""
        from harness.reporting import terminal

        if self._run.ledger is not None and (findings := self._run.ledger.findings):
            _compat.add_to_last_line(terminalreporter, terminal.last_line_word(len(findings)), findings)

    def pytest_unconfigure(self) -> None:
        self._signs.close()
        self._run.close()


class WorkerHooks:
    """Hooks of a worker, the process that runs cases."""

    def __init__(self, worker: Worker, heeded: Callable[[], AbstractContextManager[None]]) -> None:
        """`heeded`: the context in which the supervisor runs a case. It handles the signals of this process."""
        self._worker = worker
        self._heeded = heeded
        self._seen: list[pytest.Item] = []
        self._selected: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """An xdist worker that must stop ends its collection. `shouldstop` holds the reason."""
        if hasattr(collector.config, "workerinput") and (reason := self._worker.told_to_stop()):
            collector.session.shouldstop = reason
            pytest.exit(reason, returncode=EXIT_NOTHING_RAN)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._seen.append(item)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self._selected = _choose(config, items, self._worker.selection)

    @pytest.hookimpl(tryfirst=True)  # before xdist tells the controller
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        from harness.scheduling.resumption import ResumeError
        from harness.supervisor.worker import CASE_ID

        kept = [item.stash[CASE_ID] for item in session.items if CASE_ID in item.stash]
        wanted = {*kept, *(self._selected if self._worker.context.shard else ())}
        seen = [item.stash[CASE_ID] for item in self._seen if CASE_ID in item.stash]
        self._seen.clear()
        if self._worker.told_to_stop():
            return  # pytest also calls this hook after an aborted collection, with only some of the cases
        self._worker.note_facts([item for item in session.items if CASE_ID in item.stash])
        try:
            self._worker.collected(kept, self._selected, [case for case in seen if case not in wanted])
        except ResumeError:
            return  # the controller says why

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        from harness.supervisor.worker import CASE_ID

        if CASE_ID not in item.stash:
            return None
        if not self._worker.isolated:
            return None
        following = nextitem if nextitem is not None and CASE_ID in nextitem.stash else None
        with self._heeded():
            self._worker.run(item, following)
        if self._worker.over:
            item.session.shouldstop = self._worker.over
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._worker.close()


class InlineHooks:
    """With isolation `none`: hooks around pytest's own run of a case."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._worker.inline(item):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Gate in the setup phase: pytest must run its protocol, or fixtures of earlier cases are not torn down."""
        objection, why = self._worker.gate(item)
        if objection is not None:
            pytest.fail(objection.text, pytrace=False)
        if why:
            pytest.skip(f"gated: {why}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        from harness.protocol import reports

        report = yield
        objection, why = self._worker.gate(item)
        if why and report.when == "setup":
            reports.mark(report, Outcome.GATED if objection is None else objection.outcome)
        return report


def pytest_itemcollected(item: pytest.Item) -> None:
    """Store the id with which a case was collected: xdist's ``loadgroup`` changes it later, only in workers."""
    if Scope.of(item.config).has(item.path):
        from harness.supervisor.worker import CASE_ID

        item.stash[CASE_ID] = item.nodeid


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Report invalid marks of a case as a collection error that names file and case."""
    report = yield
    if report.passed and Scope.of(collector.config).any:
        from harness.collection.mark_errors import mark_errors
        from harness.collection.nodes import DescribedItem  # the zygote has checked the real items

        items = [
            node for node in report.result if isinstance(node, pytest.Item) and not isinstance(node, DescribedItem)
        ]
        errors = [text for node in items for text in mark_errors(node)]
        if errors:
            report.outcome = "failed"
            report.longrepr = "\n".join(errors)
            report.result = []
    return report


_WORDS = {
    Outcome.GATED: ("gated", "g", {"yellow": True}),
    Outcome.FLAKY: ("flaky", "~", {"yellow": True}),
    Outcome.NOT_RUN: ("not_run", "n", {"red": True}),
}


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, Any] | None:
    """The letters and words for outcomes that pytest does not know."""
    value = getattr(report, "harness_outcome", None)
    replayed = " (replayed)" if getattr(report, "harness_replayed", False) else ""
    if value is None:
        passed = replayed and report.passed and report.when == "call"
        return ("passed", ".", (f"PASSED{replayed}", {"green": True})) if passed else None
    outcome = Outcome(value)
    category, letter, colour = _WORDS.get(outcome, ("failed", outcome.value[0].upper(), {"red": True}))
    return category, letter, (f"{outcome.value.upper()}{replayed}", colour)


def _in_zygote(config: pytest.Config) -> bool:
    return any(getattr(plugin, "is_harness_zygote", False) for plugin in config.pluginmanager.get_plugins())


def _runs_nothing(config: pytest.Config | options.EarlyConfig) -> bool:
    """Whether this session runs no tests and only prints information."""
    showing = ("collectonly", "help", "version", "markers", "showfixtures", "show_fixtures_per_test", "cacheshow")
    return any(config.getoption(name, False) for name in showing)
