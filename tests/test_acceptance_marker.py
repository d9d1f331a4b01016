"""The list of acceptance tests names files and folders that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ACCEPTANCE, LONGEST

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
