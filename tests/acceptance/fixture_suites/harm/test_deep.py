"""A red case that leaves files whose path is too long to be kept."""

import os
from pathlib import Path

EXPECTED = {"test_makes_it": "failed: AssertionError: on purpose", "test_after": "passed"}


def test_makes_it(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 100, dir_fd=here)
        inner = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    raise AssertionError("on purpose")


def test_after() -> None:
    pass
