"""A pytest session that collects the cases of the run, and then calls `serve` instead of running them."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Sequence
from typing import NoReturn

import pytest

from harness import _compat
from harness.checks.state.essentials import DUMP_LATER
from harness.checks.state.guard import FixtureWatch, StateGuard
from harness.collection.cases import NarrowCollection
from harness.collection.recorder import CollectionRecorder
from harness.configuration import values
from harness.configuration.rootdir import RootError, RootFolder
from harness.configuration.under import CallWrapperPlugin
from harness.core.errors import HarnessError
from harness.core.garbage import no_automatic_collection
from harness.executor.around_case import PhaseClock, TraceLogMuted
from harness.executor.session import EXIT_HANDLERS, CollectedSession, ReportRelay, marked_pid, variables_with_pid
from harness.protocol.wire import escape_surrogates
from harness.zygote.spec import ZygoteSpec


class PreloadError(HarnessError):
    """A module to import for all executors cannot be imported."""


class CollectorPlugin:
    """Replaces pytest's run loop: passes the collected session to `serve`."""

    #: Tells the harness plugin that neither the user nor xdist started this process.
    is_harness_zygote = True

    def __init__(
        self,
        spec: ZygoteSpec,
        serve: Callable[[CollectedSession], NoReturn],
        around: CallWrapperPlugin | None,
        recorder: CollectionRecorder | None,
    ) -> None:
        """If pytest finds another root folder than that of `spec`, nothing is collected.

        `recorder` describes the collection to supervisors; None in a cold executor.
        """
        #: Why nothing is served: pytest found another root folder or ini file, or a module cannot be imported.
        self.error: RootError | PreloadError | None = None
        self._spec = spec
        self._serve = serve
        self._around = around
        self._recorder = recorder
        self._items: dict[str, pytest.Item] = {}
        self._pid_mark = contextlib.ExitStack()
        if recorder is not None:
            self._pid_mark.enter_context(marked_pid())
        self._last_finalizer = next(reversed(_compat.finalizers()), None)
        self._relay = ReportRelay()
        self._clock = PhaseClock()
        self._guard = StateGuard()
        self._watch = FixtureWatch(self._guard)

    @pytest.hookimpl(tryfirst=True)  # before pytest's plugin for temporary folders reads the option
    def pytest_configure(self, config: pytest.Config) -> None:
        # pytest empties this folder, so executors would delete each other's files. Each executor has its own folder
        # (TMPDIR).
        config.option.basetemp = None
        if hasattr(config.option, "clean_alluredir"):  # allure-pytest: the first process does this
            config.option.clean_alluredir = False
        if misplaced := self._spec.root.difference(RootFolder.of(config)):
            self.error = RootError(misplaced)
            raise pytest.UsageError(misplaced)
        config.pluginmanager.register(self._relay)
        config.pluginmanager.register(self._clock)
        config.pluginmanager.register(self._watch)
        config.pluginmanager.register(TraceLogMuted())
        config.pluginmanager.register(NarrowCollection(self._spec.reach))
        if self._around is not None:
            config.pluginmanager.register(self._around)
        if self._recorder is not None:
            config.pluginmanager.register(self._recorder)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._items[item.nodeid] = item

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        with no_automatic_collection():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        config = session.config
        if self._recorder is not None:
            self._recorder.write()
        if session.testsfailed and not config.option.continue_on_collection_errors:
            return True  # the supervisors report the errors
        if wanted := _wanted(config.getini("harness_preload_many"), session):
            try:
                with _imports(self._spec):
                    _import("harness_preload_many", wanted)
            except PreloadError as error:
                self.error = error
                return True
        self._pid_mark.close()
        if not (config.getoption("setupshow", False) or config.getoption("setuponly", False)):
            config.pluginmanager.unregister(name="terminalreporter")
        case_modules = {
            module.__name__ for item in session.items if (module := getattr(item, "module", None)) is not None
        }
        # A plugin may deselect tests here but keep them in a supervisor, where it sees other items or another cache.
        items = self._items | {item.nodeid: item for item in session.items}
        self._serve(
            CollectedSession(
                session=session,
                items={str(escape_surrogates(name)): item for name, item in items.items()},  # ids as on the wire
                modules=frozenset(sys.modules),
                case_modules=frozenset(case_modules),
                last_finalizer=self._last_finalizer,
                relay=self._relay,
                clock=self._clock,
                guard=self._guard,
                watch=self._watch,
                pids=variables_with_pid(list(sys.modules.values()), os.getpid()),
            )
        )
        raise AssertionError("serve returned, but must not")


