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

#: The folder of compiler caches, in the run directory; and that of precompiled headers, in the run's temporary folder.
FOLDER = "compiler-caches"
_EXTENSIONS = "extensions"
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": _EXTENSIONS}


def variables(run_dir: Path, outer: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables of the caches: folders of the run, unless the environment `outer` sets them.

    The default is the folder for temporary files or the user's home. An executor's temporary folder is removed, so
    nothing would stay compiled. With the home folder, a run would depend on earlier runs.
    """
    return {name: outer.get(name) or str(run_dir / FOLDER / folder) for name, folder in _CACHES.items()}


def share_default(temp: Path) -> None:
    """Make inductor's default folder in `temp`, an executor's folder for temporary files, a link to one beside `temp`.

    Inductor keeps the headers that it precompiles in its default folder, wherever `TORCHINDUCTOR_CACHE_DIR` is
    (`_HEADER_DIR` of torch/_inductor/codecache.py). These are 150 MB, and take five seconds. Without the link each
    executor would compile them anew. They do not go where the user's variable says: a killed compiler may leave a part
    of a header, and what the user keeps is not for the harness to remove.
    """
    if name := _default_name():
        shared = temp.parent / FOLDER
        with contextlib.suppress(OSError):  # such as a full disk, which shows where it matters
            shared.mkdir(exist_ok=True)
            (temp / name).symlink_to(shared, target_is_directory=True)


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


def remove_unfinished(run_dir: Path, temp_dir: Path) -> None:
    """Remove what a killed compiler has left in the run's own folders: stale locks, and precompiled headers.

    `temp_dir`: the folder of the executors' folders for temporary files.

    Torch's lock of a C++ extension is a plain file. Other processes wait as long as the file exists: after a killed
    build, forever. The compiler writes a precompiled header to its final name, and torch takes it if it exists. Nobody
    can tell a part from the whole, and without it the compiler reads the header itself.

    A build keeps its file open from its creation, and closes a lock a moment before it removes it. So the check for an
    open file is made twice.
    """
    locks = (run_dir / FOLDER / _EXTENSIONS).glob("**/lock")
    headers = (temp_dir / FOLDER / "precompiled_headers").glob("*.gch")
    left = _identities([*locks, *headers])
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
