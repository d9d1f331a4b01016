"""A pytest session that collects what the run collects and then, instead of running cases, goes on to serve."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest

from harness.checks.state.guard import FixtureWatch, StateGuard
from harness.executor import trace_log as tracelog
from harness.executor.session import CollectedSession, ReportRelay
from harness.protocol.wire import show_surrogates
from harness.rootdir import Root, RootError
from harness.under import Around
from harness.zygote.spec import ZygoteSpec


class CollectorPlugin:
    """Takes the place of pytest's run loop: hands what was collected to `serve`."""

    #: Tells the harness plugin that this process is none that the user or xdist started.
    is_harness_zygote = True

    def __init__(self, root: Root, serve: Callable[[CollectedSession], NoReturn], around: Around | None) -> None:
        """`root` is that of the run; another one is not collected from."""
        #: What is wrong with the root folder or the ini file that pytest found here, or an empty text.
        self.misplaced = ""
        self._root = root
        self._serve = serve
        self._around = around
        self._relay = ReportRelay()
        self._guard = StateGuard()

    def pytest_configure(self, config: pytest.Config) -> None:
        self.misplaced = self._root.difference(Root.of(config))
        if self.misplaced:
            raise pytest.UsageError(self.misplaced)
        config.pluginmanager.register(self._relay)
        config.pluginmanager.register(FixtureWatch(self._guard))
        config.pluginmanager.register(tracelog.TraceLogMuted())
        if self._around is not None:
            config.pluginmanager.register(self._around)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        config = session.config
        if session.testsfailed and not config.option.continue_on_collection_errors:
            return True  # the supervisors collected the same and say so
        if not (config.option.setupshow or config.option.setuponly):
            config.pluginmanager.unregister(name="terminalreporter")
        case_modules = {
            module.__name__ for item in session.items if (module := getattr(item, "module", None)) is not None
        }
        self._serve(
            CollectedSession(
                session=session,
                items={str(show_surrogates(item.nodeid)): item for item in session.items},  # as they arrive
                modules=frozenset(sys.modules),
                case_modules=frozenset(case_modules),
                relay=self._relay,
                guard=self._guard,
            )
        )
        raise AssertionError("who serves does so until the process ends")


def freeze_baseline(collected: CollectedSession) -> None:
    """Take this process as it is, now that it has collected, for what cases are compared with."""
    collected.guard.capture()
    # Frozen objects are not visited by the collector, so their pages stay shared after a fork.
    gc.collect()
    gc.freeze()


def collect(spec: ZygoteSpec, around: Around | None, serve: Callable[[CollectedSession], NoReturn]) -> int:
    """Import and collect as `spec` says, then `serve`. Returns pytest's exit status where there was nothing to serve.

    `sys.argv` becomes that of a pytest with the run's arguments: there are test files that read it when imported.
    Raises RootError where pytest found another root folder or ini file than the run's.
    """
    sys.argv = ["pytest", *spec.args]
    collector = CollectorPlugin(spec.root, serve, around)
    status = pytest.main([*spec.collection_args], plugins=[collector])
    if collector.misplaced:
        raise RootError(collector.misplaced)
    return int(status)


def prepare(spec: ZygoteSpec) -> Around | None:
    """Have what a run imports before it collects; the wrapper that its tests are called in, if any.

    Raises `harness.under.WrapperError`.
    """
    sys.path[:] = spec.sys_path
    around = Around(spec.under) if spec.under is not None else None  # which looks for what is to be imported for it
    for module in spec.preload:
        importlib.import_module(module)
    return around
