"""The folder of the harness's caches, which a user keeps between runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from harness.core.errors import HarnessError

_APPLICATION = "gpu-conformance-harness"
_WRITABLE_BY_OTHERS = 0o022


class CacheError(HarnessError):
    """Others could put code into a cache."""


def cache_root(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of all caches; None if no variable names one and there is no home folder."""
    if own := environ.get("HARNESS_CACHE_DIR"):
        return Path(own).absolute()
    shared = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # the XDG specification requires that relative paths are ignored
        return Path(shared) / _APPLICATION
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".cache" / _APPLICATION if os.path.isabs(home) else None


def code_cache(root: Path, *names: str) -> Path:
    """Return the folder `names` below the folder of all caches, for code that processes of this user load.

    Missing folders are made, for this user alone. Raise CacheError if another user owns one of them or may write to
    it: the harness would run what they put there. Raise OSError if one cannot be made.
    """
    folder = root
    for name in ("", *names):
        folder = folder / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
        if status.st_uid not in (0, os.geteuid()):
            raise CacheError(
                f"{str(folder)!r} belongs to user {status.st_uid}, who could put code into it: set $HARNESS_CACHE_DIR "
                "to a folder of yours"
            )
        if status.st_mode & _WRITABLE_BY_OTHERS:
            raise CacheError(
                f"{str(folder)!r} has mode {status.st_mode & 0o7777:04o}, so others could put code into it: remove "
                "what you do not know, and type: chmod go-w; or set $HARNESS_CACHE_DIR to another folder"
            )
    return folder
