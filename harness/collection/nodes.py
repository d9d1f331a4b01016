"""Stand-ins for the test modules, classes and items that a zygote has collected. They import nothing."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.collection.description import CollectionDescription, MarkRecord, NodeRecord
from harness.collection.scope import CaseScope


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


def make_described_module(
    parent: pytest.Collector, path: Path, modules: Mapping[str, NodeRecord], marks: DescribedMarks
) -> DescribedModule:
    """Return the stand-in for the test file at `path`."""
    made: DescribedModule = DescribedModule.from_parent(
        parent,
        path=path,
        record=modules.get(str(path)),
        marks=marks,
        nodeid=CaseScope.of(parent.config).id_outside_root(path),
    )
    return made


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
