"""The `harness` command as users run it: in its own process."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness import __version__
from harness.cli import main
from harness.core.outcome import Outcome
from harness.core.text import format_bytes
from harness.devices import health, inventory
from harness.devices.device import CPU, Device, Inventory
from harness.devices.health import DeviceHealth
from harness.journal import journal
from tests.cli.commands import ROOT, harness, refused
from tests.journal import journals
from tests.reporting import build

pytestmark = pytest.mark.acceptance

A, B = "suites/streams/test_a.py::a", "suites/amp/test_b.py::b"

CASES = '''
"""Cases."""
import os
import unittest

import pytest

print("a module that prints")
os.system("echo and one that runs programs")
pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.covers("rows 1 to 3")]


@pytest.mark.timeout(12.5)
@pytest.mark.covers("row 4", "test_suite::TestAll::*")
@pytest.mark.requires(memory=">=12GiB", devices=2)
@pytest.mark.parametrize("size", [1, 2])
def test_sum(size):
    """What is added
    is in the sum.

    More of it.
    """
    raise AssertionError("this must not run")


class TestGroup:
    def test_undocumented(self):
        raise AssertionError("this must not run")


class TestOld(unittest.TestCase):
    def test_old(self):
        """An old one."""
'''

CONFTEST = """
def pytest_configure(config):
    for name in ("requires", "covers", "timeout", "extended"):
        config.addinivalue_line("markers", f"{name}(): for these tests")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with suites whose conftest registers their markers."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nstrict_markers = true\nfilterwarnings = error\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "suites" / "streams").mkdir(parents=True)
    (tmp_path / "suites" / "streams" / "test_sums.py").write_text(CASES)
    return tmp_path


def run_directory(folder: Path, *lines: build.Line) -> Path:
    return journals.write(folder, lines)


