"""Builds OpenReg, PyTorch's own example of an out-of-tree device, and runs suites on it.

    python -m benchmarks.openreg -- suites/streams -n2
    python -m benchmarks.openreg --source ~/pytorch -- suites/transfers

Source and build are kept in a separate folder; nothing is installed into this environment.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from harness.core.cache import cache_root

_REPOSITORY = "https://github.com/pytorch/pytorch"
_EXTENSION = "test/cpp_extensions/open_registration_extension/torch_openreg"
_REGISTRATION = Path(__file__).with_name("registration.py")


class OpenRegError(Exception):
    """OpenReg cannot be fetched or built; the text has the reason and the remedy."""


def main(arguments: list[str] | None = None) -> int:
    """Return pytest's exit status, or 2 if there is no OpenReg to run on."""
    parser = argparse.ArgumentParser(prog="benchmarks.openreg", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--source", type=Path, help="a checkout of PyTorch, or the folder torch_openreg; default: git")
    parser.add_argument("--work", type=Path, help="the folder for source and build; default: in the user's cache")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args(arguments)
    release = importlib.metadata.version("torch").partition("+")[0]
    try:
        work = (options.work or _default_folder()) / release
        source = _given(options.source) if options.source else _fetch(release, work / "pytorch")
        site = _build(source, work / "site")
    except OpenRegError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "pytest", "--device=openreg", f"--backend={_REGISTRATION}", *options.pytest]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


def _default_folder() -> Path:
    root = cache_root(os.environ)
    if root is None:
        raise OpenRegError("there is no home folder for source and build: name a folder with --work")
    return root / "openreg"


def _given(folder: Path) -> Path:
    for place in (folder / _EXTENSION, folder):
        if (place / "setup.py").is_file() and (place / "torch_openreg").is_dir():
            return place.resolve()
    raise OpenRegError(f"--source={folder}: expected a checkout of PyTorch with {_EXTENSION}, or that folder")


def _fetch(release: str, checkout: Path) -> Path:
    """Return the source of this release's OpenReg, from a clone that contains nothing else."""
    if not (checkout / _EXTENSION).is_dir():
        if checkout.exists():
            raise OpenRegError(f"{checkout} is a clone that was cut off: remove it and try again")
        checkout.parent.mkdir(parents=True, exist_ok=True)
        clone = ["clone", "--depth=1", "--filter=blob:none", "--sparse", f"--branch=v{release}", _REPOSITORY]
        _call(["git", *clone, str(checkout)], "get the source by hand, and use --source")
        _call(["git", "-C", str(checkout), "sparse-checkout", "set", _EXTENSION], f"remove {checkout} and try again")
    return _given(checkout)


def _build(source: Path, site: Path) -> Path:
    """Return a folder for Python's path that has OpenReg, built for the torch of this environment."""
    install = ["install", "--no-build-isolation", "--no-deps", "--upgrade", f"--target={site}", str(source)]
    _call([sys.executable, "-m", "pip", *install], "install what it lacks; it needs cmake and a C++ compiler")
    return site


def _call(command: list[str], advice: str) -> None:
    print(f"+ {' '.join(command)}", flush=True)
    try:
        status = subprocess.run(command, check=False).returncode
    except FileNotFoundError:
        raise OpenRegError(f"there is no {command[0]!r} here: {advice}") from None
    if status:
        raise OpenRegError(f"{command[0]!r} ended with status {status}: {advice}")


if __name__ == "__main__":
    sys.exit(main())
