"""The folder for temporary files of a run. The folder stores its owner.

The run removes the folder at the end; otherwise a later run does. All temporary files of a run are in one such folder.
The owner is the controller. The owner is certainly dead if its machine has booted since, or if its pid namespace has no
process with its pid and start time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import secrets
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from harness.core import linux
from harness.core.errors import convert_to_write_error

TEMP_FOLDER_PREFIX = "harness-"
OWNER_FILE = "owner.json"


@dataclass(frozen=True, slots=True)
class TempFolderOwner:
    """A unique identification of a process. `started` is in clock ticks since the boot."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> Self:
        """Return the identification of this process."""
        pid = os.getpid()
        return cls(platform.node(), linux.boot_id(), linux.pid_namespace(), pid, linux.process_start_time(pid) or 0)

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Return the owner that `text` describes; None if it is not valid."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def is_dead(self, here: TempFolderOwner, started: int | None) -> bool:
        """Return whether this owner is certainly dead, as seen by the process `here`.

        `started` is the start time of the process that has this owner's pid now; None if there is none. An owner on
        another machine or in another pid namespace is never certainly dead.
        """
        if self.host != here.host or not self.boot or not here.boot:
            return False
        if self.boot != here.boot:
            return True
        return self.namespace == here.namespace and self.started != started


def make_temp_folder(parent: Path) -> Path:
    """Create a folder in `parent` that only this user may enter, owned by this process. Raise WriteError."""
    with convert_to_write_error(f"into {str(parent)!r}"):
        folder = Path(tempfile.mkdtemp(prefix=TEMP_FOLDER_PREFIX, dir=parent))
        try:
            (folder / OWNER_FILE).write_text(TempFolderOwner.current().to_json(), encoding="utf-8")
        except OSError:
            remove_temp_folder(folder)
            raise
    return folder


#: Depth up to which paths stay within the kernel's limit: names have up to 255 bytes, paths 4,096.
_DEEPEST = 10


def remove_abandoned_temp_folders(parent: Path) -> None:
    """Remove the folders in `parent` whose owners are dead. Folders of other users and links are left alone."""
    here = TempFolderOwner.current()
    try:
        folders = [parent / name for name in os.listdir(parent) if name.startswith(TEMP_FOLDER_PREFIX)]
    except PermissionError:
        return  # a user may be allowed to create folders in it, but not to list it
    for folder in folders:
        owner = _owner_of(folder)
        if owner is not None and owner.is_dead(here, linux.process_start_time(owner.pid)):
            remove_temp_folder(folder)


def remove_temp_folder(folder: Path) -> None:
    """Remove a folder and its content, including unreadable folders. Files that cannot be removed stay."""
    if _is_gone(folder):
        return
    _flatten(folder)
    _is_gone(folder)


def _is_gone(folder: Path) -> bool:
    """Try to remove a folder. Return whether the folder is gone or no further attempt is useful."""
    with contextlib.suppress(RecursionError, OSError):  # raised for a tree that is too deep for a recursion
        shutil.rmtree(folder, ignore_errors=True)
        if folder.is_symlink() or folder.is_file():  # a case has replaced the folder
            folder.unlink()
    return folder.is_symlink() or not folder.is_dir()


def _flatten(folder: Path) -> None:
    """Make the folders in a folder accessible, and move deep ones up to the top."""
    names = itertools.count()
    waiting = [(folder, 0)]
    while waiting:
        here, depth = waiting.pop()
        with contextlib.suppress(OSError):  # the folder belongs to another user
            os.chmod(here, stat.S_IRWXU)
            if depth == _DEEPEST:
                above = folder / f"deep-{next(names)}-{secrets.token_hex(4)}"
                os.rename(here, above)
                here, depth = above, 0
            with os.scandir(here) as entries:
                inside = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
            waiting += [(path, depth + 1) for path in inside]


def _owner_of(folder: Path) -> TempFolderOwner | None:
    """Return the owner of a folder; None if it is unknown, and for a link or a folder of another user."""
    try:
        if not _is_own(folder.lstat(), stat.S_IFDIR):
            return None
        descriptor = os.open(folder / OWNER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not _is_own(os.fstat(descriptor), stat.S_IFREG):
            return None
        return TempFolderOwner.from_json(file.read(4096).decode("utf-8", "replace"))


def _is_own(status: os.stat_result, kind: int) -> bool:
    return status.st_uid == os.getuid() and stat.S_IFMT(status.st_mode) == kind