def test_version_names_the_harness_and_what_it_runs_on() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "--version"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    torch, pytest_ = (importlib.metadata.version(name) for name in ("torch", "pytest"))
    assert done.stdout.startswith(f"harness {__version__} (torch {torch}, pytest {pytest_}, ")
    assert done.stderr == ""


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    heavy = ("torch", "pytest", "pydantic", "junitparser", "pynvml", "psutil")
    code = (
        "import sys, runpy; import harness.cli.main; sys.argv = ['harness', '--help']\n"
        "try: harness.cli.main.main()\n"
        "except SystemExit as end: assert not end.code\n"
        f"sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for name in ("devices", "catalog", "report"):
        assert name in done.stdout


def test_devices_as_json_and_as_tables() -> None:
    done = harness("devices", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["devices"]
    shown = harness("devices")
    assert shown.returncode == 0
    for device in facts["devices"]:
        assert device["uuid"] in shown.stdout


GONE = "NVML does not answer: Driver Not Loaded"
LOST = Device("nvml:0", "cuda", "unknown GPU", index=0, fault="handle: GPU is lost")
GPU = Device("GPU-1", "cuda", "a GPU", index=0)


@pytest.mark.parametrize(
    ("options", "found", "status", "said"),
    [
        ([], Inventory((CPU,), nvml_error=GONE), 1, f"no GPU was examined ({GONE})"),
        ([], Inventory((CPU,)), 1, "no GPU was examined (NVML finds none)"),
        ([], Inventory((CPU,), hidden=(GPU,)), 1, "no GPU was examined (1 hidden by CUDA_VISIBLE_DEVICES)"),
        ([], Inventory((LOST, CPU)), 1, "SICK nvml:0"),
        ([], Inventory((GPU,)), 0, "healthy GPU-1"),
        (["--device=cpu"], Inventory((CPU,), nvml_error=GONE), 0, "healthy cpu"),
        (["--device=cuda"], Inventory((CPU,), nvml_error=GONE), 4, f"there is no usable GPU ({GONE}); repair it"),
    ],
    ids=["driver is gone", "no GPU", "hidden", "lost", "healthy", "CPU by name", "CUDA by name"],
)
def test_the_cpu_is_no_substitute_for_gpus_to_examine(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    found: Inventory,
    status: int,
    said: str,
) -> None:
    def check(device: Device) -> DeviceHealth:
        return DeviceHealth(device.fault is None, device.fault or "computes and copies correctly", 0.1)

    monkeypatch.setattr(inventory, "discover_devices", lambda _: found)
    monkeypatch.setattr(health, "check_device", check)
    monkeypatch.setattr(sys, "argv", ["harness", "devices", "--health", *options])
    with pytest.raises(SystemExit) as ended:
        main.main()
    shown = capsys.readouterr()
    assert ended.value.code == status
    assert said in shown.out + shown.err


def test_catalog_lists_every_case_and_runs_none(project: Path) -> None:
    done = harness("catalog", "--format", "json", cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    entries = json.loads(done.stdout)
    module = {
        "requires": [{"device": "cuda"}],
        "covers": ["rows 1 to 3"],
        "timeout": None,
        "description": "",
        "partial": [],
        "extended": False,
        "group": "",
    }
    place = {"suite": "streams", "file": "suites/streams/test_sums.py"}
    assert entries == [
        *(
            {
                "id": f"suites/streams/test_sums.py::test_sum[{size}]",
                **place,
                "line": 13,
                "description": "What is added is in the sum.",
                "requires": [{"device": "cuda"}, {"memory": ">=12GiB", "devices": 2}],
                "covers": ["rows 1 to 3", "row 4", "test_suite::TestAll::*"],
                "partial": ["test_suite::TestAll::*"],
                "extended": False,
                "group": "",
                "timeout": 12.5,
            }
            for size in (1, 2)
        ),
        {"id": "suites/streams/test_sums.py::TestGroup::test_undocumented", **place, "line": 27, **module},
        {
            "id": "suites/streams/test_sums.py::TestOld::test_old",
            **place,
            "line": 32,
            **module,
            "description": "An old one.",
        },
    ]
    assert not (project / ".pytest_cache").exists()


def test_catalog_is_whole_whatever_options_the_project_sets(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\naddopts = -n 2 -k nothing -v -s\n")
    done = harness("catalog", "--format", "json", cwd=project)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 4


def test_catalog_as_a_table_of_the_paths_asked_for(project: Path) -> None:
    done = harness("catalog", "suites/streams/test_sums.py::TestGroup", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "test_undocumented" in done.stdout
    assert "test_sum[1]" not in done.stdout
    assert "1 case in 1 suite" in done.stdout
    row = "suites/streams/test_sums.py::TestGroup::test_undocumented\tdevice=cuda\trows 1 to 3\t\t\t"
    piped = harness("catalog", "suites/streams/test_sums.py::TestGroup", cwd=project, environ={"COLUMNS": ""})
    assert row in piped.stdout.splitlines()
    whole = harness("catalog", cwd=project, environ={"COLUMNS": "60"})
    both = "suites/streams/test_sums.py::test_sum[1]\nsuites/streams/test_sums.py::test_sum[2]\n"
    assert f"{both}    What is added is in the sum.\n    requires device=cuda; " in whole.stdout
    assert (
        max(map(len, whole.stdout.split("4 cases")[0].replace("suites/streams/test_sums.py::", "").splitlines())) <= 60
    )
    assert "4 cases in 1 suite\ncovered in part only, by 2 cases: test_suite::TestAll::*\n" in whole.stdout
    assert "in part" not in done.stdout


def test_catalog_shows_the_group_of_a_suite(project: Path) -> None:
    profile = project / "configs" / "profiles" / "base.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("description: a group\ngroup: true\nsuites: [streams]\n")
    (row, *_) = harness("catalog", cwd=project, environ={"COLUMNS": ""}).stdout.splitlines()
    assert row.endswith("\tbase")
    listed = json.loads(harness("catalog", "--format", "json", cwd=project).stdout)
    assert {entry["group"] for entry in listed} == {"base"}
    assert (
        "- [streams](#streams): 4 cases, group base\n" in harness("catalog", "--format", "markdown", cwd=project).stdout
    )
    profile.write_text("description: a group\ngroup: true\n")
    assert "base.yaml:2: group: a group needs the key 'suites'" in refused(harness("catalog", cwd=project))


def test_catalog_of_the_default_run_leaves_out_extended_cases(project: Path) -> None:
    (project / "suites" / "streams" / "test_more.py").write_text(
        "import pytest\n@pytest.mark.extended\ndef test_long(): pass\ndef test_short(): pass\n"
    )
    done = harness("catalog", "suites/streams/test_more.py", "--default", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "test_short" in done.stdout
    assert "test_long" not in done.stdout


def test_catalog_of_cases_that_cannot_be_collected(project: Path) -> None:
    (project / "suites" / "streams" / "test_broken.py").write_text("import no_such_module_here\n")
    done = harness("catalog", "--format", "json", cwd=project)
    assert refused(done) == "harness: pytest could not collect 'suites' (exit status 2): see its output above"
    assert "no_such_module_here" in done.stderr


def test_catalog_without_cases_and_without_the_folder(project: Path, tmp_path: Path) -> None:
    (project / "suites" / "streams" / "test_sums.py").unlink()
    assert "there are no cases in 'suites'" in refused(harness("catalog", cwd=project))
    done = harness("catalog", "nowhere", cwd=tmp_path)
    assert "pytest could not collect 'nowhere' (exit status 4)" in refused(done)
    assert "nowhere" in done.stderr


def test_report_writes_junit_and_tells_what_was_found(tmp_path: Path) -> None:
    crash = "SIGSEGV in [bold]call\x1b[31m"
    command = "pytest 'suites/streams/test_a.py::a' --seed 7 " + "--long-option " * 20
    run_dir = run_directory(
        tmp_path,
        build.run(),
        build.collected(A, B, "c.py::c"),
        build.executor(startup=0.25),
        build.start(A),
        build.finish(A, Outcome.CRASHED, message=crash, reproduce=command),
        build.finish(B),
    )
    with (run_dir / journal.FILE_NAME).open("ab") as file:
        file.write(b'{"event":"weather","t":1}\n{"event":"fin')
    done = harness("report", str(run_dir))
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[:5] == [
        "3 cases: 1 not_run, 1 passed, 1 crashed; 1 finding",
        f"CRASHED {A} - SIGSEGV in [bold]call\\x1b[31m",
        "    device cpu, seed 11, executor gw0-1",
        f"    {command}",
        "NOT_RUN 1 case, the first c.py::c - the run ended, and the journal has no start of this case",
    ]
    assert lines[5] == f"    to run the rest, repeat the command with --resume {run_dir}"
    assert lines[6].startswith("FINDING damaged_journal: the journal has 1 unreadable lines (line 8)")
    assert lines[7:9] == [
        "isolation: 1 executor started in 0.25 s, 0 restarts, 0 retries",
        f"results: {run_dir}",
    ]
    assert lines[9].startswith("line 8 of the journal is unreadable and was ignored: Input data was truncated")
    assert lines[10:13] == [
        "line 7 of the journal has the unknown kind 'weather' and was ignored: use a newer harness to read it",
        f"the run did not finish, so it counts as red: to run the rest, repeat the command with --resume {run_dir}",
        "exit status 1",
    ]
    assert lines[13].startswith(f"wrote {run_dir / 'junit.xml'} (")
    assert b'tests="4"' in (run_dir / "junit.xml").read_bytes()


def test_report_of_a_green_run_names_no_case(tmp_path: Path) -> None:
    run_directory(tmp_path, build.run(), build.collected(A), build.finish(A), build.end())
    done = harness("report", str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "1 case: 1 passed"
    assert A not in done.stdout


def repeated(case: str, step: int) -> list[build.Line]:
    """Return a case that ran 20 times in one process and left `step` bytes each time."""
    lines = []
    for number in range(1, 21):
        level = build.levels(case, number, heap_bytes=(11 << 20) + step * number)
        lines += [build.start(case, attempt=number), level, build.finish(case, attempt=number)]
    return lines


@pytest.mark.ways(("encoding", "axis", "bar"), [("utf-8", "│", "█"), ("ascii", "|", "#")])
def test_report_tells_how_memory_went_over_repetitions(tmp_path: Path, encoding: str, axis: str, bar: str) -> None:
    lines = [*repeated(A, 4096), *repeated(B, 0)]
    run_directory(tmp_path, build.run(), build.collected(A, B), *lines, build.end())
    environ = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "1" if encoding == "utf-8" else "0", "COLUMNS": "40"}
    grown = harness("report", str(tmp_path), environ=environ)
    assert (grown.returncode, grown.stderr) == (0, "")
    shown = grown.stdout.splitlines()
    assert shown[1].startswith(f"GROWS {A} - heap_bytes: malloc memory of C code, NumPy or torch on the CPU grew by ")
    assert shown[1].endswith("per repetition over 20 repetitions, from 11.0 MiB to 11.1 MiB, in executor gw0-1")
    assert shown[2].startswith(f"    11.1 MiB {axis}")
    assert shown[2].endswith(bar)
    assert shown[4].startswith(f"    11.0 MiB {axis}")
    assert not [line for line in shown if line.startswith("FLAT")]
    everything = harness("report", str(tmp_path), "--growth", environ=environ).stdout.splitlines()
    (flat,) = [line for line in everything if line.startswith(f"FLAT {B} - ")]
    assert flat.endswith("stayed flat over 20 repetitions, at 11.0 MiB, in executor gw0-1")
    assert [line for line in everything if line in shown] == shown


def test_report_of_growth_where_nothing_was_repeated(tmp_path: Path) -> None:
    run_directory(tmp_path, build.run(), build.collected(A), build.finish(A), build.end())
    assert (
        "the journal has no memory readings of repeated cases: "
        "run with --repeat=12 or more, and without --leak-check=off"
    ) in harness("report", str(tmp_path), "--growth").stdout.splitlines()


@pytest.mark.ways(
    ("outcome", "end", "status"),
    [
        (Outcome.PASSED, 0, 0),
        (Outcome.FAILED, 1, 1),
        (Outcome.PASSED, 1, 1),
        (Outcome.PASSED, 2, 2),
        (Outcome.FAILED, 3, 3),
        (Outcome.GATED, 5, 5),
        (Outcome.PASSED, None, 1),
        (Outcome.GATED, None, 1),
    ],
)
def test_report_exits_as_the_run_did(tmp_path: Path, outcome: Outcome, end: int | None, status: int) -> None:
    last = [] if end is None else [build.end(exit_status=end)]
    run_directory(tmp_path, build.run(), build.collected(A), build.start(A), build.finish(A, outcome), *last)
    done = harness("report", str(tmp_path))
    assert (done.returncode, done.stderr) == (status, "")
    assert f"exit status {status}" in done.stdout.splitlines()
    assert ("the run did not finish" in done.stdout) == (end is None)
    (tmp_path / "junit.xml").unlink()
    assert harness("report", str(tmp_path), "--exit-zero").returncode == 0
    assert b'tests="1"' in (tmp_path / "junit.xml").read_bytes()


def test_report_of_a_green_run_with_lost_lines_is_red(tmp_path: Path) -> None:
    run_directory(tmp_path, build.run(), build.collected(A), build.finish(A), build.end())
    with (tmp_path / journal.FILE_NAME).open("ab") as file:
        file.write(b'{"event":"fin')
    done = harness("report", str(tmp_path))
    assert done.returncode == 1
    assert "FINDING damaged_journal" in done.stdout


@pytest.mark.ways("lines", [[], [build.finish(A)]], ids=["empty", "without-a-run"])
@pytest.mark.ways("command", [("report",), ("bisect", A), ("waivers", "update")], ids=lambda words: words[0])
def test_a_journal_of_no_run_is_refused(tmp_path: Path, command: tuple[str, ...], lines: list[build.Line]) -> None:
    run_directory(tmp_path, *lines)
    words = [command[0], str(tmp_path), *command[1:]] if command[0] != "waivers" else [*command, str(tmp_path)]
    assert refused(harness(*words)) == (
        f"harness: the journal '{tmp_path}/journal.ndjson' has no line of kind 'run', so no run started there: "
        "give another run directory, or start the run again"
    )
    assert not (tmp_path / "junit.xml").exists()


def test_report_of_a_folder_without_a_journal(tmp_path: Path) -> None:
    line = refused(harness("report", str(tmp_path)))
    assert line.startswith(f"harness: there is no journal at '{tmp_path}/journal.ndjson': give the run directory")
    assert not (tmp_path / "junit.xml").exists()


def test_report_html(tmp_path: Path) -> None:
    run_directory(tmp_path, build.run(), build.collected(A), build.finish(A, Outcome.FAILED, message="x < y"))
    page = tmp_path / "report.html"
    done = harness("report", "html", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"wrote {page} ({format_bytes(page.stat().st_size)})\n")
    assert "x &lt; y" in page.read_text()
    other = tmp_path / "other.html"
    assert harness("report", "html", str(tmp_path), "-o", str(other)).returncode == 0
    assert other.read_text() == page.read_text()
    assert "there is no journal" in refused(harness("report", "html", str(tmp_path / "nowhere")))
    where = tmp_path / "no" / "x.html"
    assert f"cannot write '{where}'" in refused(harness("report", "html", str(tmp_path), "-o", str(where)))


def test_report_of_something_else(tmp_path: Path) -> None:
    (tmp_path / journal.FILE_NAME).write_text("<xml/>")
    assert "is not a journal" in refused(harness("report", str(tmp_path)))


def test_report_that_cannot_be_written(tmp_path: Path) -> None:
    run_directory(tmp_path, build.run())
    (tmp_path / "junit.xml").mkdir()
    assert f"cannot write '{tmp_path}/junit.xml'" in refused(harness("report", str(tmp_path)))
