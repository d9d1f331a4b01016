"""Stand-ins for the test modules, classes and items that a zygote has collected. They import nothing.

The plugin is that of a supervisor, which gets its cases from the run's zygote, and imports no test file. pytest's own
collection stays unchanged: arguments, ``-k``, ``--lf``, conftests. Only test modules are replaced by stand-ins, whose
tests come from the zygote's description.
"""

from __future__ import annotations

import gc
import types
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from harness.collection import foreign_plugins
from harness.collection.description import (
    CollectionDescription,
    DescriptionError,
    MarkRecord,
    NodeRecord,
    sort_by_order,
)
from harness.collection.scope import CaseScope
from harness.core.outcome import EXIT_NOTHING_RAN
from harness.protocol import reports
from harness.scheduling.stop_request import StoppedError


class DescribedMarks:
    """The marks of a description as pytest's objects. Each is made once."""

    def __init__(self, description: CollectionDescription) -> None:
        self._records = description.marks
        self._made: dict[int, pytest.Mark] = {}

    def __getitem__(self, place: int) -> pytest.Mark:
        mark = self._made.get(place)
        if mark is None:
            mark = self._made[place] = _made(self._records[place])
        return mark


def _made(record: MarkRecord) -> pytest.Mark:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pytest.PytestUnknownMarkWarning)  # the zygote's warning is shown instead
        decorator: pytest.MarkDecorator = getattr(pytest.mark, record.name)
    return decorator.with_args(*record.args, **record.kwargs).mark


class DescribedItem(pytest.Item):
    """A test that runs only in executors."""

    def __init__(self, *, record: NodeRecord, marks: DescribedMarks, **more: Any) -> None:
        super().__init__(**more)
        _describe(self, record, marks)
        #: The types of tensors among its parameters, since the parameters are not available here.
        self.parameter_types = record.types
        if record.location is not None:
            self.location = record.location
        if record.attributes:
            #: A stand-in for the test's function, because ``-k`` reads its attributes.
            self.function = types.SimpleNamespace(**dict.fromkeys(record.attributes, True))

    def runtest(self) -> None:
        raise AssertionError(f"{self.nodeid} was collected by another process, and only that process can run it")


class DescribedClass(pytest.Collector):
    """A class of tests."""

    def __init__(self, *, record: NodeRecord, marks: DescribedMarks, **more: Any) -> None:
        super().__init__(**more)
        self.record = record
        self._marks = marks
        _describe(self, record, marks)

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        yield from _children(self, self.record, self._marks)


class DescribedModule(pytest.File):
    """A test file. `record` is None if the zygote has not collected it."""

    def __init__(self, *, record: NodeRecord | None, marks: DescribedMarks, **more: Any) -> None:
        super().__init__(**more)
        self.record = record
        self._marks = marks
        if record is not None:
            _describe(self, record, marks)

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        if self.record is None:
            raise self.CollectError(
                "this file was created or changed after the run had collected its tests: start the run again"
            )
        yield from _children(self, self.record, self._marks)


def described_report(collector: pytest.Collector) -> pytest.CollectReport | None:
    """Return the zygote's report on a collector that failed or skipped itself, otherwise None."""
    if not isinstance(collector, (DescribedModule, DescribedClass)) or collector.record is None:
        return None
    if collector.record.report is None:
        return None
    data = dict(collector.record.report)
    report = collector.config.hook.pytest_report_from_serializable(config=collector.config, data=data)
    assert isinstance(report, pytest.CollectReport)
    report.result = []
    if isinstance(report.longrepr, list):  # JSON turns the tuple of a skip into a list
        report.longrepr = tuple(report.longrepr)
    return report


def _children(
    parent: pytest.Collector, record: NodeRecord, marks: DescribedMarks
) -> Iterator[pytest.Item | pytest.Collector]:
    for child in record.children or ():
        kind = DescribedItem if child.children is None else DescribedClass
        # Pass the id: pytest would not recognise the parameters in the name, and compares ids in parts.
        nodeid = f"{parent.nodeid}::{child.name}"
        yield kind.from_parent(parent, name=child.name, nodeid=nodeid, record=child, marks=marks)


