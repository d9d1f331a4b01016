"""The process that a case sees, and what remains of it afterwards."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("mode", ["batch", "case"])
def test_inside(make_project: MakeProject, mode: str, workers: str) -> None:
    project = make_project("inside")
    result = project.run(f"--isolation={mode}", f"-n{workers}", env={"WORKERS": workers})
    compare(result, expected(project, mode), alone=mode == "case")
    left = [path for path in project.temp.rglob("*") if path.is_file()]
    assert left == [], "a green run leaves nothing in the folder for temporary files"
    assert not list(project.temp.glob("harness-*"))


def test_warnings_are_shown(make_project: MakeProject) -> None:
    """A warning of a case is in pytest's summary, as without isolation."""
    project = make_project()
    project.write(
        "suites/warn/test_warn.py",
        "import warnings\n\ndef test_warns():\n    warnings.warn('mind the gap')\n",
    )
    for spread in ("-n0", "-n2"):
        result = project.run(spread)
        assert result.status == 0
        assert "mind the gap" in result.terminal
        assert result.counts["warnings"] == 1


@pytest.mark.parametrize("mode", ["batch", "none"])
def test_pytest_does_not_listen_to_torchs_trace(make_project: MakeProject, mode: str) -> None:
    """torch writes its trace if its logger has a handler, so pytest adds none to it, but does to other loggers."""
    project = make_project()
    project.write(
        "suites/trace/test_trace.py",
        """
import logging
import pytest

TRACE, OTHER = logging.getLogger("torch.__trace"), logging.getLogger("other")
OWN = logging.NullHandler()
TRACE.addHandler(OWN)
TRACE.propagate = OTHER.propagate = False

def look():
    assert TRACE.handlers == [OWN]
    assert any(type(handler).__module__.startswith("_pytest.") for handler in OTHER.handlers)

@pytest.fixture
def around():
    look()
    yield
    look()

def test_within(around):
    look()
""",
    )
    result = project.run(f"--isolation={mode}", "-n0")
    assert result.status == 0, result.tail()


def test_errors_can_be_made_of_warnings(make_project: MakeProject) -> None:
    project = make_project()
    project.write(
        "suites/warn/test_warn.py",
        """
import warnings

EXPECTED = {"test_warns": "failed: UserWarning: mind the gap", "test_after": "passed"}

def test_warns():
    warnings.warn("mind the gap")

def test_after():
    pass
""",
    )
    compare(project.run("-n0", "-Werror"), expected(project, "batch"))
