"""Where torch's compilers keep what they have compiled, and the locks that they leave there when they are killed."""

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
    """The variables that name them: in a folder of the run, unless the environment `outer` says.

    Their defaults lie in the folder for temporary files or in the user's own: in an executor nothing would stay
    compiled in the first, and in the second a run would depend on those before it.
    """
    return {name: outer.get(name) or str(run_dir / FOLDER / folder) for name, folder in _CACHES.items()}


def release_locks(run_dir: Path) -> None:
    """Take away the locks of builds of C++ extensions that nobody works at any more, in the run's own folder.

    Torch's lock is a file that exists, and whoever finds it waits for as long as it does: after a killed build for
    ever. Whoever builds holds it open from its making on, and closes it a moment before taking it away: so it is
    looked for twice.
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
    """Device and inode of every file that a process we may look into holds open."""
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    found.add((status.st_dev, status.st_ino))
    return found
