"""A kit is built, and used without access to a package index, with a Python that has only torch."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from harness import __version__
from harness.cli.main import app
from harness.tools.kit import kit as kits
from harness.tools.kit import wheels

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kit") / "kit.tar"
    done = CliRunner().invoke(app, ["kit", "-o", str(path), "--root", str(ROOT)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"wrote {path}: ")
    return path


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with torch and torch's dependencies."""
    folder = tmp_path_factory.mktemp("python")
    (folder / "only").mkdir()
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


@pytest.mark.nightly
def test_what_is_in_a_kit(kit: Path) -> None:
    with tarfile.open(kit) as tar:
        names = tar.getnames()
        assert all(name.startswith(f"{kits.FOLDER}/") for name in names)
        assert {(entry.mtime, entry.uid, entry.gid, entry.uname) for entry in tar} == {(0, 0, 0, "")}
        assert tar.getmember(f"{kits.FOLDER}/run.sh").mode == 0o755
        file = tar.extractfile(f"{kits.FOLDER}/kit.json")
        assert file is not None
        manifest = json.load(io.TextIOWrapper(file))
    files = {name.removeprefix(f"{kits.FOLDER}/") for name in names} - {"kit.json"}
    assert set(manifest["files"]) == files
    assert manifest["torch"] == "2.11"
    distributions = {name.removeprefix("wheels/").partition("-")[0] for name in files if name.startswith("wheels/")}
    assert {"pip", "pytest", "numpy", "cmake", "ninja", "gpu_conformance_harness"} <= distributions
    assert "torch" not in distributions
    assert {"suites/streams/test_events.py", "configs/profiles/smoke.yaml", "pyproject.toml"} <= files
    assert not [name for name in files if "__pycache__" in name or name.startswith("tests/")]
    assert not (ROOT / "build").exists()


def without_network() -> list[str]:
    """Return the prefix of a command without network, not even a loopback; empty if that would need root."""
    words = ["unshare", "--net", "--"]
    if shutil.which(words[0]) is None:
        return []
    allowed = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return words if allowed else []


@pytest.mark.nightly
def test_it_runs_without_network_and_gives_evidence(kit: Path, python: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "xf", str(kit)], cwd=tmp_path, check=True)
    folder = tmp_path / kits.FOLDER
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "HARNESS_"))
    }
    environ |= {"PYTHON": str(python), "PIP_NO_INDEX": "1", "PIP_INDEX_URL": "http://127.0.0.1:9/"}
    started = [*without_network(), str(folder / "run.sh")]
    command = [*started, "suites/serialization", "-n1", "--seed=7", "--results-dir=out"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (evidence,) = folder.glob("evidence-*.zip")
    assert f"kit: the evidence is {evidence}" in done.stdout
    verified = CliRunner().invoke(app, ["verify", str(evidence)])
    assert verified.exit_code == 0, verified.output
    environment = json.loads((folder / "out" / "environment.json").read_text())
    assert environment["versions"]["harness"] == __version__
    assert environment["git"]["reason"] in (None, "from kit.json")
    if environment["git"]["reason"] is not None:
        assert environment["git"]["commit"] in verified.output
    sites = set(os.listdir(python.parents[1] / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"))
    assert sites == {"only.pth"}, "nothing is installed into the environment"


def test_another_project_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    for folder in (tmp_path, tmp_path / "none"):
        done = CliRunner().invoke(app, ["kit", "-o", str(tmp_path / "kit.tar"), "--root", str(folder)])
        assert isinstance(done.exception, wheels.WheelError)
        assert "is no checkout of gpu-conformance-harness" in str(done.exception)
    assert not (tmp_path / "kit.tar").exists()


@pytest.mark.parametrize("version", ["3", "312", "3.12.1", "py3"])
def test_a_version_that_is_none_is_refused(tmp_path: Path, version: str) -> None:
    done = CliRunner().invoke(app, ["kit", "-o", str(tmp_path / "kit.tar"), "--python", version])
    assert done.exit_code == 4
    assert "expected a version such as 3.12" in " ".join(done.output.split())


def test_wheels_for_older_platforms_are_taken_too() -> None:
    assert wheels.accepted(["manylinux_2_19_aarch64"]) == [
        "manylinux_2_19_aarch64",
        "manylinux_2_18_aarch64",
        "manylinux_2_17_aarch64",
    ]
    assert wheels.accepted([]) == []
    assert wheels.accepted(["manylinux2014_x86_64", "any"]) == ["manylinux2014_x86_64", "any"]


def test_wheels_that_do_not_exist_are_said(tmp_path: Path) -> None:
    with pytest.raises(wheels.WheelError, match=r"^pip download failed: ERROR: "):
        wheels.collect_wheels(ROOT, tmp_path, python="3.12", platforms=["solaris_11_sparc"])
