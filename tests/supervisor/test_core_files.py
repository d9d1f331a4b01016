"""The location of core files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.supervisor import diagnostics
from harness.supervisor.diagnostics import CorePlace

FOLDER = Path("/work [1]")
_ESCAPED = "/work [[]1]"


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "limit", "expected"),
    [
        ("core", False, 1, CorePlace(f"{_ESCAPED}/core")),
        ("core", True, -1, CorePlace(f"{_ESCAPED}/core.42")),
        ("core.%p", True, -1, CorePlace(f"{_ESCAPED}/core.42")),
        ("/var/cores/%e.%P.%t", False, 1, CorePlace("/var/cores/*.42.*")),
        ("/var/100%%/core", False, 1, CorePlace("/var/100%/core")),
        ("core%", False, 1, CorePlace(f"{_ESCAPED}/core")),
        ("/cores/[a]*", False, 1, CorePlace("/cores/[[]a][*]")),
        ("core", False, 0, CorePlace(why="the limit for core files is 0, see ulimit -c")),
        ("", False, 1, CorePlace(why="the kernel's core_pattern is empty")),
        ("|/usr/lib/systemd/systemd-coredump %P", False, 0, None),
        ("|", False, 0, None),
    ],
)
def test_the_place_follows_from_the_pattern(
    pattern: str, uses_pid: bool, limit: int, expected: CorePlace | None
) -> None:
    found = diagnostics.core_place(f"{pattern}\n", uses_pid=uses_pid, limit=limit, pid=42, folder=FOLDER)
    if expected is not None:
        assert found == expected
    else:
        assert found.files == ""
        assert found.why.startswith("the kernel gives it to ")
        assert "process 42" in found.why


def test_the_newest_file_since_the_case_began_is_the_core_file(tmp_path: Path) -> None:
    for name, when in (("core.1", 100), ("core.2", 300), ("core.3", 200), ("other", 400)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (when, when))
    (tmp_path / "core.4").mkdir()
    files = str(tmp_path / "core.*")
    assert diagnostics.newest_core(files, 150) == tmp_path / "core.2"
    assert diagnostics.newest_core(str(tmp_path / "core.[123]"), 301) is None
    assert diagnostics.newest_core(str(tmp_path / "no.*"), 0) is None


def test_this_machine_says_something(tmp_path: Path) -> None:
    found, why = diagnostics.core_of_process(os.getpid(), tmp_path, 0.0)
    assert (found is None) == bool(why)
