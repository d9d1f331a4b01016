"""Folders whose paths are longer than the kernel accepts."""

from __future__ import annotations

import os
from pathlib import Path


def make_deep(folder: Path, levels: int, name: str) -> None:
    """Create nested folders, even if their path is longer than the kernel accepts, with a file in the last."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
