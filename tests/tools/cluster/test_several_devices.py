"""Cases for several devices, on nodes with different numbers of fake GPUs, which the real pynvml finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import fake_nvml
from tests.tools.cluster.project import Project, ran_twice

pytestmark = pytest.mark.acceptance

CASES = """
import os
import pytest

pytestmark = pytest.mark.requires(device="cuda")

def seen():
    return len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))

@pytest.mark.parametrize("number", range(12))
def test_one(number):
    assert seen() == 1

@pytest.mark.requires(devices=2)
@pytest.mark.parametrize("number", range(6))
def test_two(number):
    assert seen() == 2

@pytest.mark.requires(devices=4)
def test_four():
    assert seen() == 4

@pytest.mark.requires(devices=5)
def test_five(): pass
"""

#: The nodes are on one host but need separate devices, so each has its own leases.
NODE = """\
#!/bin/sh
case $CONFORMANCE_LOCAL_NODE in
  local0) export FAKE_NVML_GPUS=4;;
  local1) export FAKE_NVML_GPUS=1;;
esac
mkdir -p "$PWD/leases-$CONFORMANCE_LOCAL_NODE"
export HARNESS_LEASE_DIR="$PWD/leases-$CONFORMANCE_LOCAL_NODE"
exec "$@"
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("fake_nvml"))


@pytest.mark.nightly
def test_cases_for_several_devices_run_where_there_are_several(tmp_path: Path, library: Path) -> None:
    """One worker of the node with four GPUs runs them, while the others continue. Cases that fit no node are gated."""
    project = Project(tmp_path / "project")
    project.write("suites/some/test_some.py", CASES)
    project.write("node.sh", NODE)
    (project.folder / "node.sh").chmod(0o755)
    made = fake_nvml.environment(library)
    environ = {name: made[name] for name in made if name == "LD_LIBRARY_PATH" or name.startswith("FAKE_NVML_")}
    del environ["FAKE_NVML_GPUS"]
    running = project.run(
        "--engine=local",
        "--nodes=2",
        f"--launcher=env -u CUDA_VISIBLE_DEVICES {project.folder / 'node.sh'}",
        arguments=("suites", "-nauto", "--leak-check=off"),
        # No torch knows these GPUs, so a health check would find them sick.
        environ={**environ, "HARNESS_HEALTH": "0"},
    )
    assert running.wait() == 0, running.output
    found = running.verdicts
    assert [name for name, outcome in found.items() if outcome != "passed"] == ["test_five"]
    assert found["test_five"] == "gated"
    (gated,) = [line for line in running.of("finish") if line["case"].endswith("test_five")]
    assert (gated["gate"]["capability"], gated["gate"]["wanted"]) == ("devices", "5")
    several = [line for line in running.of("finish") if "test_two" in line["case"] or "test_four" in line["case"]]
    assert {line["host"] for line in several} == {"local0"}
    assert len({line["worker"] for line in several}) == 1, "others would wait for its devices again and again"
    assert {len(line["devices"]) for line in several} == {2, 4}
    assert not ran_twice(running)
