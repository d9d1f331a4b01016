"""Installs a package with a device into a folder, as an out-of-tree author would."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import tests

#: The registration of devices with a mask.
REGISTRATION = """
from harness.backends.backend import Backend

BACKEND = Backend("npu", mask="NPU_VISIBLE_DEVICES")
"""
#: The folder with `tests` and `harness`.
ROOT = Path(tests.__file__).parent.parent


def install(folder: Path, *, registration: str | None = REGISTRATION, autoload: bool = True) -> Path:
    """Write the package ``npu_device`` and its metadata into `folder`, which then acts as a site-packages folder.

    With `autoload`, torch imports the package through an entry point in torch's own group, ``torch.backends``.
    `registration` is the source of the module of the entry point ``gpu_conformance.backends``; None omits the entry
    point.
    """
    package, metadata = folder / "npu_device", folder / "npu_device-1.0.dist-info"
    package.mkdir(parents=True)
    metadata.mkdir()
    shutil.copy(Path(__file__).with_name("npu_device.py"), package / "__init__.py")
    (package / "autoload.py").write_text("def load():\n    pass\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: npu_device\nVersion: 1.0\n")
    groups = "[torch.backends]\nnpu = npu_device.autoload:load\n" if autoload else ""
    if registration is not None:
        (folder / "npu_registration.py").write_text(registration)
        groups += "\n[gpu_conformance.backends]\nnpu = npu_registration:BACKEND\n"
    (metadata / "entry_points.txt").write_text(groups)
    return folder


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment variables for a process that uses the package."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), **more}
