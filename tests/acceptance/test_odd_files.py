"""Unusual files that a red case leaves: they cause a note on the case, and do not affect the run."""

from __future__ import annotations

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected


def test_a_path_that_is_too_long(make_project: MakeProject) -> None:
    project = make_project()
    project.write(
        "suites/deep/test_deep.py",
        """
import os

EXPECTED = {"test_makes_it": "failed: AssertionError: on purpose", "test_after": "passed"}

def test_makes_it(tmp_path):
    (tmp_path / "kept").write_text("kept")
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 100, dir_fd=here)
        inner = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    raise AssertionError("on purpose")

def test_after():
    pass
""",
    )
    result = project.run("-n0")
    compare(result, expected(project, "batch"))
    kept = result.run_dir / "files"
    assert [path.read_text() for path in kept.rglob("kept")] == ["kept"]
    assert "File name too long" in next(kept.glob("*.left-out.txt")).read_text()
    assert not any(project.temp.iterdir())
