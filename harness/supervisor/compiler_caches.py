"""The caches of torch's compilers, and what a killed compiler leaves there."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.checks.meters.process import INDUCTOR_FOLDER

#: The folder of compiler caches, in the run directory.
FOLDER = "compiler-caches"
_INDUCTOR, _EXTENSIONS = "inductor", "extensions"
_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_CACHES = {_VARIABLE: _INDUCTOR, "TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": _EXTENSIONS}


def variables(run_dir: Path, outer: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables of the caches: folders of the run, unless the environment `outer` sets them.

    The default is the folder for temporary files or the user's home. An executor's temporary folder is removed, so
    nothing would stay compiled. With the home folder, a run would depend on earlier runs.
    """
    return {name: outer.get(name) or str(run_dir / FOLDER / folder) for name, folder in _CACHES.items()}


def share_default(temp: Path, environment: Mapping[str, str | None]) -> None:
    """Make inductor's default folder in `temp`, a folder for temporary files, a link to the one in the environment.

    Inductor keeps the headers that it precompiles in its default folder, wherever `TORCHINDUCTOR_CACHE_DIR` is
    (`_HEADER_DIR` of torch/_inductor/codecache.py). These are 150 MB, and take five seconds. Executors have folders of
    their own for temporary files, so without the link each of them would compile the headers anew.
    """
    cache, name = environment.get(_VARIABLE), _default_name()
    if cache and name:
        with contextlib.suppress(OSError):  # a folder of the user's that cannot be written: inductor will say so
            Path(cache).mkdir(parents=True, exist_ok=True)
            (temp / name).symlink_to(Path(cache).absolute(), target_is_directory=True)


def unshare_default(temp: Path) -> None:
    """Remove the link that `share_default` has made."""
    link = temp / _default_name()
    if link.is_symlink():
        link.unlink(missing_ok=True)


@functools.cache
def _default_name() -> str:
    """Returns the name of inductor's default folder (torch/_inductor/runtime/cache_dir_utils.py), "" if unknown."""
    try:
        return INDUCTOR_FOLDER + re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, ImportError, OSError):  # a user without a name
        return ""


def remove_unfinished(run_dir: Path) -> None:
    """Remove what a killed compiler has left in the run's own folders: stale locks, and precompiled headers.

    Torch's lock of a C++ extension is a plain file. Other processes wait as long as the file exists: after a killed
    build, forever. The compiler writes a precompiled header to its final name, and torch takes it if it exists. Nobody
    can tell a part from the whole, and without it the compiler reads the header itself.

    A build keeps its file open from its creation, and closes a lock a moment before it removes it. So the check for an
    open file is made twice.
    """
    caches = run_dir / FOLDER
    headers = caches.joinpath(_INDUCTOR, "precompiled_headers").glob("*.gch")
    left = _identities([*(caches / _EXTENSIONS).glob("**/lock"), *headers])
    for _ in range(2):
        if not left:
            return
        held = _open_anywhere()
        left = {path: seen for path, seen in _identities(left).items() if seen == left[path] and seen not in held}
    for path in left:
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
