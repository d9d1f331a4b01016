"""Marks of the harness on tests that run without it: one line at the end, or their conditions would go unnoticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from harness.fixtures import MARKERS
from harness.scope import Scope

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_MARKS = tuple(line.partition("(")[0] for line in MARKERS)
_OUTPUT = "harness_ignored_marks"


class IgnoredMarks:
    """Counts the marks where tests are collected, and tells of them in the process that the user started."""

    def __init__(self) -> None:
        self._tests = 0
        self._marks: Mapping[str, int] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        scope, ours = Scope.of(session.config), _ours(session.config)
        found = [_marks(item, ours) for item in session.items if not scope.has(item.path)]
        self._tests = sum(map(bool, found))
        self._marks = Counter(name for names in found for name in names)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_OUTPUT] = self._tests, dict(self._marks)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """All xdist workers have collected the same."""
        self._tests, self._marks = getattr(node, "workeroutput", {}).get(_OUTPUT, (self._tests, self._marks))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._tests:
            terminalreporter.line(told(self._tests, self._marks))


def told(tests: int, marks: Mapping[str, int]) -> str:
    """The line about so many `tests`, given on how many of them each mark is."""
    on = ", ".join(f"{name} on {marks[name]}" for name in _MARKS if marks.get(name))
    return (
        f"harness: not active for {tests} tests with its marks, which had no effect: {on}; "
        "to activate it, give -p harness.plugin, or name the folder of these tests in the ini value harness_suites"
    )


def _ours(config: pytest.Config) -> frozenset[str]:
    """The marks that nobody but the harness has declared."""
    others = {
        line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers") if line not in MARKERS
    }
    return frozenset(_MARKS) - others


def _marks(item: pytest.Item, ours: frozenset[str]) -> set[str]:
    """Those of `ours` that a test has. A ``requires`` with a positional argument is none: our conditions have names."""
    marks = (mark for mark in item.iter_markers() if mark.name in ours)
    return {mark.name for mark in marks if mark.name != "requires" or (mark.kwargs and not mark.args)}
