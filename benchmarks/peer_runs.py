"""The runs of TorchCTS and of `suites/operators` that benchmarks compare: commands, folders and environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "torchcts==0.4.1"
ROOT = Path(__file__).resolve().parent.parent

#: The operators and types that TorchCTS checks in this run, on the CPU or the software device. Other operators are not
#: probed during the collection, which takes minutes for all of them.
_MANIFEST = """
import importlib.util
from pathlib import Path

import torch
from torch.testing._internal.common_methods_invocations import op_db

template = Path(__file__).with_name("templates") / "manifest.complete.py"
spec = importlib.util.spec_from_file_location("_complete", template)
complete = importlib.util.module_from_spec(spec)
spec.loader.exec_module(complete)
manifest = complete.manifest
types = {types!r}
manifest["device_name"] = {device!r}
manifest["backend_import"] = {module!r}
manifest["supported_dtypes"] = {{each: str(each)[6:] in types for each in manifest["supported_dtypes"]}}
manifest["skip_ops"] = sorted({{each.name for each in op_db}} - {operators!r})
"""

#: The module that TorchCTS imports for the software device.
_SOFT = """
from harness.sim.softdevice import build

build.load_software_device(build.build_softdevice())
"""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to check operators: a command without the cases, their folder, and additional environment variables."""

    name: str
    command: tuple[str, ...]
    folder: Path
    more: dict[str, str] = field(default_factory=dict)

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of a run: without the caller's settings of Python, pytest and the harness."""
        settings = ("PYTHON", "PYTEST_", "HARNESS_", "TORCHCTS", "PEERS_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(settings) or k == "HARNESS_CACHE_DIR"}
        return {**kept, **self.more, **variables}


def install(folder: Path, package: Path | None) -> Path:
    """Install TorchCTS into a folder, without its dependencies: this torch runs it. Return the package's folder.

    Its nodes are named by their location below the package, and a child process of ``--subprocess-per-test`` finds its
    node and its manifest only in the current folder, so each run has its own copy of the package as current folder.
    """
    place = folder / "torchcts"
    if package is not None:
        shutil.copytree(package, place)
    else:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), PACKAGE]
        subprocess.run(command, check=True)
    (place / "pytest.ini").write_text("[pytest]\n")
    (place / "peers_soft.py").write_text(_SOFT)
    return place


def declare(place: Path, device: str, operators: Sequence[str], types: Sequence[str]) -> None:
    """Write the manifest of TorchCTS."""
    module = "peers_soft" if device == "soft" else None
    text = _MANIFEST.format(types=set(types), device=device, module=module, operators=set(operators))
    (place / "manifest.py").write_text(text)


def theirs(place: Path, device: str, *, isolated: bool) -> Way:
    """Return TorchCTS's way: all nodes in one process, or each node in its own process."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short", "-p", "no:warnings"]
    command += ["--device", device, "--level", "8", "--known-segfault-policy", "off"]
    command += ["--results-dir", str(place.parent / "results")]
    if isolated:
        command.append("--subprocess-per-test")
    paths = (place.parent, place, ROOT, Path(__file__).parent)
    more = {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TORCHCTS_NON_INTERACTIVE": "1",
        "PEERS_PEER": "1",
    }
    return Way(f"TorchCTS, {'a process per node' if isolated else 'one process'}", tuple(command), place, more)


#: The files of TorchCTS that take their samples from torch's catalogue of operators, as `suites/operators` does.
THEIR_FILES = ("opinfo/test_opinfo_forward.py", "opinfo/test_opinfo_backward.py")


def clean(folder: Path) -> None:
    """Remove the files of earlier runs: each run of the harness has its own folder."""
    for each in (folder / "ours", folder / "peer" / "results"):
        shutil.rmtree(each, ignore_errors=True)


def ours(mode: str, device: str, folder: Path) -> Way:
    """Return the harness's way with an isolation mode."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-n0", f"--isolation={mode}"]
    command += ["--device", device, f"--results-dir={folder / 'ours'}"]
    return Way(f"operators, {mode}", tuple(command), ROOT, {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}"})


def their_name(operator: str) -> str:
    """Return the name of an operator without its variant: TorchCTS checks the first variant of each name."""
    parts = operator.split(".")
    long = 3 if operator.startswith("nn.functional.") else 2
    prefixes = ("nn.", "linalg.", "fft.", "special.", "masked.", "torch.", "signal.")
    return ".".join(parts[: long if operator.startswith(prefixes) else 1])


def our_cases(operators: Sequence[str], groups: Sequence[str]) -> list[str]:
    """Return the ids of the existing cases of values, for groups of types, and of gradients."""
    sys.path.insert(0, str(ROOT))
    from suites.operators.catalogue import entries

    found = []
    for entry in entries():
        if entry.name in operators:
            values = [group for group in groups if group in entry.groups]
            found += [f"suites/operators/test_values.py::test_values[{entry.name}-{group}]" for group in values]
            if "gradients" in entry.aspects:
                found.append(f"suites/operators/test_gradients.py::test_gradients[{entry.name}]")
    return found
