"""Reasons why no case can observe some mutants, in a YAML file that people write. Survivors with a reason do not count.

    mutants:
      - path: torch/cuda/__init__.py
        functions: ["_lazy_init", "init"]
        changes: ["statement dropped: *", "condition negated: if a: -> *"]
        reason: a fork's first use is over before the case

A star matches any text. Without `changes`, an entry is about all mutants of its functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness.core.models import StrictModel
from harness.gating import configfile
from tests.breaks.mutants.mutant import Mutant

#: The file of a project, in its root folder.
DEFAULT = Path("configs") / "unobservable.yaml"

_Text = Annotated[str, Field(min_length=1)]
_Patterns = Annotated[tuple[_Text, ...], Field(min_length=1)]


class ReasonEntry(StrictModel):
    """One reason, with patterns. `path`: of files. `functions`: of qualified names. `changes`: of `Mutant.change`."""

    path: _Text
    functions: _Patterns
    changes: _Patterns = ("*",)
    reason: _Text

    def is_about(self, mutant: Mutant) -> bool:
        """Return whether the entry is about a mutant."""
        return (
            matches((self.path,), mutant.path)
            and matches(self.functions, mutant.function)
            and matches(self.changes, mutant.change)
        )


class Reasons(StrictModel):
    """The entries of a file, in order."""

    mutants: tuple[ReasonEntry, ...] = ()

    def of(self, mutant: Mutant) -> str:
        """Return the reason of the first entry that is about a mutant, or an empty text."""
        return next((entry.reason for entry in self.mutants if entry.is_about(mutant)), "")


def read_reasons(file: Path | None) -> Reasons:
    """Return the reasons in a file, or in the project's own file, if it has one. Raise ConfigError."""
    if file is None and not DEFAULT.is_file():
        return Reasons()
    return configfile.load_config(file or DEFAULT, Reasons).value


def matches(patterns: Iterable[str], text: str) -> bool:
    """Return whether one of the patterns matches the whole text."""
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) for pattern in patterns)
