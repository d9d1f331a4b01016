"""The root folder and the ini file of a run: the controller finds them, every later process is told.

pytest derives both from the arguments that exist on disk, and takes the values of options that it does not know yet for
arguments. A run directory that the controller has made would therefore change what a later process finds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.errors import HarnessError

#: Files at which pytest's search for root folder and ini file may end.
_LANDMARKS = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"),
    "setup.py",
)


class RootError(HarnessError):
    """pytest found another root folder or ini file in a later process than in the first one of the run."""


@dataclass(frozen=True, slots=True)
class Root:
    """The root folder that ids are relative to, and the ini file, if there is one. Absolute paths."""

    folder: str
    inifile: str | None

    @classmethod
    def of(cls, config: pytest.Config) -> Root:
        """As pytest found them."""
        return cls(str(config.rootpath), None if config.inipath is None else str(config.inipath))

    def tell(self, arguments: Sequence[str], valued: Iterable[str]) -> tuple[str, ...]:
        """The `arguments`, with which pytest then takes this root folder and this ini file.

        No argument says that there is no ini file. So that none is found, the options `valued`, each of which takes one
        value, are written in one word with it: pytest does not take such a word for a path.
        """
        words = ["--rootdir=" + self.folder]
        if self.inifile is not None:
            words.append("--config-file=" + self.inifile)
        return inserted(joined(arguments, valued), words)

    def difference(self, found: Root) -> str:
        """What another process `found` otherwise, with both values; an empty text where it is the same."""
        differences = [
            f"the {what} is {theirs or 'none'} in this process, and {ours or 'none'} in the one that began the run"
            for what, ours, theirs in (
                ("root folder", self.folder, found.folder),
                ("ini file", self.inifile, found.inifile),
            )
            if ours != theirs
        ]
        hint = "pytest takes the value of a plugin's option for a path: write --option=VALUE in one word"
        return "; ".join([*differences, hint]) if differences else ""

    def told_from(self, file: Path, path: str) -> Root:
        """With the folder that `path`, the beginning of an id, leads from to its `file`; this one where none does."""
        folder = str(file).removesuffix(f"/{path}")
        return self if folder == str(file) or not path else Root(folder, self.inifile)

    def found_from(self, file: Path, folder: Path) -> bool:
        """Whether pytest, started in `folder` with `file` as its one argument, finds this by itself, for sure."""
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


def inserted(arguments: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """The `arguments`, then `more`, before the two dashes after which all are paths."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return (*arguments[:end], *more, *arguments[end:])


def joined(arguments: Sequence[str], valued: Iterable[str]) -> tuple[str, ...]:
    """The `arguments`, each of the options `valued` in one word with its value."""
    options = frozenset(valued)
    result: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            return (*result, word, *words)
        value = next(words, None) if word in options else None
        result.append(word if value is None else f"{word}={value}")
    return tuple(result)
