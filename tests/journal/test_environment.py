"""environment.json has the facts of this machine, and no secrets."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from harness.devices.device import CPU, Device, Inventory
from harness.journal import environment

GPU = Device(uuid="GPU-1", kind="cuda", name="H200", index=0, memory=2**37, compute_capability=(9, 0), ecc=True)


def test_facts_of_this_machine(tmp_path: Path) -> None:
    inventory = Inventory(devices=(GPU,), hidden=(CPU,), driver="570.1", cuda_driver="12.8", notes=("a note",))
    facts = environment.collect_environment(
        inventory, argv=["pytest", "\udc80"], seed=3, isolation="batch", rootdir=tmp_path, environ={"CUDA_A": "1"}
    )
    path = environment.write_environment(tmp_path, facts)
    assert path == tmp_path / "environment.json"
    assert facts["software_device"] is None
    read = json.loads(path.read_bytes())
    assert read["host"] == platform.node()
    assert read["usable_cpus"] == len(os.sched_getaffinity(0))
    assert read["memory"] > 2**20
    assert read["devices"][0]["uuid"] == "GPU-1"
    assert read["devices"][0]["memory"] == 2**37
    assert read["devices"][0]["compute_capability"] == [9, 0]
    assert [device["uuid"] for device in read["hidden_devices"]] == ["cpu"]
    assert (read["driver"], read["cuda_driver"], read["nvml_error"], read["notes"]) == (
        "570.1",
        "12.8",
        None,
        ["a note"],
    )
    assert read["versions"]["torch"] == importlib.metadata.version("torch")
    assert read["versions"]["pytest"] == pytest.__version__
    assert read["versions"]["python"] == platform.python_version()
    assert read["command"] == ["pytest", "\\udc80"]
    assert (read["seed"], read["isolation"], read["rootdir"]) == (3, "batch", str(tmp_path))
    assert read["environment"] == {"CUDA_A": "1"}


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from pathlib import Path; from harness.journal import environment;"
        "from harness.devices.device import CPU, Inventory;"
        "environment.collect_environment(Inventory((CPU,)), argv=[], seed=0, isolation='none', rootdir=Path('.'));"
        "sys.exit('torch was imported' if 'torch' in sys.modules else None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_only_named_variables_are_recorded_and_no_secrets() -> None:
    environ = {
        "CUDA_VISIBLE_DEVICES": "0",
        "TORCH_LOGS": "\udc80",
        "PYTORCH_CUDA_ALLOC_CONF": "x",
        "NVIDIA_API_KEY": "sesame",
        "TORCH_HUB_TOKEN": "sesame",
        "MKL_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "2",
        "OMP_NUM_THREADS_MORE": "no",
        "AWS_SECRET_ACCESS_KEY": "sesame",
        "MY_CUDA_THING": "no",
        "TRITON_CACHE_URL": "redis://user:sesame@cache:6379/0",
        "TORCH_ODD": "glpat-sesame0123456789abcd",
        "HOME": "/root",
    }
    recorded = environment.recorded_variables(environ)
    assert recorded == {
        "CUDA_VISIBLE_DEVICES": "0",
        "MKL_NUM_THREADS": "1",
        "NVIDIA_API_KEY": "(set, not recorded)",
        "OMP_NUM_THREADS": "2",
        "PYTORCH_CUDA_ALLOC_CONF": "x",
        "TORCH_HUB_TOKEN": "(set, not recorded)",
        "TORCH_LOGS": "\\udc80",
        "TORCH_ODD": "(secret)",
        "TRITON_CACHE_URL": "redis://(secret)@cache:6379/0",
    }
    assert "sesame" not in json.dumps(recorded)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@x", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "case.py").write_text("one")
    git(tmp_path, "add", "case.py")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_commit_and_dirt(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a git hook: not the repository in question
    commit = subprocess.run(
        ["git", "--git-dir", str(repository / ".git"), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    (repository / "results").mkdir()
    (repository / "results" / "untracked").write_text("")
    clean = {"commit": commit, "dirty": False, "reason": None}
    assert environment.git_state(repository) == environment.git_state(repository / "results") == clean
    (repository / "case.py").write_text("two")
    assert environment.git_state(repository) == {"commit": commit, "dirty": True, "reason": None}


def test_why_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = environment.git_state(tmp_path)
    (tmp_path / "commit.json").write_text('{"commit": "abc", "dirty": false}')
    assert environment.git_state(tmp_path) == {"commit": "abc", "dirty": False, "reason": "from commit.json"}
    for text in ("{", "[]", '{"commit": 1, "dirty": false}', "null"):
        (tmp_path / "commit.json").write_text(text)
        assert environment.git_state(tmp_path) == outside
    assert (outside["commit"], outside["dirty"]) == (None, None)
    assert "not a git repository" in outside["reason"]
    assert "git ended with status" in environment.git_state(tmp_path / "nowhere")["reason"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.git_state(tmp_path)["reason"] == "git could not be started (No such file or directory)"


def test_a_git_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_git = tmp_path / "git"
    fake_git.write_text("#!/bin/sh\nexec sleep 600\n")
    fake_git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(environment, "_GIT_TIMEOUT", 0.2)
    assert environment.git_state(tmp_path)["reason"] == "git did not finish within 0 s"


def test_a_software_device_says_what_it_was_built_with(tmp_path: Path) -> None:
    facts = environment.collect_environment(
        Inventory((Device(uuid="SOFT-0", kind="soft", name="soft (software device)"),)),
        argv=[],
        seed=0,
        isolation="batch",
        rootdir=tmp_path,
        environ={"SOFT_DEVICE_COUNT": "3"},
        software_device={"compiler": "g++ 12\udc80", "key": "abc", "library": "/cache/abc.so"},
    )
    assert facts["software_device"] == {"compiler": "g++ 12\\udc80", "key": "abc", "library": "/cache/abc.so"}
    assert [(device["kind"], device["name"]) for device in facts["devices"]] == [("soft", "soft (software device)")]
    assert facts["environment"] == {"SOFT_DEVICE_COUNT": "3"}
