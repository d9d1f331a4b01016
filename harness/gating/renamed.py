"""Cases that have new names: ``configs/renamed.json``, by which old lists, files and runs still find them.

The file maps tests, which are case ids without parameters, from each old name to the newest one::

    {
      "schema": 1,
      "renamed": {
        "suites/streams/test_a.py::test_old": "suites/streams/test_a.py::test_new"
      }
    }

`harness catalog --renamed` writes it. Runs of old names are read by it and are not changed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.core.errors import HarnessError
from harness.gating import patterns

FILE_NAME = "renamed.json"
_SCHEMA = 1
_MOST_BYTES = 64 << 20
#: A name of a test in a text: with the file that it is in, with a pattern for files, or alone.
_NAME = re.compile(r"(?P<file>[\w./*?+-]*::)?(?P<test>\w+(?:::\w+)*)")
_PATTERN = re.compile(r"[^\s\"'`]*[*?][^\s\"'`]*")


class RenamedError(HarnessError):
    """The file of renamed cases cannot be read."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: Literal[1]
    renamed: dict[str, str]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A text with new names. `names`: how many were written. `doubts`: sentences about patterns, with their lines."""

    text: str
    names: int
    doubts: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Renamed:
    """`tests`: from each old test to the newest, both as ``file::name`` without parameters."""

    tests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, configs: Path) -> Renamed:
        """The file in the folder `configs`; without a file nothing is renamed. Raises RenamedError."""
        return cls.read(configs / FILE_NAME)

    @classmethod
    def read(cls, path: Path) -> Renamed:
        """A file of renamed cases; without a file nothing is renamed. Raises RenamedError."""
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise RenamedError(f"cannot read {str(path)!r}") from error
        try:
            if len(data) > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES} bytes")
            found = json.loads(data)
            if isinstance(found, dict):
                found["schema_version"] = found.pop("schema", None)
            return cls(_File.model_validate(found).renamed)
        except (ValueError, RecursionError) as error:
            problem = _first(error) if isinstance(error, ValidationError) else str(error)
            advice = "write it with: harness catalog --renamed OLD.json -o FILE"
            raise RenamedError(f"{str(path)!r} is no file of renamed cases: {problem}; {advice}") from None

    def now(self, case_id: str) -> str:
        """The id that this case has now."""
        test, parameters = split(case_id)
        return self.tests.get(test, test) + parameters

    def followed_by(self, later: Mapping[str, str], existing: Container[str]) -> Renamed:
        """This, and then `later`. A name that a test of `existing` has is that test's, whoever had it before."""
        both = {old: later.get(new, new) for old, new in self.tests.items()} | dict(later)
        return Renamed({old: new for old, new in sorted(both.items()) if old != new and old not in existing})

    def to_bytes(self) -> bytes:
        """The contents of the file."""
        return (json.dumps({"schema": _SCHEMA, "renamed": dict(self.tests)}, indent=2) + "\n").encode()

    def rewrite(self, text: str) -> Rewritten:
        """A text, such as a waiver file or a script, with the new names of tests.

        A name is replaced with its file in front, and alone (``-k test_old``) if it had one meaning. A pattern with
        wildcards in the name is not replaced: if it does not match the same tests by their new names, that is a doubt.
        """
        alone = self._alone()
        names = 0

        def new(match: re.Match[str]) -> str:
            nonlocal names
            file, test = match["file"] or "", match["test"]
            if not file or set(file) & {"*", "?"}:
                found = file + alone.get(test, test)
            else:
                found = self.tests.get(file + test, file + test)
            names += found != match[0]
            return found

        lines = text.split("\n")
        written = [_NAME.sub(new, line) for line in lines]
        doubts = [
            (number, doubt)
            for number, line in enumerate(written, start=1)
            for pattern in _PATTERN.findall(line)
            if (doubt := self._doubt(pattern))
        ]
        return Rewritten("\n".join(written), names, tuple(doubts))

    def _alone(self) -> dict[str, str]:
        """Old names without files: those that had one new name, and are the new name of no other test."""
        pairs = {(_name(old), _name(new)) for old, new in self.tests.items()}
        times, taken = Counter(old for old, _ in pairs), {new for _, new in pairs}
        return {old: new for old, new in pairs if times[old] == 1 and old not in taken}

    def _doubt(self, pattern: str) -> str:
        test, _ = split(pattern)
        if "::" not in test or not set(test) & {"*", "?"}:
            return ""
        was = [new for old, new in self.tests.items() if patterns.matches(test, old)]
        lost = [new for new in was if not patterns.matches(test, new)]
        if not lost:
            return ""
        return (
            f"{pattern!r} matched {len(was)} tests by old names and does not match {len(lost)} of them now: {lost[0]}"
        )


#: Nothing is renamed.
NOTHING = Renamed()


def split(case_id: str) -> tuple[str, str]:
    """The test of a case, and its parameters in brackets or ""."""
    file, separator, rest = case_id.partition("::")
    name, bracket, parameters = rest.partition("[")
    return f"{file}{separator}{name}", f"{bracket}{parameters}"


def _name(test: str) -> str:
    return test.partition("::")[2]


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]).replace("schema_version", "schema")
    return f"{where}: {first['msg']}".removeprefix(": ")