def _describe(node: pytest.Item | pytest.Collector, record: NodeRecord, marks: DescribedMarks) -> None:
    own = [marks[place] for place in record.marks]
    node.own_markers.extend(own)
    node.keywords.update({mark.name: mark for mark in own})
    node.keywords.update(dict.fromkeys(record.keywords, True))
    node.extra_keyword_matches.update(record.extra)


#: The identity of a warning: category, text, file and line.
_Key = tuple[str, str, str, int]


class CollectingWorker(Protocol):
    """The worker in whose process the stand-ins are made."""

    def description(self) -> CollectionDescription:
        """Wait for the zygote's description, and return it. Raises DescriptionError, StoppedError."""
        ...

    def print_once(self, text: str) -> None:
        """Show the user a text that holds for all workers of the run."""
        ...


class DescribedCollection:
    """Makes stand-ins for test modules. If anything needs real items, each process collects for itself instead."""

    def __init__(self, config: pytest.Config, worker: CollectingWorker) -> None:
        self._config = config
        self._worker = worker
        self._description: CollectionDescription | None = None
        self._marks: DescribedMarks | None = None
        self._failure = ""
        self._shown: set[_Key] = set()
        #: Whether garbage collection is off while stand-ins are made.
        self._paused = False

    def pytest_collection(self, session: pytest.Session) -> None:
        """Wait for the zygote before anything is collected. A failure becomes a collection error of the session."""
        manager = self._config.pluginmanager
        if foreign_plugins.plugins_that_need_items(manager, self._config.rootpath):
            return
        try:
            description = self._worker.description()
        except DescriptionError as error:
            self._failure = str(error)
            return
        except StoppedError as error:
            session.shouldstop = str(error)
            pytest.exit(str(error), returncode=EXIT_NOTHING_RAN)
        if description.local:
            self._worker.print_once(foreign_plugins.collects_itself_text(description.local))
            return
        self._description, self._marks = description, DescribedMarks(description)
        # Stand-ins live as long as the process, so each garbage collection would walk them for nothing.
        self._paused = gc.isenabled()
        gc.disable()

    @property
    def collects_itself(self) -> bool:
        """Whether this process has imported the test files, since something needs real items."""
        return self._description is None

    def _keep_nodes(self) -> None:
        """Exclude the stand-ins from later garbage collections, including those at pytest's end."""
        if self._description is not None:
            gc.freeze()
        if self._paused:
            gc.enable()

    @pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_collection")
    def pytest_replay_warnings(self) -> Generator[None, object, object]:  # pytest registers only names with its prefix
        """After the collection, show the zygote's warnings, except those that this process had as well."""
        try:
            result = yield
        finally:
            self._keep_nodes()
        if self._description is not None:
            recorded = [reports.unpack_warning(message) for message in self._description.warnings]
            for warning in [warning for warning in recorded if _key(warning.warning) not in self._shown]:
                values = {"warning_message": warning.warning, "when": warning.when, "nodeid": "", "location": None}
                self._config.hook.pytest_warning_recorded.call_historic(kwargs=values)
            self._description = self._marks = None  # pytest has the nodes, and no longer needs the description
        return result

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        if when == "collect" and self._description is not None:
            # Pack the warning, so that its category and text can be compared with those of the zygote.
            self._shown.add(_key(reports.unpack_warning(reports.pack_warning(warning_message, when)).warning))

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if self._description is None or self._marks is None or not CaseScope.of(self._config).has(module_path):
            return None
        made: DescribedModule = DescribedModule.from_parent(
            parent,
            path=module_path,
            record=self._description.modules.get(str(module_path)),
            marks=self._marks,
            nodeid=CaseScope.of(self._config).id_outside_root(module_path),
        )
        return made

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        if self._failure and isinstance(collector, pytest.Session):
            return pytest.CollectReport(collector.nodeid, "failed", f"harness: {self._failure}", [])
        return described_report(collector)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Apply the order of the zygote's list. pytest orders tests by fixtures, which stand-ins do not have."""
        if self._description is not None:
            items[:] = sort_by_order(items, [item.nodeid for item in items], self._description.order)


def _key(warning: warnings.WarningMessage) -> _Key:
    return warning.category.__name__, str(warning.message), warning.filename, warning.lineno
