"""Which tests take long: the list names what exists, and `pytest tests/` leaves out those of the night."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ACCEPTANCE, LONGEST, NIGHTLY, leaves_out

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", sorted({*ACCEPTANCE, *LONGEST}))
def test_it_exists(name: str) -> None:
    path = ROOT / name
    assert path.is_dir() if name.endswith("/") else path.is_file()


def test_whole_runs_are_acceptance_tests() -> None:
    """A file that starts projects through the harness takes seconds a test."""
    starters = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "fixture_suites" not in path.parts and "Project(" in path.read_text(encoding="utf-8")
    }
    starters.discard("tests/test_acceptance_marker.py")
    assert starters
    assert not [name for name in starters if not name.startswith(ACCEPTANCE)]


@pytest.mark.parametrize(
    ("arguments", "marks", "left_out"),
    [
        ([str(ROOT / "tests")], "", True),
        ([str(ROOT)], "", True),
        ([str(ROOT / "tests")], "nightly", False),
        ([str(ROOT / "tests" / "chaos")], "", False),
        ([str(ROOT / "tests"), str(ROOT / "tests" / "chaos")], "", False),
        ([f"{ROOT}/tests/chaos/test_kills.py::test_workers_are_killed"], "", False),
    ],
)
def test_what_is_left_out(arguments: list[str], marks: str, left_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the night run where they, their file or their folder are named, or a mark is chosen."""
    monkeypatch.delenv(NIGHTLY, raising=False)
    assert leaves_out(arguments, marks) is left_out
    monkeypatch.setenv(NIGHTLY, "1")
    assert not leaves_out(arguments, marks)
