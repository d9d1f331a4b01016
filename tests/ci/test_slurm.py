"""`ci/slurm/nightly.sbatch` in a Slurm cluster: it plans, submits the jobs, and the last job writes the page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests import slurm_cluster
from tests.ci import checkout
from tests.ci.workflow import environment

pytestmark = pytest.mark.acceptance

REASON = slurm_cluster.missing()
in_a_cluster = pytest.mark.skipif(REASON != "", reason=REASON)
TORCH = ".".join(version("torch").split(".")[:2])


def night(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a user does on a login node, and wait for the page."""
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
        .replace(
            "jobs:",
            "  other: {hardware: cpu, slurm: {partition: nowhere}}\n"
            "  brief: {hardware: cpu, slurm: {partition: short}}\njobs:",
        )
        .replace("machines: [cpu]", "machines: [cpu, other, brief]")
    )
    done = night(folder, FAULTY="yes")
    assert done.returncode == 1, done.stdout + done.stderr + logs(folder)
    assert "invalid partition specified: nowhere" in done.stderr
    too_long = (
        r"job brief-\S+-small-[12]of2 asks for \d+ minutes, and partition short gives a job at most 1 \(MaxTime\)"
    )
    assert len(re.findall(too_long, done.stderr)) == 2, done.stderr
    assert "ci/slurm/nightly.sbatch: jobs that were refused, for the reasons above: 4" in done.stderr
    assert "jobs submitted: 2;" in done.stdout
    made = json.loads((folder / "page" / "matrix.json").read_text())
    assert [run["red"] for run in made["runs"]] == [True]
    assert f"job other-torch{TORCH}-py3.12-small/1of2 left no results" in logs(folder)


PARTITIONS = """\
PartitionName=long AllowGroups=ALL Default=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 State=UP
PartitionName=short AllowGroups=ALL Default=NO MaxNodes=UNLIMITED MaxTime=00:30:00 MinNodes=0 State=UP
PartitionName=days AllowGroups=ALL Default=NO MaxNodes=UNLIMITED MaxTime=1-01:00:00 MinNodes=0 State=UP
PartitionName=usual AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=USUAL MinNodes=0 State=UP
"""
PLAN = """\
machines:
  cpu: {{hardware: cpu, slurm: {{{partition}}}}}
jobs:
  - {{when: nightly, machines: [cpu], torch: ["2.13"], profiles: [nightly], minutes: {minutes}}}
"""


def submitted(
    folder: Path, partition: str, minutes: int, usual: str = "UNLIMITED"
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script with fakes of Slurm's programs; return also sbatch's arguments. Its --wait returns immediately."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    named = 'grep "PartitionName=$4 " "$0.txt"'
    (programs / "scontrol.txt").write_text(PARTITIONS.replace("USUAL", usual))
    (programs / "scontrol").write_text(f'#!/bin/sh\nif [ -n "$4" ]; then {named}; else cat "$0.txt"; fi\n')
    (programs / "sbatch").write_text('#!/bin/sh\necho "$@" >>"$0.txt"\necho 7\n')
    for name in ("scontrol", "sbatch"):
        (programs / name).chmod(0o755)
    (folder / "plan.yaml").write_text(PLAN.format(partition=partition, minutes=minutes))
    given = environment(MATRIX_PYTHON=sys.executable, MATRIX_FILE=str(folder / "plan.yaml"))
    given |= {"PATH": f"{programs}:{given['PATH']}", "MATRIX_RESULTS": str(folder), "MATRIX_PAGE": str(folder)}
    script = checkout.make(folder / "checkout", TORCH) / "ci" / "slurm" / "nightly.sbatch"
    done = subprocess.run([script, "--wait"], env=given, capture_output=True, text=True, check=False)
    asked = programs / "sbatch.txt"
    return done, asked.read_text().splitlines() if asked.exists() else []


@pytest.mark.ways(
    ("partition", "minutes", "usual", "reason"),
    [
        ("partition: long", 9000, "UNLIMITED", ""),
        ("partition: short", 30, "UNLIMITED", ""),
        ("partition: short", 31, "UNLIMITED", "asks for 31 minutes, and partition short gives a job at most 30"),
        ("partition: days", 1500, "UNLIMITED", ""),
        ("partition: days", 1501, "UNLIMITED", "asks for 1501 minutes, and partition days gives a job at most 1500"),
        ("partition: nowhere", 9000, "UNLIMITED", ""),
        ("", 9000, "UNLIMITED", ""),
        ("", 90, "01:00:00", "asks for 90 minutes, and the default partition gives a job at most 60"),
        ("", 45, "00:45:00", ""),
    ],
)
def test_a_job_that_its_partition_would_never_start_is_refused(
    tmp_path: Path, partition: str, minutes: int, usual: str, reason: str
) -> None:
    done, asked = submitted(tmp_path, partition, minutes, usual)
    if not reason:
        assert (done.returncode, done.stderr) == (0, "")
        job, page = asked
        assert f"--time={minutes}" in job
        assert ("--time=45" in page) is (usual == "00:45:00"), "the page would wait for ever in the default partition"
        return
    assert done.returncode == 1
    assert (
        f"job cpu-torch2.13-py3.12-nightly {reason} (MaxTime), so it would never start: lower 'minutes'" in done.stderr
    )
    assert "jobs submitted: 0;" in done.stdout
    assert not asked


def test_an_unknown_argument_is_refused() -> None:
    script = checkout.ROOT / "ci" / "slurm" / "nightly.sbatch"
    done = subprocess.run([script, "--wiat"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "ci/slurm/nightly.sbatch: unknown argument '--wiat': expected nothing or --wait\n"
