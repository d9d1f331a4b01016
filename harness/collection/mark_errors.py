"""Marks of the harness that are invalid or misspelt."""

from __future__ import annotations

import pytest

from harness import fixtures, marks
from harness.collection import scope
from harness.configuration import options
from harness.core.errors import HarnessError
from harness.gating import requirements, types, waivers


def find_mark_errors(item: pytest.Item) -> list[str]:
    """Return a sentence, with the id of the case, for each of its marks that cannot be used."""
    errors = []
    if not scope.is_named_by_user(item.config):  # the user cannot change the marks of other suites
        errors += [f"{item.nodeid}: {error}" for error in marks.misspelt_marks(item)]
    try:
        requirements.requirements_from_marks(marks.marks_of(item, "requires"))
    except HarnessError as error:
        errors.append(f"{item.nodeid}: {error}")
    try:
        types.types_needed((), marks.marks_of(item, "types"))
    except HarnessError as error:
        errors.append(f"{item.nodeid}: {error}")
    try:
        options.case_time_limit(marks.marks_of(item, "timeout"), 1.0, 1.0)
    except HarnessError as error:
        errors.append(f"{item.nodeid}: {error}")
    try:
        for mark in marks.marks_of(item, "leaks"):
            waivers.waiver_from_mark(mark, item.nodeid, "")
        fixtures.kept(item)
    except HarnessError as error:
        errors.append(f"{item.nodeid}: {error}")
    return errors
