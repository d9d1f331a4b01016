"""Cases that replace, one at a time, the names that the harness uses between a case's call and its verdict."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.replaced_names import used_names

_SUITE = """
import importlib, unittest.mock

import pytest


def raises(*positional, **named):
    raise RuntimeError("replaced by the case")


KINDS = {{"raises": raises, "mock": unittest.mock.MagicMock(), "none": lambda *positional, **named: None}}


def owner_of(name):
    parts = name.split(".")[:-1]
    for length in range(len(parts), 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            owner = getattr(owner, part)
        return owner


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", {names!r})
def test_{what}(monkeypatch, name, kind):
    {replace}(owner_of(name), name.rpartition(".")[2], KINDS[kind])
"""
_REPLACE = {"put_back": "monkeypatch.setattr", "left": "setattr"}


def _suite(what: str) -> str:
    # pytest itself needs the names of logging: it ends with an internal error without them.
    names = [name for name in used_names() if not name.startswith("logging.")]
    assert {"os.getpid", "os.write", "json.JSONEncoder", "signal.getitimer", "ctypes.byref"} <= {*names}
    return _SUITE.format(names=names, what=what, replace=_REPLACE[what])


@pytest.mark.nightly
def test_what_is_put_back_changes_no_verdict(make_project: MakeProject) -> None:
    """The phases are reported while the name is replaced. The verdicts are those of plain pytest without capturing."""
    project = make_project()
    project.write("suites/names/test_names.py", _suite("put_back"))
    plain = project.run("-p", "no:harness", "--junitxml=plain.xml", "-s")
    assert plain.status in (0, 1), plain.tail()
    cases = ElementTree.parse(project.folder / "plain.xml").getroot().iter("testcase")
    wanted = {f"suites/names/test_names.py::{case.get('name')}": len(case) == 0 for case in cases}
    assert sum(wanted.values()) > 400, plain.tail()
    result = project.run("-n2", "--isolation=case", "--case-timeout=20")
    assert {case: outcome == "passed" for case, outcome in result.verdicts.items()} == wanted, result.tail()
    assert not result.ledger.findings


@pytest.mark.nightly
def test_what_is_left_is_never_a_loss_of_the_harness(make_project: MakeProject) -> None:
    """A check detects the replacement, or it has no effect, or pytest itself cannot work without the name."""
    project = make_project()
    project.write("suites/names/test_names.py", _suite("left"))
    result = project.run("-n2", "--isolation=case", "--case-timeout=20")
    assert set(result.verdicts.values()) <= {"passed", "contaminated", "failed", "error"}, result.tail()
    assert not result.ledger.findings
