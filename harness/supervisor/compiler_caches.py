"""The caches of torch's compilers, and the locks that a killed compiler leaves there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

#: The folder of compiler caches, in the run directory.
FOLDER = "compiler-caches"
_EXTENSIONS = "extensions"
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": _EXTENSIONS}


def variables(run_dir: Path, outer: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables of the caches: folders of the run, unless the environment `outer` sets them.

    The default is the folder for temporary files or the user's home. An executor's temporary folder is removed, so
    nothing would stay compiled. With the home folder, a run would depend on earlier runs.
    """
    return {name: outer.get(name) or str(run_dir / FOLDER / folder) for name, folder in _CACHES.items()}


def release_locks(run_dir: Path) -> None:
    """Remove stale locks of builds of C++ extensions in the run's own folder.

    Torch's lock is a plain file. Other processes wait as long as the file exists: after a killed build, forever.
    A build keeps the file open from its creation, and closes it a moment before it removes the file. So the check for
    an open file is made twice.
    """
    locks = _identities((run_dir / FOLDER / _EXTENSIONS).glob("**/lock"))
    for _ in range(2):
        if not locks:
            return
        held = _open_anywhere()
        locks = {path: seen for path, seen in _identities(locks).items() if seen == locks[path] and seen not in held}
    for path in locks:
        path.unlink(missing_ok=True)


def _identities(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found[path] = status.st_dev, status.st_ino
    return found


def _open_anywhere() -> set[tuple[int, int]]:
    """Returns device and inode of every file that is open in a process that we may inspect."""
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    found.add((status.st_dev, status.st_ino))
    return found
