"""`ci/slurm/ready.sh` in a Slurm cluster, on a fake NVML: Prolog, Epilog and health check drain with the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fake_nvml, slurm_cluster
from tests.fake_nvml import State

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "ci" / "slurm"
REASON = slurm_cluster.missing()
in_a_cluster = pytest.mark.skipif(REASON != "", reason=REASON)
#: Waits until a command prints a text, for at most a minute.
WAIT = """
until_it_says() { for _ in $(seq 300); do "${@:2}" | grep -q -- "$1" && return; sleep 0.2; done; "${@:2}"; return 1; }
reasons() { sinfo -R -h -o '%N %E'; }
"""


def install(folder: Path, nvml_folder: Path, state: State, *settings: str) -> Path:
    """Install the scripts as README.md says, with the fake NVML; return the script."""
    folder.mkdir()
    for name in ("ready.sh", "ready-idle.yaml"):
        shutil.copy(SCRIPTS / name, folder)
    harmless = "".join(
        f"{kind}: {{verdict: ready}}\n" for kind in ("log_unreadable", "clock", "shared_memory", "open_files")
    )
    with (folder / "ready-idle.yaml").open("a") as file:
        file.write(harmless)
    command = folder / "harness"
    command.write_text(f'#!/bin/sh\ncd "{ROOT}"\nexec "{sys.executable}" -m harness "$@"\n')
    command.chmod(0o755)
    environ = fake_nvml.environment(nvml_folder, gpus=8, state=state)
    fakes = [f'export {name}="{value}"' for name, value in environ.items() if name.startswith(("FAKE_", "LD_LIB"))]
    lines = [f"READY_HARNESS={command}", *fakes, *settings]
    (folder / "harness-ready.conf").write_text("\n".join(lines) + "\n")
    return folder / "ready.sh"


def in_cluster(conf: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the shell in a new cluster with these lines of slurm.conf."""
    return subprocess.run(
        slurm_cluster.command("bash", "-euc", WAIT + script),
        cwd=ROOT,
        env={**os.environ, slurm_cluster.CONF: conf},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@in_a_cluster
def test_a_sick_gpu_drains_the_node_in_the_prolog_and_requeues_the_job(nvml_folder: Path, tmp_path: Path) -> None:
    state = State(tmp_path / "gpus")
    state.set(0, rows_failed=0)
    script = install(tmp_path / "slurm", nvml_folder, state)
    sick = tmp_path / "sick"
    sick.write_text("0 rows_failed 1\n")
    done = in_cluster(
        f"Prolog={script}\nPrologFlags=Alloc\nEpilog={script}\n",
        f"""
        srun -w h0 --gres=gpu:2 echo sound
        srun -w h0 echo no gpu
        cp "{sick}" "{state.path}"
        job=$(sbatch --parsable -w h0 --gres=gpu:1 -o /dev/null --wrap true)
        until_it_says 'harness: not ready' reasons
        reasons
        until_it_says 'PENDING' squeue -h -j "$job" -o %T
        echo "restarts: $(scontrol show job "$job" | grep -o 'Restarts=[0-9]*')"
        sinfo -h -N -n h0,h1 -p all -o '%N %T'
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("sound\nno gpu\n")
    assert "h0 harness: not ready: GPU 0: row_remapping: a row remapping failed" in done.stdout
    assert "next: open a ticket with the vendor" in done.stdout
    assert "restarts: Restarts=1" in done.stdout
    assert "h0 drained\nh1 idle\n" in done.stdout


@in_a_cluster
def test_the_health_check_drains_idle_nodes(nvml_folder: Path, tmp_path: Path) -> None:
    """All nodes of this cluster are one machine, so that all of them are sick."""
    state = State(tmp_path / "gpus")
    state.set(5, recovery=0)
    script = install(tmp_path / "slurm", nvml_folder, state)
    sick = tmp_path / "sick"
    sick.write_text("5 recovery 2\n")
    done = in_cluster(
        f"HealthCheckProgram={script}\nHealthCheckInterval=3\nHealthCheckNodeState=ANY\n",
        f"""
        sinfo -h -N -p all -o '%N %T'
        cp "{sick}" "{state.path}"
        until_it_says 'a0' sinfo -h -N -p all -t drain -o '%N'
        reasons
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("a0 idle\na1 idle\nh0 idle\nh1 idle\n")
    assert "harness: not ready: GPU 5: recovery: the driver asks: reboot the node; next: reboot the node" in done.stdout


@in_a_cluster
def test_what_a_job_leaves_drains_the_node_after_it(nvml_folder: Path, tmp_path: Path) -> None:
    state = State(tmp_path / "gpus")
    state.set(0, process=0)
    script = install(tmp_path / "slurm", nvml_folder, state)
    left = tmp_path / "left"
    left.write_text("0 process 1\n")
    done = in_cluster(
        f"Epilog={script}\n",
        f"""
        srun -w h1 --gres=gpu:1 cp "{left}" "{state.path}"
        until_it_says 'h1 harness: not ready: GPU 0: processes: 1; next: end the leftover processes' reasons
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("settings", "drains"), [((), False), (("READY_WITHOUT_VERDICT=drain",), True)], ids=["log", "drain"]
)
def test_a_check_that_fails_itself_drains_only_on_request(
    nvml_folder: Path, tmp_path: Path, settings: tuple[str, ...], drains: bool
) -> None:
    """Without Slurm: a fake `scontrol` writes down what it was asked."""
    script = install(
        tmp_path / "slurm", nvml_folder, State(tmp_path / "gpus"), "READY_OPTIONS=(--hardware none)", *settings
    )
    asked = tmp_path / "asked"
    (tmp_path / "slurm" / "scontrol").write_text(f'#!/bin/sh\necho "$@" >>"{asked}"\n')
    (tmp_path / "slurm" / "scontrol").chmod(0o755)
    conf = tmp_path / "slurm" / "harness-ready.conf"
    conf.write_text(f"{conf.read_text()}PATH={tmp_path / 'slurm'}:$PATH\n")
    environ = {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd", "SLURM_JOB_GPUS": "0", "SLURMD_NODENAME": "h7"}
    done = subprocess.run([script], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == drains, done.stderr
    assert "ended with 2" in done.stderr
    wanted = "update NodeName=h7 State=DRAIN Reason=harness: no verdict, exit status 2\n"
    assert (asked.read_text() if asked.exists() else "") == (wanted if drains else "")
