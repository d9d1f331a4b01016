"""The owner of a mark that the harness and a foreign suite both declare."""

from __future__ import annotations

import pytest

from harness import marks
from harness.core.errors import HarnessError

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.acceptance


@pytest.mark.parametrize(
    ("lines", "others"),
    [
        ([], set()),
        (["slow: takes long"], set()),
        (["requires(capability): what a test needs"], {"requires"}),
        (["requires(**conditions): for runs without the harness"], set()),
        (["requires"], {"requires"}),
        (["serial: not beside others", "extended"], {"serial", "extended"}),
        (["timeout(timeout, method=None): of pytest-timeout"], {"timeout"}),
    ],
)
def test_a_declaration_with_another_signature_is_of_another_mark(lines: list[str], others: set[str]) -> None:
    assert marks.declared_by_others([*marks.MARKERS, *lines]) == others


@pytest.mark.parametrize("foreign", [True, False])
def test_marks_of_the_project_are_not_read_in_a_foreign_suite(pytester: pytest.Pytester, foreign: bool) -> None:
    item = pytester.getitem(
        "import pytest\n@pytest.mark.requires('rng')\n@pytest.mark.timeout(9)\n@pytest.mark.extended\n"
        "def test_a(): pass",
        "test_a",
    )
    marks.declare(item.config, foreign=foreign)
    item.config.addinivalue_line("markers", "timeout(timeout): of pytest-timeout, for the same purpose")
    assert [mark.name for mark in marks.all_marks(item)] == ["extended", "timeout", "requires"]
    item.config.addinivalue_line("markers", "requires(capability): as a conftest declares it while tests are collected")
    read = ["extended", "timeout"] + ["requires"] * (not foreign)
    assert [mark.name for mark in marks.all_marks(item)] == read
    assert len(marks.marks_of(item, "requires")) == read.count("requires")
    assert (marks.nearest_mark(item, "requires") is None) == foreign
    assert marks.nearest_mark(item, "timeout") is not None


def test_a_line_names_the_marks_once() -> None:
    assert marks.format_marks_of_project(()) == ""
    assert marks.format_marks_of_project({"serial", "requires"}).startswith("requires, serial: ")


@pytest.mark.parametrize(
    ("mark", "reason"), [("('on purpose')", "on purpose"), ("(reason='on purpose')", "on purpose"), (None, None)]
)
def test_the_reason_of_a_race_on_purpose(pytester: pytest.Pytester, mark: str | None, reason: str | None) -> None:
    line = "" if mark is None else f"@pytest.mark.races{mark}\n"
    item = pytester.getitem(f"import pytest\n{line}def test_a(): pass", "test_a")
    marks.declare(item.config, foreign=False)
    assert marks.reason_for_races(item) == reason


@pytest.mark.parametrize("mark", ["", "()", "('')", "(3)", "('a', 'b')", "('a', link='b')"])
def test_a_race_on_purpose_needs_one_reason(pytester: pytest.Pytester, mark: str) -> None:
    item = pytester.getitem(f"import pytest\n@pytest.mark.races{mark}\ndef test_a(): pass", "test_a")
    marks.declare(item.config, foreign=False)
    with pytest.raises(HarnessError, match=r"races\(\.\.\.\) needs one reason"):
        marks.reason_for_races(item)
