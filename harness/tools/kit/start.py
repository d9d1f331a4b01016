"""Unpack the wheels of a kit, run the suites with the current Python, and pack the result.

The script stands beside kit.json in a kit. It needs only Python and an installed torch: the wheels go into the folder
``site`` of the kit, and nothing is installed into the environment. See docs/kit.md.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_SITE = HERE / "site"
_COMPLETE = ".complete"
_EXIT_UNUSABLE = 4


class KitError(Exception):
    """The kit cannot be used here. The text gives the reason and the next step."""


def main(arguments: list[str]) -> int:
    """Run the suites with these pytest arguments. Return pytest's exit status; 4 if the kit cannot be used here."""
    try:
        kit = json.loads((HERE / "kit.json").read_text(encoding="utf-8"))
        check_machine(kit, python=platform.python_version(), machine=platform.machine(), torch=torch_version())
        changed = check_files(kit, HERE)
        install(kit)
    except KitError as error:
        print(f"kit: {error}", file=sys.stderr)
        return _EXIT_UNUSABLE
    for name in changed:
        print(f"kit: {name} has changed since the kit was made", file=sys.stderr)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    run_dir = _results_dir(arguments) or Path("results") / stamp
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_SITE), environ.get("PYTHONPATH")]))
    paths = [] if any(_is_path(argument) for argument in arguments) else ["suites/"]
    command = [sys.executable, "-m", "pytest", *paths, "-n", "auto", f"--results-dir={run_dir}", *arguments]
    status = subprocess.run(command, cwd=HERE, env=environ, check=False).returncode
    if (HERE / run_dir / "journal.ndjson").is_file():
        _package(run_dir, HERE / f"evidence-{_host()}-{stamp}.zip", environ)
    return status


def check_machine(kit: dict[str, Any], *, python: str, machine: str, torch: str | None) -> None:
    """Raise KitError if the kit is for another Python or another machine, or if torch is missing or too old."""
    wanted = str(kit["python"])
    if python.split(".")[:2] != wanted.split("."):
        raise KitError(
            f"this kit is for Python {wanted}, and {sys.executable} is {python}: set PYTHON to a Python {wanted} that "
            f"has torch, or make a kit with: harness kit --python {'.'.join(python.split('.')[:2])}"
        )
    if machine != kit["machine"]:
        raise KitError(f"this kit is for machines of type {kit['machine']}, and this one is {machine}")
    if torch is None:
        raise KitError(f"{sys.executable} has no torch: set PYTHON to the Python that has it")
    if _numbers(torch) < _numbers(str(kit["torch"])):
        raise KitError(f"{sys.executable} has torch {torch}: expected {kit['torch']} or newer")


def check_files(kit: dict[str, Any], folder: Path) -> list[str]:
    """Return the names of files that have changed. Raise KitError if a wheel is missing or damaged."""
    changed = []
    for name, digest in kit["files"].items():
        path = folder / name
        actual = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        if actual == digest:
            continue
        if name.startswith("wheels/"):
            raise KitError(f"{name} is {'missing' if actual is None else 'damaged'}: unpack the kit again")
        changed.append(name)
    return changed


def install(kit: dict[str, Any]) -> None:
    """Unpack the wheels into the folder ``site``, once. Raise KitError."""
    mark = _SITE / _COMPLETE
    wanted = json.dumps({name: digest for name, digest in kit["files"].items() if name.startswith("wheels/")})
    if mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
        return
    shutil.rmtree(_SITE, ignore_errors=True)
    wheels = sorted((HERE / "wheels").glob("*.whl"))
    pip = next((path for path in wheels if path.name.startswith("pip-")), None)
    if pip is None:
        raise KitError("there is no wheel of pip in wheels/: make the kit again")
    others = [str(path) for path in wheels if path != pip]
    options = ["--no-index", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, str(pip / "pip"), "install", *options, "--target", str(_SITE), *others]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise KitError(f"the wheels could not be unpacked into {_SITE} (pip ended with {done.returncode})")
    mark.write_text(wanted, encoding="utf-8")


def torch_version() -> str | None:
    """Return the version of torch that this Python has, without importing it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(run_dir: Path, evidence: Path, environ: dict[str, str]) -> None:
    command = [sys.executable, "-m", "harness.cli", "package", str(run_dir), "-o", str(evidence)]
    if subprocess.run(command, cwd=HERE, env=environ, check=False).returncode:
        print(f"kit: there is no evidence, for the reasons above; the run is in {HERE / run_dir}", file=sys.stderr)
    else:
        print(f"kit: the evidence is {evidence}")


def _results_dir(arguments: list[str]) -> Path | None:
    for number, argument in enumerate(arguments):
        flag, separator, value = argument.partition("=")
        if flag in ("--results-dir", "--harness-results-dir"):
            value = value if separator else "".join(arguments[number + 1 : number + 2])
            return Path(value) if value else None
    return None


def _is_path(argument: str) -> bool:
    return not argument.startswith("-") and argument.partition("::")[0].rstrip("/").split("/")[0] == "suites"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", platform.node()) or "host"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
