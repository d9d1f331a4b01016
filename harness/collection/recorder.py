"""Records the collection in the zygote, and writes its description for the supervisors of the run."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.collection import description, foreign_plugins
from harness.collection.description import CollectionDescription, MarkRecord, NodeRecord
from harness.collection.scope import CaseScope
from harness.core.caseid import digest_of_ids
from harness.gating import requirements
from harness.protocol import reports


class CollectionRecorder:
    """A plugin of the zygote's pytest session.

    The plugin keeps the nodes, and describes them once all plugins have seen them. It records only test modules,
    because supervisors have stand-ins for these. Each process collects doctests and other files itself.
    """

    def __init__(self, path: Path) -> None:
        """`path` is the file to write."""
        #: Whether nothing has been written yet.
        self.unwritten = True
        self._path = path
        self._session: pytest.Session | None = None
        #: The nodes to record: test modules, and the classes below them once they are collected.
        self._recorded: set[pytest.Collector] = set()
        self._modules: dict[str, pytest.Collector] = {}
        # By id, since pytest may make the nodes of a file again for another argument, and then collect other classes.
        self._collected: dict[str, tuple[pytest.Collector, pytest.CollectReport]] = {}
        self._items: dict[str, pytest.Item] = {}
        self._seen: dict[str, pytest.Item] = {}
        self._warnings: list[description.PlainDict] = []
        self._local: list[str] = []
        self._odd_id = ""
        self._importing = ""

    @property
    def errors(self) -> int:
        """The number of test modules and classes that could not be collected. Supervisors show their errors."""
        return sum(report.failed for _, report in self._collected.values())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path) -> Generator[None, pytest.Module, pytest.Module]:
        module = yield
        if CaseScope.of(module.config).has(module_path):
            self._recorded.add(module)
        return module

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        if collector in self._recorded:
            self._modules[str(collector.path)] = collector
        elif collector.parent in self._recorded:
            self._recorded.add(collector)
        else:
            return (yield)
        self._importing = collector.nodeid
        description.note_collecting_file(self._path, collector.nodeid)
        try:
            report = yield
        finally:
            self._importing = ""
        self._collected[collector.nodeid] = collector, report
        return report

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._seen[item.nodeid] = item

    def pytest_plugin_registered(self, plugin: object) -> None:
        # By `pytest_plugins` in a test file, which supervisors do not import. Plugins of pytest itself, such as that of
        # --lf, also register others while a file is collected.
        if self._importing and not foreign_plugins.is_known(plugin):
            name = getattr(plugin, "__name__", type(plugin).__name__)
            self._local.append(f"{self._importing} loads the plugin {name}")

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        if when == "collect":
            self._warnings.append(reports.pack_warning(warning_message, when))

    def write(self, ended: str = "") -> None:
        """Write the description. `ended`: how pytest ended, if it ended before its run loop. Raise WriteError."""
        if self._session is None:
            return
        config = self._session.config
        order = restore_deselected([item.nodeid for item in self._session.items], [*self._seen])
        self._items = self._seen | {item.nodeid: item for item in self._session.items}
        set_locations(self._items.values())
        marks = _Marks()
        collected = {path: module for path, module in self._modules.items() if module.nodeid in self._collected}
        modules = {path: self._node(module, marks) for path, module in collected.items()}
        odd = [f"the id of {self._odd_id!r} does not follow from its name"] if self._odd_id else []
        collected_description = CollectionDescription(
            hash=digest_of_ids(order),
            order=tuple(order),
            modules=modules,
            marks=tuple(marks.records),
            warnings=tuple(self._warnings),
            local=(*foreign_plugins.plugins_that_need_items(config.pluginmanager, config.rootpath), *self._local, *odd),
            ended=ended,
        )
        description.write_description(self._path, collected_description)
        self.unwritten = False

    def _child(self, parent: pytest.Collector, node: pytest.Item | pytest.Collector, marks: _Marks) -> NodeRecord:
        if node.nodeid != f"{parent.nodeid}::{node.name}":
            self._odd_id = self._odd_id or node.nodeid
        return self._node(node, marks)

    def _node(self, node: pytest.Item | pytest.Collector, marks: _Marks) -> NodeRecord:
        more: dict[str, Any] = {}
        if isinstance(node, pytest.Item):
            node = self._items.get(node.nodeid, node)  # if there are two nodes, the one that all plugins have seen
            names = getattr(getattr(node, "function", None), "__dict__", ())
            more["location"] = node.location
            more["types"] = requirements.parameter_types(node)
            more["attributes"] = tuple(name for name in names if name != "pytestmark" and not name.startswith("_"))
        elif node.nodeid in self._collected:
            node, report = self._collected[node.nodeid]
            more["children"] = ()
            if report.passed:
                more["children"] = tuple(self._child(node, child, marks) for child in report.result)
            else:
                more["report"] = node.config.hook.pytest_report_to_serializable(config=node.config, report=report)
        else:
            more["children"] = ()
        own = {mark.name for mark in node.own_markers} | {node.name}
        inherited = node.parent.keywords if node.parent is not None else ()
        return NodeRecord(
            name=node.name,
            marks=tuple(marks.place(mark) for mark in node.own_markers),
            keywords=tuple(word for word in node.keywords if word not in own and word not in inherited),
            extra=tuple(sorted(node.extra_keyword_matches)),
            **more,
        )


def restore_deselected(order: Sequence[str], collected: Sequence[str]) -> list[str]:
    """Return the `order` with all `collected` ids. An id that it lacks follows the id that was collected before it.

    Therefore a plugin that deselects tests gets the same list here and in a supervisor.
    """
    kept = frozenset(order)
    behind: dict[str | None, list[str]] = {}
    before: str | None = None
    for name in collected:
        if name in kept:
            before = name
        else:
            behind.setdefault(before, []).append(name)
    result = behind.pop(None, [])
    for name in order:
        result += [name, *behind.pop(name, ())]
    return result


def set_locations(items: Iterable[pytest.Item]) -> None:
    """Set the locations of the tests.

    pytest looks up file and line of each test, but tests of one function share them.
    """
    places: dict[int, tuple[object, str, int | None]] = {}
    for item in items:
        if type(item) is not pytest.Function:  # another class may define where its tests are
            continue
        function = item.function
        if id(function) in places:
            _, path, line = places[id(function)]
            item.location = path, line, item.getmodpath()
        else:
            places[id(function)] = function, *item.location[:2]


class _Marks:
    """The different marks of a collection. All tests of a parametrised function share the same marks."""

    def __init__(self) -> None:
        self.records: list[MarkRecord] = []
        self._places: dict[int, int] = {}
        self._kept: list[pytest.Mark] = []  # keeps the marks alive: a new object could have the id of a freed one

    def place(self, mark: pytest.Mark) -> int:
        """Return the position of a mark in `records`."""
        place = self._places.get(id(mark))
        if place is None:
            place = self._places[id(mark)] = len(self.records)
            self._kept.append(mark)
            self.records.append(MarkRecord(mark.name, mark.args, mark.kwargs))
        return place
