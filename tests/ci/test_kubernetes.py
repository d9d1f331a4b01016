"""The pod of `ci/k8s/run.yaml`: its command with its variables and the folders of its volumes, on fake GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import fake_nvml
from tests.acceptance.gpu_machine import Machine
from tests.ci.checkout import ROOT

pytestmark = pytest.mark.acceptance

#: An emptyDir, and with `fsGroup` a volume: everyone may write to it, and files get the group of the pod.
_MODE = 0o2777
_CASES = """
@on_gpu
@pytest.mark.parametrize("number", range(8))
def test_adds(number):
    import tempfile

    assert tempfile.gettempdir().startswith(os.environ["TMPDIR"])
"""


def sandbox(container: dict[str, Any], folder: Path) -> dict[str, str]:
    """Make the folders of the container's volumes below `folder`; return its variables with these folders."""
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    for mount in mounts:
        (folder / mount.lstrip("/")).mkdir(parents=True)
        (folder / mount.lstrip("/")).chmod(_MODE)

    def placed(value: str) -> str:
        inside = any(value == mount or value.startswith(f"{mount}/") for mount in mounts)
        return f"{folder}{value}" if inside else value

    return {"TMPDIR": f"{folder}/tmp"} | {each["name"]: placed(each["value"]) for each in container["env"]}


def test_each_pod_of_a_run_leases_its_gpu_and_leaves_its_part(tmp_path: Path) -> None:
    machine = Machine(tmp_path, fake_nvml.build(tmp_path), gpus=1)
    machine.suite(_CASES)
    project = machine.project.folder
    shutil.copytree(ROOT / "ci", project / "ci")
    machine.project.write("configs/hardware/h200.yaml", "description: A fake GPU.\ndevice: {device: cuda}\n")
    machine.project.write("configs/profiles/nightly.yaml", "description: All cases.\n")
    job = yaml.safe_load((ROOT / "ci" / "k8s" / "run.yaml").read_text(encoding="utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    environ = {name: value for name, value in machine.environ.items() if value is not None}
    environ |= sandbox(container, tmp_path / "pod") | {
        "MATRIX_PYTHON": sys.executable,  # as the image has it
        "MATRIX_DRIVER": "",  # the fake machine has another one
        "MATRIX_WORKERS": "1",
        "JOB_COMPLETION_INDEX": "1",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        container["command"],
        cwd=project,
        env={name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (part,) = (tmp_path / "pod" / "results").rglob("journal.ndjson")
    assert part.parent.name == "2of4"
    assert '"outcome":"passed"' in part.read_text(encoding="utf-8"), done.stdout
