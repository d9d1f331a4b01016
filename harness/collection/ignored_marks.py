"""Marks of the harness that are invalid or misspelt, or on tests where it is not active and they have no effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import pytest

from harness import fixtures, marks
from harness.collection import scope
from harness.collection.scope import CaseScope
from harness.configuration import values
from harness.core.errors import HarnessError
from harness.gating import requirements, waivers
from harness.marks import NAMES, declared_by_others

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_OUTPUT = "harness_ignored_marks"


class IgnoredMarksPlugin:
    """Counts the marks during collection. The controller prints them at the end."""

    def __init__(self) -> None:
        self._tests = 0
        self._marks: Mapping[str, int] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        scope, own = CaseScope.of(session.config), _own_marks(session.config)
        marks_by_test = [_marks(item, own) for item in session.items if not scope.has(item.path)]
        self._tests = sum(map(bool, marks_by_test))
        self._marks = Counter(name for names in marks_by_test for name in names)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_OUTPUT] = self._tests, dict(self._marks)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Take the counts of any one worker, since all xdist workers collect the same tests."""
        self._tests, self._marks = getattr(node, "workeroutput", {}).get(_OUTPUT, (self._tests, self._marks))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._tests:
            terminalreporter.line(ignored_marks_warning(self._tests, self._marks))


def ignored_marks_warning(tests: int, marks: Mapping[str, int]) -> str:
    """Return the warning line. `tests`: the number of tests with marks; `marks`: the number of tests with each mark."""
    on = ", ".join(f"{name} on {marks[name]}" for name in NAMES if marks.get(name))
    return (
        f"harness: not active for {tests} tests with its marks, so the marks had no effect: {on}; "
        "to activate it, use -p harness.plugin, or add the folder of these tests to the ini value harness_suites"
    )


def _own_marks(config: pytest.Config) -> frozenset[str]:
    """Return the marks that only the harness has declared."""
    return frozenset(NAMES) - declared_by_others(config.getini("markers"))


def _marks(item: pytest.Item, own: frozenset[str]) -> set[str]:
    """Return the harness's marks that a test has, among `own`.

    A ``requires`` with positional arguments belongs to another plugin: the harness's mark has keywords only.
    """
    marks = (mark for mark in item.iter_markers() if mark.name in own)
    return {mark.name for mark in marks if mark.name != "requires" or (mark.kwargs and not mark.args)}


def find_mark_errors(items: Iterable[pytest.Item]) -> list[str]:
    """Return a sentence, with the id of the case, for each invalid mark of these cases."""
    errors: list[str] = []
    sound: set[tuple[int | str, ...]] = set()  # most parametrized cases of a function have the same marks
    for item in items:
        read = tuple(id(mark) if mark.name in _READ else mark.name for mark in item.iter_markers())
        if read not in sound:
            found = _mark_errors(item)
            errors += found
            if not found:
                sound.add(read)
    return errors


def _mark_errors(item: pytest.Item) -> list[str]:
    foreign = scope.is_named_by_user(item.config)
    # The user cannot change the marks of other suites.
    errors = [] if foreign else [f"{item.nodeid}: {error}" for error in marks.misspelt_marks(item)]
    for name, check in _CHECKS:
        try:
            check(item)
        except HarnessError as error:
            advice = f"; if it is a mark of your own, declare {name!r} in pytest's ini value 'markers'"
            errors.append(f"{item.nodeid}: {error}{advice if foreign else ''}")
    return errors


def _check_leaks(item: pytest.Item) -> None:
    for mark in marks.marks_of(item, "leaks"):
        waivers.waiver_from_mark(mark, item.nodeid, "")


#: Functions that read a mark, and raise HarnessError if it is invalid.
_CHECKS: tuple[tuple[str, Callable[[pytest.Item], object]], ...] = (
    ("requires", lambda item: requirements.requirements_from_marks(marks.marks_of(item, "requires"))),
    ("types", lambda item: requirements.types_needed((), marks.marks_of(item, "types"))),
    ("timeout", lambda item: values.case_time_limit(marks.marks_of(item, "timeout"), 1.0, 1.0)),
    ("leaks", _check_leaks),
    ("keeps", fixtures.kept),
    ("races", marks.reason_for_races),
)
_READ = frozenset(name for name, _ in _CHECKS)
