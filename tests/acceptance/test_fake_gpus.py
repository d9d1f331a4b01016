"""Devices bound to workers, on a machine with eight fake GPUs: the real pynvml loads a fake NVML library.

No case uses CUDA here: the tests check the devices that each executor is allowed to see.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests import fake_nvml
from tests.acceptance.project import Project, Result

_CASES = """
import os
import pytest

@pytest.mark.requires(device="cuda")
@pytest.mark.parametrize("n", range(24))
def test_one(n):
    print("sees", os.environ["CUDA_VISIBLE_DEVICES"])

@pytest.mark.requires(device="cuda", devices=2)
def test_two():
    print("sees", os.environ["CUDA_VISIBLE_DEVICES"])

@pytest.mark.requires(device="cuda", devices=9)
def test_nine():
    pass

@pytest.mark.requires(device="cuda", memory=">=100TiB")
def test_large():
    pass
"""

_KILLS_A_WORKER = '''
import os, pathlib, signal, time, pytest

REPLACED = pathlib.Path("replacement-has-run-a-case")

class Director:
    """gw1 is killed when its second case is over; gw0 waits after its first until a replacement has run one."""
    def __init__(self, worker):
        self.worker, self.seen = worker, 0
    def pytest_runtest_logfinish(self):
        self.seen += 1
        if self.worker == "gw1" and self.seen == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.worker == "gw0" and self.seen == 1:
            deadline = time.monotonic() + 60
            while not REPLACED.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        if self.worker not in ("gw0", "gw1"):
            REPLACED.touch()

def pytest_configure(config):
    told = getattr(config, "workerinput", {})
    if "harness_context" in told:
        config.pluginmanager.register(Director(told["workerid"]))
'''


def _project(folder: Path) -> Project:
    project = Project(folder / "project")
    project.write("suites/gpu/test_gpu.py", _CASES)
    return project


def _environment(library: Path, **more: Any) -> dict[str, str | None]:
    mask = more.pop("mask", None)
    names = ("LD_LIBRARY_PATH",)
    made = fake_nvml.environment(library, **more)
    chosen = {name: value for name, value in made.items() if name in names or name.startswith("FAKE_NVML_")}
    # torch does not know these GPUs, so health checks would find them sick; test_sick_devices.py has a torch that does.
    return {**chosen, "CUDA_VISIBLE_DEVICES": mask, "HARNESS_HEALTH": "0"}


def _seen(result: Result, name: str = "test_one") -> dict[str, set[tuple[str, ...]]]:
    """Return what the cases of each worker saw, after checking it against the devices in the journal."""
    seen: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for line in result.lines:
        if line["event"] == "finish" and f"::{name}" in line["case"]:
            devices = tuple(line["devices"])
            assert line["stdout"].strip() == f"sees {','.join(devices)}"
            seen[line["worker"]].add(devices)
    return seen


def test_each_worker_has_a_gpu_of_its_own_and_its_cases_see_that_one(tmp_path: Path, library: Path) -> None:
    result = _project(tmp_path).run("-n", "auto", env=_environment(library))
    assert result.status == 0, result.tail()
    assert "created: 8/8 workers" in result.terminal
    seen = _seen(result)
    assert all(len(devices) == 1 for devices in seen.values()), seen
    (bound,) = zip(*[next(iter(devices)) for devices in seen.values()], strict=True)
    assert len(set(bound)) == len(bound), seen
    assert all(uuid.startswith("GPU-") for uuid in bound)


@pytest.mark.nightly
def test_an_outer_mask_bounds_workers_and_devices(tmp_path: Path, library: Path) -> None:
    result = _project(tmp_path).run("-n", "auto", env=_environment(library, mask="5,2"))
    assert result.status == 0, result.tail()
    assert "created: 2/2 workers" in result.terminal
    listed = next(line for line in result.lines if line["event"] == "run")["devices"]
    assert len(listed) == 2
    assert {devices for worker in _seen(result).values() for devices in worker} <= {(uuid,) for uuid in listed}
    (pair,) = next(iter(_seen(result, "test_two").values()))
    assert sorted(pair) == sorted(listed)


def test_an_empty_mask_leaves_the_cpu(tmp_path: Path, library: Path) -> None:
    result = _project(tmp_path).run("-n", "0", env=_environment(library, mask=""))
    assert result.status == 5
    assert set(result.verdicts.values()) == {"gated"}
    assert "27 gated" in result.terminal


_SEES = """
import os

def test_it():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
"""


@pytest.mark.parametrize("mode", ["batch", "none"])
def test_a_run_on_the_cpu_hides_the_gpus(tmp_path: Path, library: Path, mode: str) -> None:
    project = _project(tmp_path)
    project.write("suites/cpu/test_cpu.py", _SEES)
    arguments = ("-n0", "--device=cpu", f"--isolation={mode}")
    result = project.run(*arguments, suites="suites/cpu", env=_environment(library))
    assert result.status == 0, result.tail()
    assert "harness: devices CPU;" in result.terminal
    assert next(line for line in result.lines if line["event"] == "run")["devices"] == ["cpu"]


def test_a_run_on_gpus_says_so_where_it_is_reproduced(tmp_path: Path, library: Path) -> None:
    project = _project(tmp_path)
    project.write("suites/cpu/test_cpu.py", _SEES)
    result = project.run("-n0", "--device=cuda", suites="suites/cpu", env=_environment(library, mask="3"))
    assert result.status == 1, result.tail()
    (finish,) = (line for line in result.lines if line["event"] == "finish")
    assert finish["reproduce"].startswith("CUDA_VISIBLE_DEVICES=GPU-")
    assert " --device=cuda --seed=" in finish["reproduce"]


def test_what_the_machine_lacks_is_gated_with_what_was_wanted_and_found(tmp_path: Path, library: Path) -> None:
    result = _project(tmp_path).run("-n0", "-k", "nine or large or two", env=_environment(library))
    gates = {line["case"].split("::")[-1]: line["gate"] for line in result.lines if line.get("gate")}
    assert set(gates) == {"test_nine", "test_large"}
    assert gates["test_nine"]["capability"] == "devices"
    assert "9" in gates["test_nine"]["wanted"]
    assert gates["test_nine"]["found"].startswith("8")
    assert gates["test_large"]["wanted"] == ">=100TiB"
    assert gates["test_large"]["found"].endswith("GiB")


def test_a_replacement_worker_gets_the_device_that_was_freed(tmp_path: Path, library: Path) -> None:
    project = _project(tmp_path)
    project.write("conftest.py", _KILLS_A_WORKER)
    result = project.run("-n2", "--dist=load", env=_environment(library, mask="0,1"))
    assert result.status == 1, result.tail()
    seen = _seen(result)
    replacements = set(seen) - {"gw0", "gw1"}
    assert replacements, f"the worker was not replaced:\n{result.tail()}"
    assert all(seen[worker] == seen["gw1"] for worker in replacements)
    assert seen["gw0"] != seen["gw1"]
    assert "FINDING worker: worker gw1 died" in result.terminal


def test_a_lost_gpu_gets_no_worker_and_is_reported(tmp_path: Path, library: Path) -> None:
    result = _project(tmp_path).run("-n", "auto", "-k", "test_one", env=_environment(library, gpus=3, lost=[1]))
    assert "created: 2/2 workers" in result.terminal
    assert result.status == 0, result.tail()
    environment = (result.run_dir / "environment.json").read_text()
    assert "GPU is lost" in environment
