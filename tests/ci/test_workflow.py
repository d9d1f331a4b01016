"""The steps of `ci/nightly.yml` on this machine, from the plan to the page."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.ci import checkout
from tests.ci.workflow import Workflow, environment

pytestmark = pytest.mark.acceptance

TORCH = ".".join(version("torch").split(".")[:2])
ONE, TWO = (f"cpu-torch{TORCH}-py3.12-small-{part}of2" for part in (1, 2))
SOFT = f"soft-torch{TORCH}-py3.12-small"


def workflow(tmp_path: Path, when: str = "nightly", **environ: str) -> Workflow:
    source = checkout.make(tmp_path / "source", TORCH)
    return Workflow(
        source / "ci" / "nightly.yml",
        source,
        tmp_path / "runner",
        {"when": when, "machines": "", "file": ""},
        environment(MATRIX_PYTHON=sys.executable, MATRIX_WORKERS="1", **environ),
    )


def page(tmp_path: Path) -> dict[str, object]:
    folder = tmp_path / "runner" / "artifacts" / "hardware-matrix"
    assert (folder / "matrix.html").read_bytes().startswith(b"<!doctype html>")
    made: dict[str, object] = json.loads((folder / "matrix.json").read_text())
    return made


@pytest.mark.nightly
def test_green_from_the_plan_to_the_page(tmp_path: Path) -> None:
    """Two parts of a run on the CPU are merged, and a run on the software device is beside them."""
    night = workflow(tmp_path, "nightly weekly")
    assert night.run(), "\n".join(each.log for each in night.results)
    plan, one, two, soft, last = night.results
    assert [each.name for each in night.results] == ["plan", ONE, TWO, SOFT, "page"]
    assert "3 jobs in 2 runs on 2 machines" in plan.log
    assert all("passed" in each.summary.lower() for each in (one, two, soft))
    assert [each.annotations for each in night.results] == [[]] * 5
    assert "## Hardware matrix" in last.summary
    assert "    2 runs on 2 machines: none of 7 cases is red" in last.summary
    made = page(tmp_path)
    assert [run["red"] for run in made["runs"]] == [False, False]  # type: ignore[attr-defined]
    merged = tmp_path / "runner" / "artifacts" / "hardware-matrix" / "merged" / f"cpu-torch{TORCH}-py3.12-small"
    assert {path.name for path in merged.iterdir()} >= {"journal.ndjson", "junit.xml", "report.html"}


@pytest.mark.nightly
def test_a_red_job_makes_the_workflow_red_and_is_on_the_page(tmp_path: Path) -> None:
    night = workflow(tmp_path, FAULTY="yes")
    assert not night.run()
    _, *parts, last = night.results
    (red,) = [each for each in parts if not each.success]
    assert [note.partition("::")[2].partition("::")[2] for note in red.annotations]
    assert "suites/small/test_small.py" in red.annotations[0]
    assert "<b>1 is" not in red.summary  # a text of a case is not markup
    assert not last.success
    assert "::error title=hardware matrix::the matrix is red: see its page" in last.annotations
    assert "1 of 7 cases is red or flaky somewhere" in last.summary
    assert [run["red"] for run in page(tmp_path)["runs"]] == [True]  # type: ignore[attr-defined]


@pytest.mark.nightly
def test_a_job_that_leaves_no_results_makes_the_page_red(tmp_path: Path) -> None:
    """For example a job whose runner never started. The results of the other jobs are on the page."""

    def lose(job: str, workspace: Path) -> None:
        if job == TWO:
            (workspace / "ci" / "matrix.sh").write_text("#!/bin/bash\necho the machine is gone >&2; exit 1\n")

    night = workflow(tmp_path)
    night.after_checkout = lose
    assert not night.run()
    last = night.results[-1]
    said = " ".join(last.annotations)
    assert f"job cpu-torch{TORCH}-py3.12-small/2of2 left no results" in said
    assert "are not one run" in said
    assert "shard 2/2 is missing" in last.log
    assert page(tmp_path)["runs"]


def test_a_machine_with_another_torch_than_the_plan_says_does_not_run(tmp_path: Path) -> None:
    night = workflow(tmp_path)
    plan = night.source / "configs" / "matrix.yaml"
    other = "2.11" if TORCH != "2.11" else "2.12"
    plan.write_text(plan.read_text().replace(TORCH, other))
    assert not night.run()
    assert f"has torch {version('torch')}, and the plan says {other}" in night.results[1].annotations[0]
    assert "no job left results below 'matrix-results'" in night.results[-1].log


def test_a_plan_with_a_mistake_ends_the_workflow_before_any_machine_is_asked(tmp_path: Path) -> None:
    night = workflow(tmp_path)
    plan = night.source / "configs" / "matrix.yaml"
    plan.write_text(plan.read_text().replace("hardware: cpu", "hardware: gpu"))
    assert not night.run()
    (only,) = night.results
    assert "no hardware file declares this machine" in only.log


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"when": "$(touch made)", "machines": "", "file": ""}, "Invalid value for '--when'"),
        ({"when": "nightly", "machines": "*", "file": ""}, "no job is on machine '*'"),
        ({"when": "nightly", "machines": "", "file": "--help"}, "there is no configuration file at '--help'"),
    ],
)
def test_an_input_is_a_value_and_no_command(tmp_path: Path, inputs: dict[str, str], said: str) -> None:
    night = workflow(tmp_path)
    night.inputs = inputs
    assert not night.run()
    # The command line has colours for GitHub.
    assert said in re.sub("\x1b\\[[0-9;]*m", "", night.results[0].log)
    assert not list(tmp_path.rglob("made"))
