"""The root folder and the ini file of a run. The controller finds them, and passes them to every later process.

pytest derives both from those arguments that exist on disk. It treats the values of options that it does not know yet
as arguments. A run directory that the controller has created would therefore change the result in a later process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.core.errors import HarnessError

#: Files at which pytest's search for the root folder and the ini file may end.
_LANDMARKS = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"),
    "setup.py",
)


class RootError(HarnessError):
    """A later process of the run found another root folder or ini file than the first one."""


@dataclass(frozen=True, slots=True)
class RootFolder:
    """The root folder that ids are relative to, and the ini file, if there is one. Absolute paths."""

    folder: str
    inifile: str | None

    @classmethod
    def of(cls, config: pytest.Config) -> RootFolder:
        """Return the root that pytest found."""
        return cls(str(config.rootpath), None if config.inipath is None else str(config.inipath))

    def add_to(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """Return the `arguments` with additions that make pytest use this root folder and this ini file.

        pytest has no argument for "no ini file". It finds none if no value of an option is a separate word.
        """
        more = ["--rootdir=" + self.folder]
        if self.inifile is not None:
            more.append("--config-file=" + self.inifile)
        return insert_options(arguments, more)

    def difference(self, root: RootFolder) -> str:
        """Return the differences from `root`, which another process has, with both values; empty if none."""
        differences = [
            f"the {noun} is {other or 'none'} in this process, but {own or 'none'} in the process that began the run"
            for noun, own, other in (
                ("root folder", self.folder, root.folder),
                ("ini file", self.inifile, root.inifile),
            )
            if own != other
        ]
        hint = "pytest may have taken the value of a plugin's option for a path: write --option=VALUE as one word"
        return "; ".join([*differences, hint]) if differences else ""

    def root_of_id(self, file: Path, path: str) -> RootFolder:
        """Return the root to which `path`, the start of an id, of `file` is relative; this root if there is none."""
        folder = str(file).removesuffix(f"/{path}")
        return self if folder == str(file) or not path else RootFolder(folder or "/", self.inifile)

    def found_from(self, file: Path, folder: Path) -> bool:
        """Return whether pytest, started in `folder` with `file` as its only argument, certainly finds this root."""
        root = Path(self.folder)
        if self.inifile is None:
            between: Iterable[Path] = (file.parent, *file.parent.parents)
            if root != Path(os.path.commonpath([file.parent, folder])):
                return False
        elif Path(self.inifile).parent == root and root in file.parents:
            between = (parent for parent in file.parents if root in parent.parents)
        else:
            return False
        return not any((parent / name).exists() for parent in between for name in _LANDMARKS)


def insert_options(arguments: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Return the `arguments` with `more` at the end of the options, before a ``--``."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return (*arguments[:end], *more, *arguments[end:])
