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


PIDS = """
import os, signal

PID = os.getpid()
#: As CPython's tests name their files: processes must not share one.
NAME = f"@test_{os.getpid()}_tmp"

class Holder:
    PID = os.getpid()

def test_a_signal_to_itself():
    received = []
    before = signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
    os.kill(PID, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    assert received == [1]
    assert PID == Holder.PID == os.getpid()
    assert type(PID) is int
    assert NAME == f"@test_{os.getpid()}_tmp"

def test_kills_itself():
    os.kill(PID, signal.SIGKILL)

def test_after(): pass
"""


def test_a_process_id_in_a_variable_is_that_of_the_executor(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/test_pids.py", PIDS)
    result = project.run("-n0")
    assert list(result.verdicts.values()) == ["passed", "crashed", "passed"], result.tail()
    assert "SIGKILL in call" in result.terminal


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


PLAIN = """
import os, sys
import pytest

def test_closes_descriptors():
    os.closerange(3, 256)

def test_asks():
    with pytest.raises(OSError, match="standard input"):
        input()
    with pytest.raises(OSError):
        sys.stdin.read()
    assert os.read(0, 10) == b""
"""


def test_low_descriptors_and_standard_input(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/test_plain.py", PLAIN)
    result = project.run("-n0")
    assert (result.status, set(result.verdicts.values())) == (0, {"passed"}), result.tail()


def test_a_mark_of_another_plugin_stays_unknown_to_a_foreign_suite(make_project: MakeProject) -> None:
    """Plain pytest refuses it too, where pytest-timeout is not installed."""
    project = make_project()
    project.write("pytest.ini", "[pytest]\nstrict_markers = true\n")
    project.write("suites/test_marked.py", "import pytest\n@pytest.mark.timeout(5)\ndef test_it(): pass\n")
    result = project.run("-p", "harness.plugin", "--device=cpu", "-n0")
    assert result.status == 2, result.tail()
    assert "'timeout' not found in `markers` configuration option" in result.terminal
