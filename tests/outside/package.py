"""Installs a package with a device into a folder, as an author outside of this tree would have it installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import tests

#: The registration of an author whose devices have a mask.
REGISTRATION = """
from harness.backends.backend import Backend

BACKEND = Backend("npu", mask="NPU_VISIBLE_DEVICES")
"""
#: Where the tree with `tests` and `harness` is.
ROOT = Path(tests.__file__).parent.parent


def install(folder: Path, *, registration: str | None = REGISTRATION, autoload: bool = True) -> Path:
    """Write the package ``npu_device`` and its metadata into `folder`, which is then a folder of site-packages.

    With `autoload`, torch imports the package by an entry point of its own group, ``torch.backends``. `registration` is
    the source of the module of the entry point ``gpu_conformance.backends``; None for a package that has none.
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
    """Return the variables with which a process has the package."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), **more}
