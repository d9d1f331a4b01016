"""Hooks of the controller, the process that the user started."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import shlex
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness import _compat, marks
from harness.backends.table import labels
from harness.collection import foreign_plugins
from harness.collection.cases import collection_error, internal_error
from harness.configuration import command_line, options
from harness.configuration.context import RunContext
from harness.controller.plan import Plan
from harness.controller.run import Run
from harness.core.outcome import EXIT_INTERNAL
from harness.devices.device import Inventory
from harness.journal.identity import version_of
from harness.journal.ledger import Ledger
from harness.progress.signs_of_life import SignsOfLife
from harness.protocol import reports, worker_messages
from harness.reporting import repetitions, terminal
from harness.scheduling.workers import HandedOut

if TYPE_CHECKING:
    from execnet import XSpec
    from xdist.scheduler.protocol import Scheduling
    from xdist.workermanage import WorkerController


class OwnController:
    """The controller of the worker in this process."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self._config = config
        self._run = run

    def report_late(self, report: pytest.TestReport) -> None:
        """Give pytest another report on a case that was already reported."""
        self._config.hook.pytest_runtest_logreport(report=report)

    def report_write_failure(self, text: str) -> None:
        """Make the run red because a file could not be written."""
        self._run.record.fail(text)

    def handling_signals(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this process handles the signals that end a run."""
        return self._run.signals.handled()


def _has_all_red(ledger: Ledger, reporter: pytest.TerminalReporter) -> bool:
    """Return whether the harness's summary names all that failed. A test that is no case is in pytest's alone."""
    red = {verdict.case for verdict in ledger.red}
    reports = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
    cases = all(isinstance(report, pytest.CollectReport) or report.nodeid in red for report in reports)
    return cases and len(red) <= terminal.SHOWN


class ControllerHooks:
    """Hooks of the controller."""

    def __init__(self, run: Run, config: pytest.Config) -> None:
        self._run = run
        self._config = config
        here = run.inline and config.getoption("dist", "no") == "no"
        self._signs = SignsOfLife(run.plan.settings["progress"], run.snapshot, here=here)
        #: Plugins and conftests that were named in an output line.
        self._named: list[str] = []
        #: The arguments that the first worker with a usage error could not collect.
        self._usage_error: tuple[str, ...] = ()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._run.session = session
        self._run.signals.print_line = self._print_line
        self._signs.start(session.config)

    def _print_line(self, text: str) -> None:
        """Print a line about the run's end in a signal handler, which may have interrupted a print."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            with contextlib.suppress(RuntimeError, OSError), self._signs.printing():
                reporter.ensure_newline()
                line = f"harness: {text}. To resume: repeat the command with {self._resume}\n"
                reporter.write(line, flush=True)  # a pipe or a file gets it now, too

    @property
    def _resume(self) -> str:
        return f"--resume {shlex.quote(str(self._run.run_dir))}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None]:
        for name, value in reports.xml_attributes_of(report).items():
            for node_reporter in self._of_plugins("node_reporter"):
                node_reporter(report).add_attribute(name, value)
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
            arguments = self._run.context.root_args
            config.invocation_params = dataclasses.replace(config.invocation_params, args=arguments)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        node.workerinput[worker_messages.CONTEXT_KEY] = self._run.context.to_json()
        node.workerinput[worker_messages.DEVICE_KEY] = self._run.device_of(node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object | None) -> None:
        self._run.worker_down(node.gateway.id, error)
        news = worker_messages.news_of(node)
        if news["write_failure"]:
            self._run.record.fail(news["write_failure"])
        if not self._usage_error and news["usage_error"]:
            self._usage_error = tuple(news["usage_error"])
            self._note_usage_error(self._usage_error)
        if self._run.session is not None:
            self._run.session.testsfailed += news["failed"]
        for data in news["late"]:
            report = node.config.hook.pytest_report_from_serializable(config=node.config, data=data)
            report.node = node  # as xdist does, for plugins that read the worker from a report
            node.config.hook.pytest_runtest_logreport(report=report)

    def pytest_report_header(self) -> list[str]:
        lines = header(self._run.context, self._run.plan, self._run.inventory, self._run.aside)
        reasons = self._run.local_collection
        reasons = reasons or foreign_plugins.plugins_that_need_items(self._config.pluginmanager, self._config.rootpath)
        lines += [f"harness: {line}" for line in (*self._run.selected_lines, *self._run.notes)]
        if others := command_line.format_foreign_flags(self._run.context.taken):
            lines.append(f"harness: {others}")
        if others := marks.format_marks_of_project(marks.marks_of_project(self._config)):
            lines.append(f"harness: {others}")
        lines += self._kept_results()
        return [*lines, *([f"harness: {foreign_plugins.collects_itself_text(reasons)}"] if reasons else [])]

    def pytest_report_collectionfinish(self) -> list[str]:
        """Also name the conftests of folders."""
        return self._kept_results()

    def _kept_results(self) -> list[str]:
        """Return a line that names plugins and conftests that may keep results of tests in executors, each once."""
        if self._run.context.isolation == "none":
            return []
        names = foreign_plugins.may_keep_results(self._config.pluginmanager, self._config.rootpath)
        new = [name for name in names if name not in self._named]
        self._named += new
        return [f"harness: {foreign_plugins.kept_results_text(new)}"] if new else []

    @pytest.hookimpl(wrapper=True, specname="pytest_sessionstart")
    def pytest_hold_signals(self) -> Generator[None]:
        """Hold signals while xdist's workers start, since a new worker cannot yet leave signals to the controller."""
        with self._run.signals.held():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        self._run.signals.begin()
        try:
            return (yield)
        except pytest.UsageError as error:
            self._note_usage_error(error.args)
            raise

    def _note_usage_error(self, texts: Sequence[object]) -> None:
        self._run.record.note_problem("collection_error", "\n".join(map(str, texts)))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._accept()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        self._accept()

    def _accept(self) -> None:
        """Begin a resumed run, unless the collection has failed. pytest then reports the failure, and no case runs."""
        if not self._run.has_failed():
            self._run.record.accept()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record what could not be collected. xdist gives each failure of its workers once, and no other report."""
        if report.failed:
            self._run.record.note_problem("collection_error", collection_error(report))

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        self._run.record.note_problem("session", internal_error(str(excrepr)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """If the workers could not collect the arguments, end as pytest does without workers."""
        try:
            return (yield)
        finally:
            if self._usage_error:  # without workers, xdist may raise an error of its own
                raise pytest.UsageError(*self._usage_error)

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config) -> Scheduling | None:
        """Schedule the longest cases first, unless the user chose an order or a way to distribute cases."""
        if self._run.queue is not None:
            from harness.scheduling.xdist_scheduling import PullScheduling  # it imports xdist

            return PullScheduling(config, self._run.queue, self._run, HandedOut(Path(self._run.context.temp_dir)))
        wanted = config.known_args_namespace
        chosen = wanted.dist != "no" or wanted.maxschedchunk is not None
        if chosen or config.getoption("dist") != "load" or self._run.plan.policy.shuffle:
            return None
        from harness.scheduling.xdist_scheduling import LongestFirstScheduling  # it imports xdist

        handed_out = HandedOut(Path(self._run.context.temp_dir))
        return LongestFirstScheduling(config, self._run, handed_out, devices=len(self._run.devices))

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        self._run.signals.end()

    @pytest.hookimpl(tryfirst=True, specname="pytest_sessionfinish")
    def pytest_begin_to_finish(self) -> None:
        """Run before xdist ends its workers, so that a worker that still runs a case can record its outcome."""
        self._run.signals.end()
        adding = (
            self._of_plugins("add_global_property")
            if (not self._run.inline or self._config.getoption("dist", "no") != "no")
            else []
        )
        for name, value in self._run.record.session_properties() if adding else ():
            for add_property in adding:
                add_property(name, value)

    def _of_plugins(self, method: str) -> list[Callable[..., Any]]:
        """Return the method of each plugin that has it. This is the only way to reach pytest's JUnit report."""
        attributes = (getattr(plugin, method, None) for plugin in self._config.pluginmanager.get_plugins())
        return [attribute for attribute in attributes if callable(attribute)]

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None]:
        """Report the run after xdist has ended the workers or failed to, and before pytest prints its summary."""
        status = int(exitstatus)
        message: str | None = None
        try:
            yield
        except pytest.exit.Exception as error:
            message = error.msg
            status = status if error.returncode is None else int(error.returncode)
        except Exception as error:  # noqa: BLE001 - without a thread or a descriptor xdist cannot end its workers
            text = f"the session could not be ended in order: {error!r}\n{traceback.format_exc()}"
            self._run.record.add_finding("session", text)
            status = EXIT_INTERNAL
        self._signs.stop()
        if status == int(exitstatus):  # a plugin or a conftest may have changed the status
            status = int(session.exitstatus)
        session.exitstatus = self._run.report(status)
        options.leave_out_idle_hypothesis(self._config)
        if message is not None or int(exitstatus) == EXIT_INTERNAL:  # pytest shows no summary then
            self._show_summary()
        if message is not None:  # pytest takes the exit status from the exception
            raise pytest.exit.Exception(message, int(session.exitstatus)) from None
        if self._run.context.isolation != "none":
            # pytest collects garbage twice more before it ends. Reports and nodes live until then, so exclude them.
            gc.collect()
            gc.freeze()

    @property
    def _asked_for_short_summary(self) -> bool:
        """Whether the user named what pytest's short summary shows. By default it repeats the red cases above it."""
        words = map(str, self._config.invocation_params.args)
        return any(word.startswith("-r") for word in words) or self._config.getoption("reportchars") != "fE"

    def _show_summary(self) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            self.pytest_terminal_summary(reporter)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._run.record.failure:
            terminalreporter.section("harness", red=True)
            terminalreporter.line(self._run.record.failure_text)
        elif self._run.record.ledger is not None:
            terminalreporter.section("harness")
            for remark in (*self._run.durations.remarks, *self._run.record.remarks):
                terminalreporter.line(remark)
            blocks = repetitions.can_encode_blocks(sys.stdout.encoding)
            ledger, run_dir = self._run.record.ledger, self._run.run_dir
            for line in terminal.terminal_summary(ledger, run_dir, blocks=blocks, after_pytest=True):
                terminalreporter.line(line)
            if not self._asked_for_short_summary and _has_all_red(ledger, terminalreporter):
                _compat.leave_out_of_short_summary(terminalreporter, "fE")

    @pytest.hookimpl(trylast=True, specname="pytest_terminal_summary")
    def pytest_count_findings(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Run after other plugins, which take everything that pytest counts for a report."""
        if self._run.record.ledger is not None and (findings := self._run.record.ledger.findings):
            _compat.add_to_last_line(terminalreporter, terminal.last_line_word(len(findings)), findings)

    def pytest_unconfigure(self) -> None:
        self._signs.close()
        self._run.close()


def header(context: RunContext, plan: Plan, inventory: Inventory, aside: str | None) -> list[str]:
    """Return the header lines: devices, driver, isolation, seed, run directory, and the rules of the run."""
    driver = inventory.driver or f"none ({inventory.nvml_error})"
    isolation = f"none (for {aside})" if aside else context.isolation
    lines = [
        f"harness: devices {_named(inventory)}; driver {driver}; torch {version_of('torch')}",
        f"harness: isolation {isolation}; seed {context.seed}; results in {context.run_dir}",
    ]
    rules = _rules(plan, aside is not None or context.isolation == "none")
    lines += [f"harness: injected {'; '.join(context.inject)}"] if context.inject else []
    if context.under:
        lines.append(f"harness: each test is called under {context.under}")
    return [*lines, *([f"harness: {'; '.join(rules)}"] if rules else []), *(f"harness: {n}" for n in inventory.notes)]


def _named(inventory: Inventory) -> str:
    """Return a text for the devices of the run. Software devices are marked as such."""
    devices = inventory.accelerators
    if label := labels([device.uuid for device in devices]):
        plain = "" if "no GPU" in label else ", no GPU"
        return f"{label}{plain}: {', '.join(device.uuid for device in devices)}"
    return ", ".join(f"{device.name} ({device.uuid})" for device in devices) if devices else "CPU"


def _rules(plan: Plan, inline: bool) -> list[str]:
    """Return lines for the rules of the run, and for its differences from a run that runs each case once."""
    policy, settings = plan.policy, plan.settings
    parts = [f"{name} {settings[name]}" for name in ("profile", "hardware") if settings[name]]
    parts += [f"waivers {', '.join(settings['waivers'])} ({len(policy.waivers)})"] if settings["waivers"] else []
    parts += [f"must pass {', '.join(must_pass.name for must_pass in plan.lists)}"] if plan.lists else []
    parts += [f"shard {settings['shard']}"] if settings["shard"] else []
    parts += ["shuffled by the seed"] if policy.shuffle else []
    beside = [f"verify {policy.verify}"] if policy.verify else []
    beside += [f"repeat {policy.repeat}"] if policy.repeat > 1 else []
    beside += [f"retries {policy.retries}"] if policy.retries else []
    beside += ["waivers"] if policy.waivers and inline else []
    beside += ["forbidden skips"] if inline and not policy.skips else []
    return parts + ([f"ignored without isolation: {', '.join(beside)}"] if inline and beside else beside)
