"""Cases that break the end of their process, long after the last result is reported."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected
from tests.acceptance.project import SUITES

FILES = sorted(path.name for path in (SUITES / "exits").glob("test_*.py"))


@pytest.mark.ways("name", FILES)
def test_one_among_others(make_project: MakeProject, name: str) -> None:
    """If a process with several cases ends badly, the responsible case is found."""
    project = make_project("exits")
    for path in (project.folder / "suites" / "exits").glob("test_*.py"):
        if path.name != name:
            path.unlink()
    result = project.run("-n0", "--case-timeout=1")
    compare(result, expected(project, "batch"))


def test_several_among_others(make_project: MakeProject) -> None:
    """If several cases break the end of a shared process, each of them is found."""
    project = make_project("exits")
    for name in ("test_atexit_hangs.py", "test_thread_stays.py"):
        (project.folder / "suites" / "exits" / name).unlink()
    result = project.run("-n0")
    compare(result, expected(project, "batch"))
