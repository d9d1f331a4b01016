"""Decide which tests of a session are cases: all, those under some folders, or none."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness.configuration import options
from harness.protocol import worker_messages

_SCOPE = pytest.StashKey["CaseScope"]()


class CaseScope:
    """The tests of one session that are cases. Symbolic links in paths are resolved before a comparison."""

    def __init__(self, config: pytest.Config) -> None:
        self.all = is_named_by_user(config) or options.is_any_option_set(config)
        folders = () if self.all else config.getini("harness_suites")
        self._folders = tuple(_resolved(folder) for folder in folders)
        if hasattr(config, "workerinput"):
            self.any = worker_messages.CONTEXT_KEY in config.workerinput
        else:
            self.any = self.all or self._reached(config)
        self._cases: dict[Path, bool] = {}
        self._config = config
        self._arguments: list[Path] | None = None

    @classmethod
    def of(cls, config: pytest.Config) -> CaseScope:
        """Return the scope of a session, computed once."""
        if _SCOPE not in config.stash:
            config.stash[_SCOPE] = cls(config)
        return config.stash[_SCOPE]

    def has(self, path: Path) -> bool:
        """Return whether the tests of this file are cases."""
        if path not in self._cases:
            self._cases[path] = self.any and (self.all or _resolved(path).startswith(self._folders))
        return self._cases[path]

    def id_outside_root(self, path: Path) -> str | None:
        """Return the id of a test file with cases that is outside of the root folder; None for others.

        pytest's own ids of such files are relative to the argument that led to them, and empty for an argument that is
        a file: with several arguments, several files have the same id.
        """
        root = self._config.rootpath
        if root in path.parents or not self.has(path):
            return None
        if self._arguments is None:
            self._arguments = [*_argument_paths(self._config)]
        return name_outside_root(path, root, [(entry, entry.is_dir()) for entry in self._arguments])

    def _reached(self, config: pytest.Config) -> bool:
        """Return whether an argument is inside one of the folders, or contains one."""
        if not self._folders:
            return False
        wanted = [_resolved(path) for path in _argument_paths(config)]
        return any(path.startswith(f) or f.startswith(path) for path in wanted for f in self._folders)


def name_outside_root(path: Path, root: Path, arguments: Sequence[tuple[Path, bool]]) -> str | None:
    """Return the name of a file relative to the common folder of all arguments outside of the `root` folder. Pure.

    `arguments`: each with whether it is a folder. None if the file is not below that folder.
    """
    folders = [
        entry if is_folder else entry.parent
        for entry, is_folder in arguments
        if entry != root and root not in entry.parents
    ]
    if not folders:
        return None
    common = Path(os.path.commonpath(folders))
    return path.relative_to(common).as_posix() if common in path.parents else None


def is_named_by_user(config: pytest.Config) -> bool:
    """Return whether the user named the plugin with ``-p``. If so, every test is a case.

    ``-p harness`` means the same as ``-p harness.plugin``: it names the entry point, which pytest has loaded anyway.
    """
    named = config.getoption("plugins", None) or ()
    return "harness" in named or config.pluginmanager.get_plugin("harness.plugin") is not None


def _resolved(path: str | Path) -> str:
    return os.path.realpath(path) + os.sep


def _argument_paths(config: pytest.Config) -> Iterator[Path]:
    """Yield the files and folders that the arguments name: by path or, with ``--pyargs``, by module name."""
    for argument in config.args:
        name = argument.partition("::")[0]
        module = _module_path(name) if config.getoption("pyargs") else None
        # Normalised, as pytest does: `..` in a path leads out of the root folder.
        yield module or Path(os.path.normpath(config.invocation_params.dir / name))


def _module_path(name: str) -> Path | None:
    """Return the file of a module or the folder of a package. None if there is no such module."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # noqa: BLE001 - a parent package raises on import: the collection reports that error
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    return Path(spec.origin) if spec.has_location and spec.origin else None
