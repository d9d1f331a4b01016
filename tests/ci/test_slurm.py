"""`ci/slurm/nightly.sbatch` in a Slurm cluster: it plans, submits the jobs, and the last job writes the page."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests import slurm_cluster
from tests.ci import checkout
from tests.ci.workflow import environment

REASON = slurm_cluster.missing()
in_a_cluster = pytest.mark.skipif(REASON != "", reason=REASON)
TORCH = ".".join(version("torch").split(".")[:2])


def night(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the script as a user does on a login node, and waits for the page."""
    given = environment(MATRIX_PYTHON=sys.executable, MATRIX_WORKERS="1", MATRIX_PAGE="page", **environ)
    return subprocess.run(
        slurm_cluster.command("bash", "-c", 'cd "$0" && ci/slurm/nightly.sbatch --wait', str(folder)),
        cwd=checkout.ROOT,
        env=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted((folder / "matrix-logs").glob("*")))


@pytest.mark.nightly
@in_a_cluster
def test_a_night_on_slurm_from_the_plan_to_the_page(tmp_path: Path) -> None:
    folder = checkout.make(tmp_path / "checkout", TORCH)
    done = night(folder)
    assert done.returncode == 0, done.stdout + done.stderr + logs(folder)
    assert "jobs submitted: 2; results in matrix-results/" in done.stdout
    made = json.loads((folder / "page" / "matrix.json").read_text())
    assert [run["red"] for run in made["runs"]] == [False]
    assert "1 run on 1 machine: none of 7 cases is red" in (folder / "page" / "matrix.txt").read_text()
    names = {path.name.rpartition("-")[0] for path in (folder / "matrix-logs").iterdir()}
    assert names == {f"cpu-torch{TORCH}-py3.12-small-{part}of2" for part in (1, 2)} | {"conformance-page"}


@pytest.mark.nightly
@in_a_cluster
def test_a_red_case_and_a_job_that_slurm_refuses_make_the_night_red(tmp_path: Path) -> None:
    folder = checkout.make(tmp_path / "checkout", TORCH)
    plan = folder / "configs" / "matrix.yaml"
    plan.write_text(
        plan.read_text()
        .replace("jobs:", "  other: {hardware: cpu, slurm: {partition: nowhere}}\njobs:")
        .replace("machines: [cpu]", "machines: [cpu, other]")
    )
    done = night(folder, FAULTY="yes")
    assert done.returncode == 1, done.stdout + done.stderr + logs(folder)
    assert "invalid partition specified: nowhere" in done.stderr
    assert "ci/slurm/nightly.sbatch: jobs that Slurm refused, for the reasons above: 2" in done.stderr
    assert "jobs submitted: 2;" in done.stdout
    made = json.loads((folder / "page" / "matrix.json").read_text())
    assert [run["red"] for run in made["runs"]] == [True]
    assert f"job other-torch{TORCH}-py3.12-small/1of2 left no results" in logs(folder)


def test_an_unknown_argument_is_refused() -> None:
    script = checkout.ROOT / "ci" / "slurm" / "nightly.sbatch"
    done = subprocess.run([script, "--wiat"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "ci/slurm/nightly.sbatch: unknown argument '--wiat': expected nothing or --wait\n"
