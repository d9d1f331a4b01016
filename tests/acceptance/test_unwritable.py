"""A run that cannot write its files: one sentence, exit status 3, no remains, and the written part is readable.

Without /proc, no run begins.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal
from tests.acceptance.project import Project, Result, Running
from tests.acceptance.rules import report

WAITS = "::test_waits"
SPREADS = pytest.mark.ways("spread", ["-n0", "-n2", "--isolation=none"])
CASES = "import pytest\n@pytest.mark.parametrize('n', range(300))\ndef test_it(n): pass\n"


def spread_words(spread: str) -> list[str]:
    return [spread, "-n0"] if spread.startswith("--") else [spread]


def check_failed(result: Result, what: str) -> None:
    """Check that the run printed just one sentence, that no processes or files remain, and that it can be reported."""
    assert result.status == 3, result.tail()
    assert "INTERNALERROR" not in result.terminal
    assert "Traceback" not in result.terminal
    assert "crashed worker" not in result.terminal
    (sentence,) = [line for line in result.terminal.splitlines() if line.startswith("harness: cannot ")]
    assert what in sentence
    counted = re.search(r"; (\d+) of (\d+) cases have a verdict in the journal: make room, then type: ", sentence)
    assert counted is not None, sentence
    decided = [verdict for verdict in result.ledger.verdicts if verdict.decided is not None]
    assert (int(counted[1]), int(counted[2])) == (len(decided), len(result.ledger.verdicts))
    assert sentence.endswith(f"harness report {result.run_dir}")
    assert not [name for name in os.listdir(result.run_dir.parent / "tmp") if name.startswith("harness-")]
    check_journal(result)
    assert not result.contents.damaged


def limit_journal(running: Running, spare: int) -> None:
    """Limit the size of files in all supervisors of the run to the journal's current size plus `spare` bytes.

    For such a process the journal becomes unwritable as on a full file system, possibly in the middle of a line.
    """
    controller = psutil.Process(running.process.pid)
    workers = [each for each in controller.children() if "harness.zygote" not in each.cmdline()]
    most = (running.run_dir / "journal.ndjson").stat().st_size + spare
    for process in [controller, *workers]:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


@SPREADS
@pytest.mark.ways("spare", [0, 40])
def test_the_journal(make_project: MakeProject, spread: str, spare: int) -> None:
    project = make_project("waiting")
    running = project.start(*spread_words(spread), cold=True)  # the zygote is identified by its command line
    try:
        running.started(WAITS)
        running.wait_for(lambda: any(name.startswith("waits-") for name in project.probe_names()), "the case to wait")
        if spread == "-n2":
            mine = running.started(WAITS)["worker"]
            running.wait_for(
                lambda: any(
                    line["event"] == "executor" and line["state"] == "ended" and line["worker"] != mine
                    for line in running.lines()
                ),
                "the other worker to have nothing more to do",
            )
        limit_journal(running, spare)
        (project.folder / "probe" / "go").touch()
        result = running.result()
    finally:
        running.kill_all()
    check_failed(result, f"cannot append to the journal {str(result.run_dir / 'journal.ndjson')!r}: [Errno 27]")
    done = report(result.run_dir)
    assert done.returncode == 1, done.stderr  # no line has the run's end
    assert WAITS in done.stdout


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of 40 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"no file system may be mounted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@SPREADS
def test_a_small_file_system(make_project: MakeProject, small: Path, spread: str) -> None:
    project = make_project()
    project.write("suites/test_many.py", CASES)
    started = project.start(*spread_words(spread), f"--results-dir={small / 'run'}", results_dir=False)
    running = Running(started.process, project.folder / f"{started.run_dir.name}.out", small / "run", started.mark)
    result = running.result()
    # The folder for temporary files is elsewhere.
    assert not [name for name in os.listdir(project.temp) if name.startswith("harness-")]
    assert result.status == 3, result.tail()
    assert "INTERNALERROR" not in result.terminal
    (sentence,) = [line for line in result.terminal.splitlines() if line.startswith("harness: cannot ")]
    assert "No space left on device" in sentence
    assert re.search(r"; [1-9]\d* of 300 cases have a verdict in the journal", sentence)
    assert not result.contents.damaged


@SPREADS
@pytest.mark.ways("name", ["junit.xml", "report.html"])
def test_the_report(make_project: MakeProject, spread: str, name: str) -> None:
    project = make_project("plain")
    (project.folder / "run" / name).mkdir(parents=True)
    started = project.start(*spread_words(spread), "--results-dir=run", results_dir=False)
    running = Running(
        started.process, project.folder / f"{started.run_dir.name}.out", project.folder / "run", started.mark
    )
    result = running.result()
    check_failed(result, f"cannot write {str(result.run_dir / name)!r}")
    assert [line["exit_status"] for line in result.lines if line["event"] == "end"][-1] == 3
    (project.folder / "run" / name).rmdir()
    assert report(result.run_dir).returncode == 3


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_the_log_of_the_zygote(make_project: MakeProject, spread: str) -> None:
    project = make_project("plain")
    (project.folder / "run").mkdir()
    (project.folder / "run" / "zygote.log").symlink_to("/dev/full")
    started = project.start(spread, "--results-dir=run", results_dir=False)
    running = Running(
        started.process, project.folder / f"{started.run_dir.name}.out", project.folder / "run", started.mark
    )
    result = running.result()
    check_failed(result, f"cannot write {str(result.run_dir / 'zygote.log')!r}: No space left on device; ")


@pytest.mark.ways(
    ("most", "what"),
    [(400, "cannot append to the journal"), (1500, "cannot write '")],
    ids=["first line of the journal", "environment.json"],
)
def test_before_the_first_case(make_project: MakeProject, most: int, what: str) -> None:
    project = make_project("plain")
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, resource.RLIM_INFINITY))"
    (project.folder / "sitecustomize.py").write_text(code)
    running = project.start("-n0", env={"PYTHONPATH": str(project.folder), "PYTHONDONTWRITEBYTECODE": "1"})
    result = running.result()
    assert result.status == 3, result.tail()
    assert "INTERNALERROR" not in result.terminal
    (sentence,) = [line for line in result.terminal.splitlines() if "harness: cannot " in line]
    assert what in sentence
    assert "; no case was run: make room, or " in sentence
    assert not [name for name in os.listdir(project.temp) if name.startswith("harness-")]


def test_what_executors_tell(make_project: MakeProject) -> None:
    """A full folder for temporary files is not attributed to a case."""
    project: Project = make_project()
    project.write(
        "suites/test_full.py",
        "import resource\n"
        "def test_fills(record_property):\n"
        "    record_property('size', 3)\n"  # so that the report goes into a file
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))\n",
    )
    result = project.run("-n0")
    (verdict,) = result.ledger.verdicts
    assert verdict.outcome.value == "lost", result.tail()
    assert verdict.message.startswith("the harness failed (in call): OSError: ")


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
