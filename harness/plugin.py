"""The pytest plugin: options, and the hooks of each role.

Roles: the *controller* is the process that the user started. A *worker* runs cases; it is an xdist worker or, without
xdist, the controller. The *zygote* only collects. A session without conformance cases is not changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from harness import _compat, fixtures
from harness.backends import table
from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.collection import scope
from harness.collection.scope import CaseScope, IgnoredMarksPlugin
from harness.configuration import command_line, options
from harness.configuration.command_line import CommandLine
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.protocol import worker_messages


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None]:
    """Prepare devices that must be in a process before torch is, since the first conftest may import torch.

    A process that runs cases needs them. One that collects test files itself must see the devices that the zygote sees:
    a file may have a test for each.
    """
    line = CommandLine(early_config, parser, args)
    _register_backends(early_config)
    backend = _needed_from_start(options.EarlyConfig(early_config))
    inline = _runs_cases_here(options.EarlyConfig(early_config))
    if backend is not None:
        from harness.sim.interposer import front
        from harness.sim.native import provider

        try:
            wanted = provider.provider_of(backend).provide().variables
            if backend.interposed and inline:
                wanted = front.interposer_preload(
                    options.get_option(options.EarlyConfig(early_config), "inject"), wanted
                )
            provider.provider_of(backend).prepare(wanted)
        except HarnessError as error:
            if inline or "torch" not in sys.modules:
                raise pytest.UsageError(f"--device={backend.kind}: {error}") from None
            # A plugin has imported torch. If this process collects other cases than the zygote, that is a finding.
    result = yield
    line.settle()
    _register_backends(early_config)  # again: before, `--backend FILE` could have been an option of a conftest
    return result


def _register_backends(early_config: pytest.Config) -> None:
    """Make the devices of ``--backend`` known. Raise pytest.UsageError."""
    try:
        for name in options.get_option(options.EarlyConfig(early_config), "backend"):
            table.activate(name)
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    return command_line.restart_session(config)


def _needed_from_start(config: options.EarlyConfig) -> Backend | None:
    """Return the device that this process must have from its start on; None for most sessions."""
    try:
        backend = BACKENDS.get(options.get_option(config, "device"))
    except pytest.UsageError:
        return None  # an invalid option is reported later, if the session has cases
    return backend if backend is not None and backend.from_start and not _runs_nothing(config) else None


def _runs_cases_here(config: options.EarlyConfig) -> bool:
    try:
        return options.get_option(config, "isolation") == "none" or bool(options.isolation_off_flag(config))
    except pytest.UsageError:
        return False


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Handle ``-n auto``.

    One worker per GPU or software device, else by cores and memory. xdist's variable has priority.
    """
    if not CaseScope.of(config).any or os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    from harness.controller import plan
    from harness.scheduling import workers

    inventory = plan.inventory(config)
    devices = inventory.separate if inventory.accelerators else ()
    slots = plan.slots(config)
    software = sum(device.backend.software for device in devices)
    cores, memory = workers.usable_cores(), workers.available_memory()
    return workers.worker_count(len(devices) - software, cores, memory, software=software, slots=slots)


def pytest_configure(config: pytest.Config) -> None:
    concerned = bool(CaseScope.of(config).any or config.getini("harness_suites"))
    if concerned:  # an installed harness that is not active must not change a session
        fixtures.provide(config, foreign=CaseScope.of(config).all)
    if _in_zygote(config):
        return
    if _runs_nothing(config):
        if CaseScope.of(config).any and config.getoption("collectonly", False):
            from harness.controller import rules
            from harness.controller.rules import ListingHooks

            rules.write_if_wanted(config)
            config.pluginmanager.register(ListingHooks(config), "harness-listing")
        return
    if concerned and not CaseScope.of(config).all:
        config.pluginmanager.register(IgnoredMarksPlugin(), "harness-ignored-marks")
    if not CaseScope.of(config).any:
        return
    if hasattr(config, "workerinput"):
        _configure_xdist_worker(config)
    else:
        _configure_controller(config)


def _configure_xdist_worker(config: pytest.Config) -> None:
    from harness.configuration.context import RunContext
    from harness.configuration.rootdir import RootFolder
    from harness.controller import machine, stop_signals
    from harness.supervisor import hooks

    given: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
    context = RunContext.from_json(given[worker_messages.CONTEXT_KEY])
    if context.isolation != "none":
        options.disable_unused_snapshot_checks(config)
        stop_signals.leave_to_controller()
    stop_signals.release()  # a signal that came before, and is not ignored, is handled now
    if config.invocation_params.args == context.root_args and (wrong := context.root.difference(RootFolder.of(config))):
        config.pluginmanager.register(hooks.MisplacedHooks(wrong), "harness-misplaced")
        return
    name, device = given["workerid"], given[worker_messages.DEVICE_KEY]
    devices = machine.inventory(context.device)
    hooks.start_worker(
        config, context, devices, hooks.DistantController(config), name=name, device=device, workerinput=given
    )


def _configure_controller(config: pytest.Config) -> None:
    """Configure the controller. Without xdist, it is its own worker."""
    from harness.controller import hooks, plan
    from harness.controller.run import Run
    from harness.protocol import compact_reports
    from harness.scheduling.remote_queue import RemoteQueue
    from harness.supervisor.hooks import start_worker

    queue = RemoteQueue.of_this_process()
    run = Run(config, plan.inventory(config), plugin_argument=scope.is_named_by_user(config), queue=queue)
    if run.context.echo and run.context.isolation != "none":
        config.option.showcapture = "no"  # it has been shown
    if run.context.isolation != "none":
        run.notes += options.disable_unused_snapshot_checks(config)
    config.pluginmanager.register(hooks.ControllerHooks(run, config), "harness-controller")
    if config.getoption("dist", "no") != "no":
        config.pluginmanager.register(compact_reports.ExpandReportsPlugin(), "harness-compact-reports")
        return
    controller, leased = hooks.OwnController(config, run), run.device_of("main")
    start_worker(config, run.context, run.inventory, controller, name="main", device=leased)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Give test files outside of the root folder ids that are unique."""
    nodeid = CaseScope.of(parent.config).id_outside_root(module_path)
    if nodeid is None:
        return None
    made: pytest.Module = pytest.Module.from_parent(parent, path=module_path, nodeid=nodeid)
    return made


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Give the same ids to files of other kinds, such as doctests."""
    collectors = yield
    nodeid = CaseScope.of(parent.config).id_outside_root(file_path) if collectors else None
    if nodeid is not None:
        for collector in collectors:
            if isinstance(collector, pytest.File):  # a plugin may return a list
                _compat.set_node_id(collector, nodeid)
    return collectors


def pytest_itemcollected(item: pytest.Item) -> None:
    if CaseScope.of(item.config).has(item.path):
        from harness.collection.cases import CASE_ID

        item.stash[CASE_ID] = item.nodeid


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Report invalid marks of a case as a collection error that names file and case."""
    report = yield
    if report.passed and CaseScope.of(collector.config).any:
        from harness.collection.scope import find_mark_errors
        from harness.collection.stand_ins import DescribedItem  # the zygote has checked the real items

        errors = find_mark_errors(
            node for node in report.result if isinstance(node, pytest.Item) and not isinstance(node, DescribedItem)
        )
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
    """Return the letters and words for outcomes that pytest does not know."""
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
    """Return whether this session runs no tests and only prints information."""
    showing = ("collectonly", "help", "version", "markers", "showfixtures", "show_fixtures_per_test", "cacheshow")
    return any(config.getoption(name, False) for name in showing)
