"""Cases of several ranks: each failure has one verdict, which names the rank, and leaves no process running."""

from __future__ import annotations

import psutil
import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected


@pytest.mark.long
@pytest.mark.ways("mode", ["batch", "case"])
def test_each_way_to_break(make_project: MakeProject, mode: str) -> None:
    project = make_project("ranks")
    result = project.run(f"--isolation={mode}", "-n0", "--leak-search=off")
    compare(result, expected(project, mode), alone=mode == "case")
    page = (result.run_dir / "report.html").read_text(encoding="utf-8")
    for line in (
        "rank 1 of 3 raised ValueError: the second",
        "rank 2 of 3 was killed by SIGSEGV; ranks 0 and 1 raised too",
        "rank 1 of 2 was killed by SIGKILL",
        "rank 0 of 2 ended with exit status 3 before its body returned",
        "rank 1 of 2 did not end within 1 s: test_ranks.py:",
        "rank 0 of 2 did not end within 1 s: it is stopped by a signal",
        "rank 1 of 2 left a process running",
    ):
        assert line in page
    assert not [process for process in psutil.process_iter(["cmdline"]) if _is_left(process, str(project.folder))]


def _is_left(process: psutil.Process, folder: str) -> bool:
    command = process.info["cmdline"] or []
    return any(folder in word for word in command) or command[1:] == ["-c", "import signal; signal.pause()"]
