"""A case draws the same numbers wherever it runs, so one line reproduces a failure."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.project import paste

SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])


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
    line = first.final("test_random[it's [odd] $HOME]")
    assert line["message"].startswith("AssertionError: drew 0.")
    assert first.terminal.count(line["reproduce"]) >= 1
    second = paste(project, line["reproduce"])
    assert second.verdicts == {line["case"]: "failed"}, second.tail()
    again = second.final("test_random[it's [odd] $HOME]")
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
