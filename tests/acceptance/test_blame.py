"""Information about a broken case is reported for that case only, and one line reproduces the failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.caseid import case_seed
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal, compare_junit, expected
from tests.acceptance.project import Result, paste

SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])


def finish(result: Result, name: str) -> dict[str, Any]:
    """Return the journal's final line for the case whose id ends with `name`."""
    found = [
        line
        for line in result.lines
        if line["event"] == "finish" and line["final"] and line["case"].endswith(f"::{name}")
    ]
    assert len(found) == 1
    return found[0]


@SPREADS
def test_crash(make_project: MakeProject, spread: str) -> None:
    project = make_project("deaths")
    result = project.run(spread, "--seed=12")
    line = finish(result, "test_segv")
    assert line["exit_status"] == -11
    assert line["message"] == "SIGSEGV in call"
    assert "Fatal Python error: Segmentation fault" in line["detail"]
    assert "in test_segv" in line["detail"]
    assert line["stdout"] == "last words of test_segv\n"
    assert line["devices"] == ["cpu"]
    assert line["seed"] == case_seed(12, line["case"])
    case = next(element for element in result.junit.iter("testcase") if element.attrib["name"] == "test_segv")
    assert "in test_segv" in (case.findtext("error") or "")
    assert case.findtext("system-out") == "last words of test_segv\n"
    assert result.terminal.count("last words of test_segv") == 1
    for other in result.lines:
        if other["event"] == "finish" and other["case"] != line["case"]:
            assert "test_segv" not in str(other)


def test_hang(make_project: MakeProject) -> None:
    """The report of a hanging case has its stacks, with the hanging line, even if the case holds the GIL."""
    project = make_project("hangs")
    result = project.run("-n0", "--isolation=case")
    for name in ("test_python", "test_c_without_lock", "test_c_with_lock"):
        assert f"in {name}" in finish(result, name)["detail"]
    assert "in hangs_in_setup" in finish(result, "test_setup")["detail"]
    assert "in hangs_in_teardown" in finish(result, "test_teardown")["detail"]
    assert finish(result, "test_python")["stdout"] == "waiting in Python\n"


@SPREADS
def test_reproduce(make_project: MakeProject, spread: str) -> None:
    """The line printed for a failure, pasted into a shell in the same folder, reproduces the failure."""
    project = make_project()
    project.write(
        "suites/odd folder/test_random.py",
        """
import random
import pytest

@pytest.mark.parametrize("name", ["it's [odd] $HOME"])
def test_random(name):
    raise AssertionError(f"drew {random.random()}")

def test_other():
    pass
""",
    )
    first = project.run(spread)
    line = finish(first, "test_random[it's [odd] $HOME]")
    assert line["message"].startswith("AssertionError: drew 0.")
    assert first.terminal.count(line["reproduce"]) >= 1
    second = paste(project, line["reproduce"])
    assert second.verdicts == {line["case"]: "failed"}, second.tail()
    again = finish(second, "test_random[it's [odd] $HOME]")
    assert again["message"] == line["message"]
    assert again["seed"] == line["seed"]


def test_seeds(make_project: MakeProject) -> None:
    """A case draws the same numbers in each mode and on any worker, and its neighbours draw different ones."""
    project = make_project()
    project.write(
        "suites/seeds/test_seeds.py",
        """
import os, pathlib, random
import pytest

@pytest.mark.parametrize("number", range(4))
def test_draw(number, case_seed):
    with (pathlib.Path(os.environ["PROBE_DIR"]) / os.environ["DRAWN"]).open("a") as file:
        file.write(f"{number} {case_seed} {random.random()}\\n")
""",
    )
    runs = {
        "batch": ("-n0",),
        "case": ("-n0", "--isolation=case"),
        "two": ("-n2",),
        "none": ("-n0", "--isolation=none"),
        "part": ("-n0", "-k", "2 or 3"),
    }
    drawn = {}
    once = "--leak-check=off"  # otherwise cases may run again, to search for growth
    for name, arguments in runs.items():
        result = project.run(*arguments, once, "--seed=5", env={"DRAWN": name})
        assert result.status == 0, result.tail()
        drawn[name] = sorted(project.probe(name))
    assert drawn["batch"] == drawn["case"] == drawn["two"] == drawn["none"]
    assert drawn["part"] == drawn["batch"][2:]
    assert len({line.split()[2] for line in drawn["batch"]}) == 4
    project.run("-n0", env={"DRAWN": "other"})
    assert not {line.split()[2] for line in project.probe("other")} & {line.split()[2] for line in drawn["batch"]}


