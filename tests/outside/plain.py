"""Compiles the device of ``plain_device`` and installs its package into a folder, as a wheel of it would.

``python -m tests.outside.plain FOLDER`` does so by hand; a process with ``PYTHONPATH=FOLDER`` then has the device.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

_REGISTRATION = """
from harness.backends.backend import Backend

BACKEND = Backend("plain", host_kernels=True)
"""
_SOURCE = Path(__file__).with_name("plain_device")


def install(folder: Path) -> Path:
    """Write the package ``plain_device`` and its metadata into `folder`. torch imports it by its entry point."""
    package, metadata = folder / "plain_device", folder / "plain_device-1.0.dist-info"
    package.mkdir(parents=True)
    metadata.mkdir()
    shutil.copy(_SOURCE / "__init__.py", package)
    (package / "autoload.py").write_text("def load():\n    pass\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plain_device\nVersion: 1.0\n")
    (folder / "plain_registration.py").write_text(_REGISTRATION)
    (metadata / "entry_points.txt").write_text(
        "[torch.backends]\nplain = plain_device.autoload:load\n"
        "[gpu_conformance.backends]\nplain = plain_registration:BACKEND\n"
    )
    _compile(package / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}")
    return folder


def _compile(library: Path) -> None:
    from torch.utils import cpp_extension

    command = [
        *os.environ.get("CXX", "c++").split(),
        *("-O1", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-DTORCH_EXTENSION_NAME=_native"),
        *(f"-isystem{each}" for each in (*cpp_extension.include_paths(), sysconfig.get_path("include"))),
        str(_SOURCE / "device.cpp"),
        *(f"-L{each}" for each in cpp_extension.library_paths()),
        *("-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10", "-o", str(library)),
    ]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    print(install(Path(sys.argv[1])))
