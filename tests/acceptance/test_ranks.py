"""Cases of several ranks: each way to break has one verdict, which names the rank, and leaves nothing running."""

from __future__ import annotations

import psutil
import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected


@pytest.mark.long
@pytest.mark.parametrize("mode", ["batch", "case"])
def test_each_way_to_break(make_project: MakeProject, mode: str) -> None:
    project = make_project("ranks")
    result = project.run(f"--isolation={mode}", "-n0", "--leak-search=off")
    compare(result, expected(project, mode), alone=mode == "case")
    assert not [process for process in psutil.process_iter(["cmdline"]) if _is_left(process, str(project.folder))]


def _is_left(process: psutil.Process, folder: str) -> bool:
    command = process.info["cmdline"] or []
    return any(folder in word for word in command) or command[1:] == ["-c", "import signal; signal.pause()"]