def freeze_baseline(collected: CollectedSession) -> None:
    """Make the current state of this process, after the collection, the baseline for the checks of cases."""
    collected.guard.capture()
    gc.collect()  # the first collection since the imports began
    # The garbage collector does not visit frozen objects, so their pages stay shared after a fork.
    gc.freeze()


def collect_cases(
    spec: ZygoteSpec,
    around: CallWrapperPlugin | None,
    serve: Callable[[CollectedSession], NoReturn],
    recorder: CollectionRecorder | None = None,
) -> int:
    """Import and collect as specified by `spec`, then `serve`.

    Return pytest's exit status if there is nothing to serve.

    `sys.argv` is set to the command line of the run, because some test files read it when imported. `recorder` writes
    the description of the collection before `serve` is called.
    Raise RootError if pytest found another root folder or ini file than the run's, PreloadError.
    """
    sys.argv = ["pytest", *spec.args]
    # pytest's capturing, which is off here, does this before it imports test files, and some test files depend on it.
    tempfile.gettempdir()
    collector = CollectorPlugin(spec, serve, around, recorder)
    status = pytest.main([*spec.collection_args], plugins=[collector])
    if collector.error is not None:
        raise collector.error
    return int(status)


def import_preload(spec: ZygoteSpec) -> CallWrapperPlugin | None:
    """Import the modules for all executors before the collection. Return the wrapper around test calls, if any.

    Raise `harness.configuration.under.WrapperError`, PreloadError.
    """
    sys.path[:] = spec.sys_path
    DUMP_LATER.install()
    EXIT_HANDLERS.install()
    with _imports(spec):
        around = (
            CallWrapperPlugin(spec.under) if spec.under is not None else None
        )  # first: it checks that torch has what the wrapper needs
        _import("harness_preload", spec.preload)
    return around


def _wanted(entries: Sequence[str], session: pytest.Session) -> list[str]:
    """Return the modules of entries ``MODULE`` and, if many cases of the folder were collected, ``FOLDER:MODULE``."""
    modules = []
    for entry in entries:
        folder, _, module = entry.rpartition(":")
        begin = f"{folder.rstrip('/')}/" if folder else ""
        if sum(item.nodeid.startswith(begin) for item in session.items) >= values.MANY_CASES:
            modules.append(module)
    return modules


def _import(ini: str, names: Sequence[str]) -> None:
    """Import the modules that the value `ini` names. Raise PreloadError; the traceback is printed."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever it raises, the run ends with its name
            traceback.print_exc()
            raise PreloadError(f"{ini} names {name!r}, which cannot be imported: {error!r}") from None


@contextlib.contextmanager
def _imports(spec: ZygoteSpec) -> Generator[None]:
    """Import modules for all executors in this context.

    With `skip_early_exit_handlers`, the finalizers of these modules do not run at the exit of executors. Those of
    torch's operator libraries take 20 ms in every process, without benefit.
    """
    finalizers_before = frozenset(_compat.finalizers())
    with no_automatic_collection():
        yield
    if spec.skip_early_exit_handlers:
        for finalizer in frozenset(_compat.finalizers()) - finalizers_before:
            finalizer.atexit = False
