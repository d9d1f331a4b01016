"""What test files do when they are imported, once for all executors: exit handlers, process ids, processes."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject

HANDLERS = """
import atexit, os, pathlib, shutil, tempfile
import pytest

PROBE = pathlib.Path(os.environ["PROBE_DIR"])
FOLDER = tempfile.mkdtemp(dir=PROBE)
atexit.register(shutil.rmtree, FOLDER)
KEPT = tempfile.TemporaryDirectory(dir=PROBE)

def note(name):
    with open(PROBE / name, "a") as file:
        print(os.getpid(), file=file)

@atexit.register
def of_import(): note("of-import")

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    assert os.path.isdir(FOLDER)
    assert os.path.isdir(KEPT.name)
    atexit.register(note, "of-case")
    note("cases")
"""


@pytest.mark.parametrize("arguments", [("-n2",), ("-n0", "--isolation=case")])
def test_exit_handlers_run_once_where_they_were_registered(
    make_project: MakeProject, arguments: tuple[str, ...]
) -> None:
    project = make_project()
    project.write("suites/test_handlers.py", HANDLERS)
    result = project.run(*arguments, "--leak-check=off")
    assert (result.status, set(result.verdicts.values())) == (0, {"passed"}), result.tail()
    cases, of_case, of_import = (project.probe(name) for name in ("cases", "of-case", "of-import"))
    assert sorted(of_case) == sorted(cases)
    assert len(of_import) == 1
    assert of_import[0] not in cases
    assert project.probe_names() == ["cases", "of-case", "of-import"], "no folder is left"


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
