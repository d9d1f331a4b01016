"""Make a kit: a tar file with wheels, suites, configuration, and the script that runs them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import __version__
from harness.core.errors import convert_to_write_error
from harness.journal.environment import git_state
from harness.tools.kit import wheels

#: The folder in the tar file.
FOLDER = "gpu-conformance-kit"
MANIFEST = "kit.json"
#: Folders and files of the checkout that are in a kit.
_TAKEN = ("suites", "configs", "docs", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")
_PROGRAMS = ("run.sh", "start.py")


@dataclass(frozen=True, slots=True)
class Kit:
    """A finished kit. `size`: in bytes. `wheels`: the names of its wheels."""

    path: Path
    size: int
    wheels: tuple[str, ...]


def make_kit(root: Path, out: Path, *, python: str, platforms: Sequence[str] = ()) -> Kit:
    """Make a kit of the checkout `root`, for this version of Python. `platforms`: see `collect_wheels`.

    Raise WheelError, WriteError.
    """
    wheels.needed_requirements(root)  # raises for another project, before anything is built
    with tempfile.TemporaryDirectory(prefix="harness-kit-") as temp:
        folder = Path(temp)
        wheels.collect_wheels(root, folder, python=python, platforms=platforms)
        files = {
            **{f"wheels/{path.name}": path for path in sorted(folder.iterdir())},
            **{name: Path(__file__).with_name(name) for name in _PROGRAMS},
            **dict(_taken(root)),
        }
        manifest = _manifest(root, files, python, _machine(platforms))
        with convert_to_write_error(repr(str(out))):
            _write(out, files, json.dumps(manifest, indent=2).encode() + b"\n")
        names = tuple(name.partition("/")[2] for name in files if name.startswith("wheels/"))
    return Kit(out, out.stat().st_size, names)


def _taken(root: Path) -> Iterator[tuple[str, Path]]:
    for name in _TAKEN:
        path = root / name
        if path.is_file():
            yield name, path
            continue
        for parent, folders, names in os.walk(path):
            folders[:] = sorted(folder for folder in folders if folder != "__pycache__" and not folder.startswith("."))
            for file_name in sorted(names):
                file = Path(parent, file_name)
                if not file_name.startswith(".") and file.is_file() and not file.is_symlink():
                    yield file.relative_to(root).as_posix(), file


def _manifest(root: Path, files: Mapping[str, Path], python: str, machine: str) -> dict[str, Any]:
    git = git_state(root)
    return {
        "kit": 1,
        "version": __version__,
        "commit": git["commit"],
        "dirty": git["dirty"],
        "python": python,
        "machine": machine,
        "torch": wheels.least_torch(root),
        "files": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()},
    }


def _machine(platforms: Sequence[str]) -> str:
    """Return the machine type, in the words of `uname -m`, for tags such as ``manylinux_2_28_x86_64``."""
    if not platforms:
        return platform.machine()
    return next(
        (name for name in ("x86_64", "aarch64", "ppc64le", "s390x") if platforms[0].endswith(f"_{name}")),
        platforms[0],
    )


def _write(out: Path, files: Mapping[str, Path], manifest: bytes) -> None:
    """Write the tar file. Equal files give equal bytes: names in order, no times, no owners."""
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, MANIFEST, manifest, executable=False)
        for name, path in sorted(files.items()):
            _add(tar, name, path.read_bytes(), executable=name == "run.sh")


def _add(tar: tarfile.TarFile, name: str, data: bytes, *, executable: bool) -> None:
    entry = tarfile.TarInfo(f"{FOLDER}/{name}")
    entry.size = len(data)
    entry.mode = 0o755 if executable else 0o644
    tar.addfile(entry, io.BytesIO(data))
