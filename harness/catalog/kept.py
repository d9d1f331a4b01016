"""A list that was made by reading files, kept in the cache until one of them changes.

Python reports each file that it opens and each folder that it lists, to an audit hook. The list is kept together with
the state of all of these, and is used again only if each of them is as it was, for the same command in the same folder,
interpreter and environment. What is read in another way, such as facts about the machine, does not count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Generator, Sequence
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.core.atomic import write_atomically
from harness.core.cache import CacheError, cache_root, code_cache
from harness.core.errors import HarnessError, WriteError
from harness.core.file_kind import FileKind

_T = TypeVar("_T")
_FORMAT = 1
#: Lists that are kept; the oldest go first.
_MOST = 8
#: A file that changed so shortly before it was read may change again without another time: file systems and clocks are
#: coarse.
_SETTLED = 2 * 10**9
#: Variables of terminals and sessions. All others may decide what is collected.
_OF_TERMINALS = ("COLORTERM", "COLUMNS", "LINES", "LS_COLORS", "OLDPWD", "SHLVL", "TERM", "_")
_OF_SESSIONS = ("SSH_", "TERM_", "TMUX", "VTE_", "XDG_SESSION_")
#: They have no content that stays.
_NO_FILES = ("/dev/", "/proc/", "/sys/")


class _KeptListError(HarnessError):
    """A kept list cannot be read."""


_KIND = FileKind("kept list", "remove it", _KeptListError, 256 << 20)

#: Size, time of change and number of a file or folder; None if it does not exist. The time is that of the inode, which
#: no program can set back.
State = tuple[int, int, int] | None


class Sources:
    """What this process reads: its files and folders, each with its state when it was first read."""

    def __init__(self) -> None:
        self.begun = time.time_ns()
        self.states: dict[str, State] = {}
        for module in [*sys.modules.values()]:
            self.add_file(getattr(module, "__file__", None))

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note what an event of Python's audit reads."""
        if event == "open":
            path, _, flags = arguments
            if not flags & (os.O_WRONLY | os.O_RDWR):
                self.add_file(path)
        elif event in ("os.listdir", "os.scandir"):
            self._add(arguments[0] or ".")
        elif event in ("import", "ctypes.dlopen"):
            self.add_file(arguments[0 if event == "ctypes.dlopen" else 1])

    def add_file(self, path: object) -> None:
        """Note a file, or the source of compiled code, and its folder, in which another file may take precedence."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return  # a descriptor, of a file that was noted when it was opened, or of none
        name = os.fsdecode(path)
        if not name or "/" not in name or name.startswith(_NO_FILES):
            return
        with contextlib.suppress(ValueError, NotImplementedError):
            source = source_from_cache(name)
            name = source if os.path.exists(source) else name
        self._add(name)
        self._add(os.path.dirname(name))

    def _add(self, path: object) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            name = os.path.abspath(os.fsdecode(path))
            if name not in self.states and not f"{name}/".startswith(_NO_FILES):
                self.states[name] = _state_of(name)

    @property
    def settled(self) -> bool:
        """Whether the states tell all later changes apart."""
        return all(state is None or state[1] < self.begun - _SETTLED for state in self.states.values())


class _KeptList(msgspec.Struct, array_like=True):
    """A kept list as it is on disk."""

    key: str
    states: dict[str, State]
    entries: msgspec.Raw


@contextlib.contextmanager
def recording() -> Generator[Sources]:
    """Record what this process reads in this context."""
    sources = Sources()
    heard: list[Sources] = [sources]

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        for each in heard:
            each.hear(event, arguments)

    sys.addaudithook(hear)  # it cannot be removed
    try:
        yield sources
    finally:
        heard.clear()


def key_of(paths: Sequence[str]) -> str:
    """Return a text that differs where another list of these paths is expected, although no file differs."""
    environment = {
        name: value
        for name, value in sorted(os.environ.items())
        if name not in _OF_TERMINALS and not name.startswith(_OF_SESSIONS)
    }
    facts = (_FORMAT, sys.executable, sys.version, [*sys.flags], sys.path, os.getcwd(), [*paths], environment)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def read_list(key: str, type_: type[_T]) -> _T | None:
    """Return the kept list of this key; None if there is none, or if it is damaged or no longer true."""
    folder = _folder()
    if folder is None:
        return None
    try:
        data = _KIND.read_if_exists(folder / key)
        found = None if data is None else msgspec.json.decode(data, type=_KeptList)
        if found is None or found.key != key or any(_state_of(path) != state for path, state in found.states.items()):
            return None
        return msgspec.json.decode(found.entries, type=type_)
    except (_KeptListError, msgspec.DecodeError, RecursionError):
        return None


def keep_list(key: str, entries: Any, sources: Sources) -> None:
    """Keep a list, unless a file changed only now, or the list has values that a file cannot keep."""
    folder = _folder()
    if folder is None or not sources.settled:
        return
    try:
        data = msgspec.json.encode(entries)
        if msgspec.json.decode(data, type=list[type(entries[0])]) != entries:  # type: ignore[misc]
            return
        write_atomically(
            folder / key, msgspec.json.encode(_KeptList(key=key, states=sources.states, entries=msgspec.Raw(data)))
        )
        kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in kept[:-_MOST]:
            path.unlink(missing_ok=True)
    except (TypeError, ValueError, msgspec.MsgspecError, WriteError, OSError):
        return  # it is collected again next time


def _folder() -> Path | None:
    """Return the folder of kept lists; None if there is none that belongs to this user alone."""
    root = cache_root(os.environ)
    try:
        return None if root is None else code_cache(root, "catalogs")
    except (CacheError, OSError):
        return None


def _state_of(path: str) -> State:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_ctime_ns, status.st_ino
