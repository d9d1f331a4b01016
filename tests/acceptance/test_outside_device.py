"""Whole runs on an out-of-tree device: a package in a temporary folder. No other file knows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.project import Project, Result
from tests.outside.package import environment, install

pytestmark = pytest.mark.acceptance

_CASES = """
import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch

import harness

@pytest.fixture
def children():
    \"\"\"The helper of the shipped suites that starts interpreters.\"\"\"
    path = Path(harness.__file__).parents[1] / "suites" / "children.py"
    spec = importlib.util.spec_from_file_location("children", path)
    sys.modules["children"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["children"]

@pytest.mark.requires(accelerator=True)
def test_a_sum(device):
    assert str(device) == "npu:0"
    assert (torch.zeros(3, device=device) + 1).cpu().tolist() == [1, 1, 1]

@pytest.mark.requires(device="npu")
def test_sees_its_own_device(device, case_seed):
    print("sees", os.environ.get("NPU_VISIBLE_DEVICES"), torch.accelerator.device_count())
    assert torch.npu.seed == case_seed

@pytest.mark.requires(device="npu")
def test_in_an_interpreter(device, children):
    ended = children.run("import torch; print(torch.zeros(2, device=DEVICE).cpu().tolist())", device)
    assert ended.lines() == ["[0.0, 0.0]"]
    ended = children.run("import torch; print(torch.accelerator.is_available())", environ=children.HIDDEN)
    assert ended.lines() == ["False"]

@pytest.mark.requires(device="cuda")
def test_is_of_cuda():
    pass

@pytest.mark.requires(accelerator=True, devices=2)
def test_wants_two(device):
    assert torch.accelerator.device_count() == 2

@pytest.mark.requires(accelerator=True)
def test_fails(device):
    assert torch.zeros(1, device=device).item() == 1

def test_of_the_host():
    assert torch.ones(2).sum() == 2
"""
_ID = "suites/npu/test_npu.py::"


def _run(project: Project, folder: Path, *arguments: str, **flaws: str) -> Result:
    project.write("suites/npu/test_npu.py", _CASES)
    return project.run("--device=npu", "--no-health", *arguments, env=environment(folder, **flaws), cold=True)


def _verdicts(**changed: str) -> dict[str, str]:
    usual = {
        "test_a_sum": "passed",
        "test_sees_its_own_device": "passed",
        "test_in_an_interpreter": "passed",
        "test_is_of_cuda": "gated",
        "test_wants_two": "passed",
        "test_fails": "failed",
        "test_of_the_host": "passed",
    }
    return {f"{_ID}{name}": outcome for name, outcome in (usual | changed).items()}


def test_the_name_alone(make_project: MakeProject, tmp_path: Path) -> None:
    """A package that registers itself with torch needs no registration here."""
    folder = install(tmp_path / "site", registration=None)
    result = _run(make_project(), folder, "-n0", "--isolation=batch", "-k", "not interpreter")
    wanted = _verdicts()
    del wanted[f"{_ID}test_in_an_interpreter"]  # which imports torch twice: see the registered device
    assert result.verdicts == wanted, result.tail()
    (failed,) = (line for line in result.lines if line["event"] == "finish" and line["case"].endswith("test_fails"))
    assert failed["devices"] == ["NPU-0"]
    assert "--device=npu" in failed["reproduce"]
    assert "wanted cuda, found npu" in result.terminal
    assert "npu" in str(result.lines[0]["label"])


@pytest.mark.nightly
def test_a_registration_shows_each_worker_its_own_device(make_project: MakeProject, tmp_path: Path) -> None:
    """The entry point names the mask: each of two workers of ``-n auto`` has one device, and a wide case has both."""
    folder = install(tmp_path / "site")
    result = _run(make_project(), folder, "-nauto", "--slots=1")
    assert result.verdicts == _verdicts(), result.tail()
    environment_file = json.loads((result.run_dir / "environment.json").read_text())
    assert [each["uuid"] for each in environment_file["devices"]] == ["NPU-0", "NPU-1"]
    seen = {line["stdout"] for line in result.lines if line["event"] == "finish" and line.get("stdout")}
    assert seen <= {"sees 0 1\n", "sees 1 1\n"}, seen


def test_a_file_registers_a_device(make_project: MakeProject, tmp_path: Path) -> None:
    """``--backend FILE`` imports the modules that the file names before the cases are collected."""
    folder = install(tmp_path / "site", registration=None, autoload=False)
    file = tmp_path / "npu.py"
    file.write_text(
        "from harness.backends.backend import Backend\n"
        "BACKEND = Backend('npu', modules=('npu_device',), hardware=False, label='NPU of a test')\n"
    )
    result = _run(make_project(), folder, "-n0", f"--backend={file}")
    assert result.verdicts == _verdicts(), result.tail()
    assert result.lines[0]["label"] == "NPU of a test"
    (failed,) = (line for line in result.lines if line["event"] == "finish" and line["case"].endswith("test_fails"))
    assert f"--backend={file}" in failed["reproduce"]
    assert not list(tmp_path.glob("harness-census-*")), "the census leaves no folder"


@pytest.mark.ways(
    ("flaw", "sentence"),
    [
        ("count", "--device=npu: device_count raises OSError('the driver does not answer')"),
        (
            "mask",
            "--device=npu: the mask NPU_VISIBLE_DEVICES does nothing: with NPU_VISIBLE_DEVICES=1 a process sees 2",
        ),
        ("early", "torch reports that npu is initialised"),
        ("statistic", "the statistic active_bytes.current is 'none', not a whole number"),
    ],
)
def test_a_wrong_registration_is_named_in_one_sentence(
    make_project: MakeProject, tmp_path: Path, flaw: str, sentence: str
) -> None:
    folder = install(tmp_path / "site")
    result = _run(make_project(), folder, "-n0", NPU_FLAW=flaw)
    assert sentence in " ".join(result.terminal.split()), result.tail()
    if flaw == "statistic":
        assert result.verdicts == _verdicts()
    else:
        assert result.status != 0
        assert "passed" not in result.counts if flaw == "early" else True


@pytest.mark.nightly
def test_a_device_that_dies_is_no_fault_of_a_case(make_project: MakeProject, tmp_path: Path) -> None:
    """The executor uses its device before the first case: no case is blamed if this ends the process."""
    folder = install(tmp_path / "site")
    result = _run(make_project(), folder, "-n0", NPU_FLAW="crash")
    assert result.status != 0
    assert "passed" not in result.verdicts.values(), result.tail()


def test_an_unknown_device_is_refused(make_project: MakeProject, tmp_path: Path) -> None:
    result = _run(make_project(), tmp_path, "-n0")
    assert result.status == 4
    assert "knows no device of the type 'npu': install the package" in " ".join(result.terminal.split())
