"""The wheels of a kit: the harness, its dependencies except torch, and pip to unpack them. Uses pip."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from harness.core.errors import HarnessError

PROJECT = "gpu-conformance-harness"
#: The minor version of the oldest glibc 2 that has wheels for Python 3.11 and later.
_OLDEST_MINOR = 17
#: The requirement that the machine must already have installed.
GIVEN = "torch"


class WheelError(HarnessError):
    """pip could not get or build a wheel."""


def collect_wheels(root: Path, folder: Path, *, python: str, platforms: Sequence[str]) -> None:
    """Put all wheels into `folder`. `root`: the checkout of this project.

    `python` is a version such as ``3.12``; `platforms` are wheel tags, such as ``manylinux_2_28_x86_64``, or empty for
    this machine. Raise WheelError.
    """
    wanted = [*needed_requirements(root), "pip"]
    limits = folder / "constraints.txt"
    limits.write_text("\n".join([*constraints(root), ""]), encoding="utf-8")
    target = [
        "--only-binary=:all:",
        f"--python-version={python}",
        *(f"--platform={platform}" for platform in accepted(platforms)),
    ]
    try:
        _pip("download", *target, "--constraint", str(limits), "--dest", str(folder), *wanted)
    finally:
        limits.unlink()
    with tempfile.TemporaryDirectory(prefix="harness-build-") as temp:
        # A build leaves folders beside its sources, and would pack their contents the next time.
        source = Path(temp, "source")
        shutil.copytree(root / "harness", source / "harness", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(root / name, source)
        _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(source))


def accepted(platforms: Sequence[str]) -> list[str]:
    """Return the platforms, with the older ones whose wheels they accept. pip itself accepts only the given platforms.

    A machine of ``manylinux_2_28_x86_64`` accepts wheels of ``manylinux_2_17_x86_64``, which is
    ``manylinux2014_x86_64``.
    """
    tags = list(platforms)
    for platform in platforms:
        if match := re.fullmatch(r"manylinux_2_(\d+)_(\w+)", platform):
            newest, machine = int(match[1]), match[2]
            tags += [f"manylinux_2_{minor}_{machine}" for minor in range(newest - 1, _OLDEST_MINOR - 1, -1)]
    return list(dict.fromkeys(tags))


def needed_requirements(root: Path) -> list[str]:
    """Return the requirements of the project in `root`, without torch and extras. Raise WheelError if it is not a
    checkout.
    """
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        project = {}
    if project.get("name") != PROJECT:
        raise WheelError(f"{str(root)!r} is no checkout of {PROJECT}: run the command there, or name it with --root")
    requirements = [Requirement(text) for text in project["dependencies"]]
    return [str(requirement) for requirement in requirements if requirement.name != GIVEN]


def least_torch(root: Path) -> str:
    """Return the oldest release of torch that the project in `root` accepts."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    torch = next(requirement for text in project["dependencies"] if (requirement := Requirement(text)).name == GIVEN)
    return next(clause.version for clause in torch.specifier if clause.operator == ">=")


def constraints(root: Path) -> list[str]:
    """Return the pinned versions of the project in `root`, without torch."""
    path = root / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [line for line in lines if not line.startswith(f"{GIVEN}==")]


def _pip(*arguments: str) -> None:
    try:
        importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise WheelError(f"{sys.executable} has no pip: install it, for example with: python -m ensurepip") from None
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
        raise WheelError(f"pip {arguments[0]} failed: {' '.join(last) or f'exit status {done.returncode}'}")
