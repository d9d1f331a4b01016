"""`ci/offline.sh` and the steps of docs/driver-validation.md for a machine without network, as they stand there."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from harness import __version__
from tests.cli.commands import harness

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "ci" / "offline.sh"


def _steps() -> str:
    """Return the commands for the machine without network."""
    page = (ROOT / "docs" / "driver-validation.md").read_text(encoding="utf-8")
    section = page.partition("### A machine without network\n")[2].partition("\n## ")[0]
    (gather, steps) = re.findall(r"(?m)(?:^    .*\n)+", section)
    assert gather == "    ci/offline.sh wheels\n"
    return "".join(line.removeprefix("    ") for line in steps.splitlines(keepends=True))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return a Python with torch and torch's dependencies."""
    folder = tmp_path / "python"
    (folder / "only").mkdir(parents=True)
    names, wanted = set[str](), ["torch"]
    while wanted:
        name = wanted.pop()
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if name in names:
            continue
        names.add(name)
        needed = map(Requirement, found.requires or [])
        wanted += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
        for file in found.files or []:
            top = file.parts[0]
            path = Path(str(found.locate_file(top)))
            if top != ".." and path.exists() and not (folder / "only" / top).exists():
                (folder / "only" / top).symlink_to(path)
    venv.create(folder / "env", with_pip=False, symlinks=True)
    (site,) = (folder / "env" / "lib").glob("python3*/site-packages")
    (site / "only.pth").write_text(f"{folder / 'only'}\n")
    return folder / "env" / "bin" / "python"


def _without_network() -> list[str]:
    """Return the prefix of a command without network, not even a loopback; empty if that would need root."""
    words = ["unshare", "--net", "--"]
    if shutil.which(words[0]) is None:
        return []
    allowed = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return words if allowed else []


@pytest.mark.nightly
def test_the_suites_run_without_network_and_give_evidence(python: Path, tmp_path: Path) -> None:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "HARNESS_"))
    }
    wheels = tmp_path / "wheels"
    gathered = subprocess.run(
        [SCRIPT, wheels], env={**environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    assert gathered.returncode == 0, gathered.stderr
    names = {path.name.partition("-")[0] for path in wheels.iterdir()}
    assert {"pip", "pytest", "numpy", "cmake", "ninja", "gpu_conformance_harness"} <= names
    assert "torch" not in names
    assert not (ROOT / "build").exists()

    steps = _steps().replace("python3", str(python)).replace("-n auto --profile driver-validation", "-n1 --seed=7")
    steps = steps.replace("harness run", "harness run suites/serialization")
    done = subprocess.run(
        [*_without_network(), "bash", "-e", "-c", steps],
        cwd=tmp_path,
        env={**environ, "PIP_NO_INDEX": "1", "PIP_INDEX_URL": "http://127.0.0.1:9/"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    verified = harness("verify", str(tmp_path / "evidence.zip"))
    assert verified.returncode == 0, verified.stdout
    environment = json.loads((tmp_path / "results" / "new" / "environment.json").read_text())
    assert environment["versions"]["harness"] == __version__
    if (ROOT / ".git").exists():
        assert environment["git"]["reason"] == "from commit.json"
        assert environment["git"]["commit"] in verified.stdout
    sites = set(os.listdir(python.parents[1] / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"))
    assert sites == {"only.pth"}, "nothing is installed into the environment"


def test_the_folder_is_needed() -> None:
    done = subprocess.run([SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "ci/offline.sh: expected the folder for the wheels\n")