def test_drawn_seed_is_printed(make_project: MakeProject) -> None:
    result = make_project("plain").run("-n0")
    assert f"seed {result.lines[0]['seed']}" in result.terminal


def test_output_is_capped(make_project: MakeProject) -> None:
    """For 100 MB of output, twice, and an exception of 3 MB, reports stay small and keep head and tail."""
    project = make_project("noise")
    result = project.run("-n0")
    assert (result.run_dir / "journal.ndjson").stat().st_size < 2 << 20
    assert (result.run_dir / "junit.xml").stat().st_size < 1 << 20
    assert len(result.terminal) < 8 << 20
    assert result.seconds < 60
    line = finish(result, "test_100_megabytes_and_fails")
    assert "bytes cut" in line["stdout"]
    assert line["stdout"].startswith("xxx")
    assert line["stdout"].endswith("xxx\n")


def test_output_goes_to_its_case(make_project: MakeProject) -> None:
    """Output of a case in Python, in C and directly to the descriptors is its own; its neighbours have none of it."""
    project = make_project("noise")
    result = project.run("-n0")
    assert "\\udc80" in finish(result, "test_prints")["stdout"]
    assert "\\udc80" in finish(result, "test_prints")["stderr"]
    assert "from C" in finish(result, "test_prints_from_c")["stdout"]
    assert "\\xff" in finish(result, "test_writes_bytes")["stdout"]
    assert "\\udc80" in finish(result, "test_logs")["log"]
    for name in ("test_before", "test_after", "test_ids[::]"):
        assert not finish(result, name).keys() & {"stdout", "stderr", "log"}


@SPREADS
def test_raw_ids(make_project: MakeProject, spread: str) -> None:
    """pytest escapes unusual characters in ids unless a project disables that; then control characters come through."""
    project = make_project()
    ini = (project.folder / "pytest.ini").read_text()
    option = "disable_test_id_escaping_and_forfeit_all_rights_to_community_support"
    project.write("pytest.ini", f"{ini}{option} = true\n")
    project.write(
        "suites/ids/test_ids.py",
        """
import os
import pytest

EXPECTED = {
    "test_ids[\\x1b[31m]": "passed",
    "test_ids[\\x01]": "passed",
    "test_ids[\\ufffe]": "passed",
    "test_ids[\\u2028]": "passed",
    "test_crashes[\\x07]": "crashed: exit status 3",
}

@pytest.mark.parametrize("text", ["\\x1b[31m", "\\x01", "\\ufffe", "\\u2028"])
def test_ids(text):
    pass

@pytest.mark.parametrize("text", ["\\x07"])
def test_crashes(text):
    os._exit(3)
""",
    )
    result = project.run(spread)
    wanted = expected(project, "batch")
    assert result.verdicts == wanted.outcomes, result.tail()
    check_journal(result)
    compare_junit(result, wanted.cases)


def test_surrogate_id(make_project: MakeProject) -> None:
    """The same holds for a lone surrogate in an id; xdist itself cannot transfer one."""
    project = make_project()
    ini = (project.folder / "pytest.ini").read_text()
    option = "disable_test_id_escaping_and_forfeit_all_rights_to_community_support"
    project.write("pytest.ini", f"{ini}{option} = true\n")
    project.write(
        "suites/ids/test_ids.py",
        """
import pytest

@pytest.mark.parametrize("text", ["\\udc80"])
def test_ids(text):
    pass
""",
    )
    result = project.run("-n0")
    assert result.status == 0, result.tail()
    assert result.verdicts == {"suites/ids/test_ids.py::test_ids[\\udc80]": "passed"}
    check_journal(result)
    compare_junit(result, {"suites/ids/test_ids.py::test_ids[\\udc80]": ("passed", "")})


def test_long_temporary_folder(make_project: MakeProject, tmp_path: Path) -> None:
    """The temporary folder may have a long path, although a socket's path must be short."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    result = make_project("plain").run("-n0", env={"TMPDIR": str(folder)})
    assert result.status == 1, result.tail()
    assert result.counts["passed"] == 2
