"""What test files do when they are imported, once for all executors: exit handlers, process ids, processes."""

from __future__ import annotations

from tests.acceptance.conftest import MakeProject

STARTED = """
import subprocess, sys

CHILD = subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(3)"], stdin=subprocess.PIPE)

def test_it():
    assert CHILD.poll() is None
    CHILD.communicate(b"\\n")
    assert CHILD.returncode == 3
"""


def test_a_process_that_a_file_starts_when_it_is_imported(make_project: MakeProject) -> None:
    """It is no child of a fork. Each executor starts its own instead; suites of this project must not do so."""
    project = make_project()
    project.write("suites/test_started.py", STARTED)
    result = project.run("-p", "harness.plugin", "--device=cpu", "-n0")
    assert (result.status, [*result.verdicts.values()]) == (0, ["passed"]), result.tail()
    assert "which would be no children of a fork" in result.contents.path.read_text()
    refused = project.run("-n0")
    assert refused.status == 2
    assert "it has started processes" in refused.terminal


def test_a_mark_of_another_plugin_stays_unknown_to_a_foreign_suite(make_project: MakeProject) -> None:
    """Plain pytest refuses it too, where pytest-timeout is not installed."""
    project = make_project()
    project.write("pytest.ini", "[pytest]\nstrict_markers = true\n")
    project.write("suites/test_marked.py", "import pytest\n@pytest.mark.timeout(5)\ndef test_it(): pass\n")
    result = project.run("-p", "harness.plugin", "--device=cpu", "-n0")
    assert result.status == 2, result.tail()
    assert "'timeout' not found in `markers` configuration option" in result.terminal
