"""The folder of the harness's caches, which a user keeps between runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_APPLICATION = "gpu-conformance-harness"


def cache_root(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of all caches; None if no variable names one and there is no home folder."""
    if own := environ.get("HARNESS_CACHE_DIR"):
        return Path(own).absolute()
    shared = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # the XDG specification requires that relative paths are ignored
        return Path(shared) / _APPLICATION
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".cache" / _APPLICATION if os.path.isabs(home) else None
