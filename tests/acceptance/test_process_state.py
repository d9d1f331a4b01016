"""Changed process state is attributed to the case that left it, and affects no other case."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.acceptance.conftest import MakeProject


def _may_unmount() -> bool:
    command = ["unshare", "--mount", "umount", "-l", "/proc"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif("not _may_unmount()", reason="only root may unmount /proc")
def test_without_proc_the_run_says_what_is_missing(make_project: MakeProject) -> None:
    project = make_project("plain")
    command = f"umount -l /proc && {sys.executable} -m pytest suites -n0"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command], cwd=project.folder, capture_output=True, text=True, check=False
    )
    assert "there is no /proc, which runs need; mount it" in done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert done.returncode == 4
