"""The wheel in its own environment, outside any checkout: it has the suites, and all files that the package reads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NEEDED = ("harness", "suites", "configs", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
_OMITTED = shutil.ignore_patterns("__pycache__", "bundle")

#: Runs ``harness`` with the arguments, and returns its output.
Harness = Callable[..., str]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built from a copy, since a build leaves folders behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in _NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=_OMITTED)
        else:
            shutil.copy(ROOT / name, source / name)
    _checked([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(source)])
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def harness(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    """Return the command of an environment with the wheel; its dependencies come from this environment."""
    folder, here = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("elsewhere")
    _checked([sys.executable, "-m", "venv", str(folder)])
    python = folder / "bin" / "python"
    packages = Path(_checked([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _checked([str(python), "-m", "pip", "install", "-q", "--no-deps", str(wheel)])
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(here), "CUDA_VISIBLE_DEVICES": ""}

    def run(*arguments: str, status: int = 0) -> str:
        return _checked([str(folder / "bin" / "harness"), *arguments], status, cwd=here, env=environment)

    return run


def _checked(command: list[str], status: int = 0, *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_wheel_has_every_file_of_the_package_and_the_suites(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = {path.relative_to(ROOT).as_posix() for path in (ROOT / "harness").rglob("*") if path.is_file()}
    bundled = {
        f"harness/bundle/{path.relative_to(ROOT).as_posix()}"
        for folder in ("suites", "configs")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    wanted = {name for name in ours | bundled if "__pycache__" not in name} | {"harness/bundle/pyproject.toml"}
    assert packed == wanted


@pytest.mark.nightly
def test_an_installed_wheel_runs_suites_and_its_reproduce_lines_name_them(harness: Harness) -> None:
    reported = harness(
        "run", "suites/streams/test_on_cpu.py", "suites/autograd/test_grad_modes.py", "-n0", "--results-dir=run"
    )
    assert "rootdir: " in reported
    assert "/harness/bundle" in reported
    assert " passed" in reported
    assert "suites/streams/test_on_cpu.py::" in harness("report", "json", "run")
    assert "suites/streams/test_on_cpu.py::" in harness("catalog", "suites/streams/test_on_cpu.py", "--format", "json")


@pytest.mark.nightly
def test_a_suite_that_does_not_exist_is_named(harness: Harness) -> None:
    harness("run", "suites/strems", status=4)


@pytest.mark.nightly
def test_an_installed_wheel_does_what_a_checkout_does(harness: Harness) -> None:
    """The fast profile, the software device with a fault, the catalogue, and evidence work."""
    assert " passed" in harness("run", "-n2", "--profile=smoke", "--results-dir=smoke")
    fault = ["--device=soft", "--inject=wait_ignored", "--results-dir=soft"]
    reported = harness("run", "suites/streams/test_streams.py", "-n2", *fault, status=1)
    assert "FAILED suites/streams/test_streams.py::" in reported
    assert "suites/streams/test_on_cpu.py" in harness("catalog")
    harness("package", "smoke", "-o", "evidence.tar")
    harness("verify", "evidence.tar")
