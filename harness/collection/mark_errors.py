"""Marks of the harness that are invalid or misspelt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import fixtures, marks
from harness.collection import scope
from harness.configuration import options
from harness.core.errors import HarnessError
from harness.gating import requirements, types, waivers


def find_mark_errors(item: pytest.Item) -> list[str]:
    """Return a sentence, with the id of the case, for each invalid mark of the case."""
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
    ("types", lambda item: types.types_needed((), marks.marks_of(item, "types"))),
    ("timeout", lambda item: options.case_time_limit(marks.marks_of(item, "timeout"), 1.0, 1.0)),
    ("leaks", _check_leaks),
    ("keeps", fixtures.kept),
)
