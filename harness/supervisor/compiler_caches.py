"""The caches of torch's compilers, and the locks that a killed compiler leaves there."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.checks.process_meters import INDUCTOR_FOLDER

#: The folder of compiler caches, in the run directory; and that of precompiled headers, in the run's temporary folder.
FOLDER = "compiler-caches"
_EXTENSIONS = "extensions"
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": _EXTENSIONS}


def variables(run_dir: Path, outer: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the caches: folders of the run, unless the environment `outer` sets them.

    By default the caches are in the folder for temporary files or in the user's home. An executor's temporary folder is
    removed, so nothing would stay compiled. With the home folder, a run would depend on earlier runs.
    """
    return {name: outer.get(name) or str(run_dir / FOLDER / folder) for name, folder in _CACHES.items()}


def share_default(temp: Path) -> None:
    """Make inductor's default folder in `temp`, an executor's folder for temporary files, a link to one beside `temp`.

    Inductor keeps precompiled headers in its default folder, whatever `TORCHINDUCTOR_CACHE_DIR` is (`_HEADER_DIR` of
    torch/_inductor/codecache.py). The headers are 150 MB, and take five seconds. Without the link each executor would
    compile them again.

    A killed compiler leaves an incomplete header. GCC marks a header as complete when it is written, and ignores an
    incomplete one (gcc/c-family/c-pch.cc), so later compilations succeed but take longer. Therefore the folder belongs
    to the run, and the user does not keep it.
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


def is_shared_default(path: Path) -> bool:
    """Return whether `path` is the link that `share_default` has made."""
    return path.name == _default_name() and path.is_symlink()


@functools.cache
def _default_name() -> str:
    """Return the name of inductor's default folder (torch/_inductor/runtime/cache_dir_utils.py), "" if unknown."""
    try:
        return INDUCTOR_FOLDER + re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, ImportError, OSError):  # a user without a name
        return ""


def release_locks(run_dir: Path) -> None:
    """Remove stale locks of builds of C++ extensions in the run's own folder.

    Torch's lock is a plain file. Other processes wait while the file exists: after a killed build, forever. A build
    keeps the file open from its creation, and closes it a moment before it removes the file. Therefore this checks
    twice for an open file.
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
    identities = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            identities[path] = status.st_dev, status.st_ino
    return identities


def _open_anywhere() -> set[tuple[int, int]]:
    """Return device and inode of every open file, of all processes that this one may inspect."""
    identities = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    identities.add((status.st_dev, status.st_ino))
    return identities
