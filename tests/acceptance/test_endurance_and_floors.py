"""In whole runs, endurance seconds and floors of speed reach the cases, and figures reach each report."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.project import Project, paste
from tests.acceptance.rules import command, configure, refused

SUITE = """
import time

import pytest

@pytest.mark.endurance
@pytest.mark.timeout(1)
def test_works_longer_than_its_limit(endurance, record_property):
    record_property("seconds", endurance)
    time.sleep(1.2 if endurance else 0)

@pytest.mark.timeout(1)
def test_without_the_mark(endurance):
    time.sleep(1.2 if endurance else 0)

@pytest.mark.parametrize("value", [3e12, 2e12])
def test_speed(floors, record_property, value):
    record_property("performance.d2d_bandwidth", floors.shown("d2d_bandwidth", value))
    record_property("performance.d2d_bandwidth.floor", floors.text("d2d_bandwidth"))
    assert floors.missed("d2d_bandwidth", value) == ""
"""


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    made = make_project()
    made.write("suites/test_it.py", SUITE)
    hardware = {"description": "this", "device": {"device": "cpu"}, "floors": {"d2d_bandwidth": ">=2.4TB/s"}}
    configure(made, "hardware/mine", **hardware)
    return made


@pytest.mark.ways("mode", [["-n0"], ["-n2"], ["-n0", "--isolation=none"]])
def test_floors_and_seconds_reach_the_cases(project: Project, mode: list[str]) -> None:
    result = project.run(*mode, "--hardware=mine", "--endurance=30", "-k", "speed or longer")
    found = {case.partition("::test_")[2]: outcome for case, outcome in result.verdicts.items()}
    assert found == {"works_longer_than_its_limit": "passed", "speed[3000000000000.0]": "passed"} | {
        "speed[2000000000000.0]": "failed"
    }, result.tail()
    text = "d2d_bandwidth is 2 TB/s, and hardware mine has the floor >=2.4TB/s"
    assert text in result.terminal
    properties = {v.case.partition("::test_")[2]: v.decided.properties for v in result.ledger.verdicts if v.decided}
    assert properties["works_longer_than_its_limit"] == (("seconds", "30.0"),)
    assert "PROPERTY performance.d2d_bandwidth = 3 TB/s\n" in "".join(result.junit.itertext())
    assert ">=2.4TB/s" in "".join(result.junit.itertext())
    assert '<section id="speed"' in (result.run_dir / "report.html").read_text()


def test_only_the_mark_adds_the_seconds_to_the_limit(project: Project) -> None:
    result = project.run("-n0", "--endurance=30", "-k", "without_the_mark")
    assert [*result.verdicts.values()] == ["timeout"]


@pytest.mark.nightly
def test_a_reproduce_line_has_hardware_and_endurance(project: Project) -> None:
    result = project.run("-n0", "--hardware=mine", "--endurance=2", "-k", "speed")
    (line,) = (verdict.reproduce for verdict in result.ledger.verdicts if verdict.reproduce)
    assert line is not None
    assert "--endurance=2 --hardware=mine" in line
    again = paste(project, line)
    assert [*again.verdicts.values()] == ["failed"]


@pytest.mark.nightly
def test_without_hardware_there_are_no_floors_and_diff_lists_the_figures(project: Project) -> None:
    first, second = (project.run("-n0", "-k", "speed") for _ in range(2))
    assert {*second.verdicts.values()} == {"passed"}
    status, text = command(project, "diff", str(first.run_dir), str(second.run_dir))
    assert status == 0
    assert (
        "FIGURE d2d_bandwidth: 3 TB/s -> 3 TB/s (1.00 times) - suites/test_it.py::test_speed[3000000000000.0]" in text
    )


def test_a_wrong_floor_stops_the_run_with_file_line_and_key(project: Project) -> None:
    project.write(
        "configs/hardware/mine.yaml", "description: x\ndevice: {device: cpu}\nfloors:\n  d2d_bandwidth: '<=2TB/s'\n"
    )
    refused(
        project.run("-n0", "--hardware=mine"),
        "configs/hardware/mine.yaml:4: floors.d2d_bandwidth: '<=2TB/s': expected >=, since a speed is at "
        "least its floor",
    )
