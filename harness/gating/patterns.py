"""Patterns over case ids, as waivers, profiles and quarantines write them. Plain strings, no files.

A pattern stands for whole ids: ``*`` for any run of characters, ``/`` and ``::`` included, and ``?`` for one. Every
other character stands for itself, brackets too, since ids have them: ``suites/streams/test_x.py::test_copy[cuda-*]``.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Sequence

_WILDCARDS = re.compile(r"[*?]")


def matches(pattern: str, case_id: str) -> bool:
    """Whether `pattern` stands for the whole of `case_id`."""
    return _compiled(pattern).fullmatch(case_id) is not None


def literal_prefix(pattern: str) -> str:
    """What every id that `pattern` stands for begins with: all that comes before its first wildcard."""
    return _WILDCARDS.split(pattern, maxsplit=1)[0]


def reaches(pattern: str, arguments: Sequence[str]) -> bool:
    """Whether a run started with these collection arguments would collect every case that `pattern` can stand for.

    `arguments` are folders, files and case ids, relative to the folder that case ids are relative to, with ``/``. One
    of them alone must hold all of the pattern: ``*::test_copy`` is reached only by a run over the whole project, ``.``.
    """
    return any(_covers(argument, pattern) for argument in arguments)


def _covers(argument: str, pattern: str) -> bool:
    path, separator, inside = argument.partition("::")
    path = posixpath.normpath(path or ".")
    if set(path.split("/")) <= {".", ".."}:
        return True
    prefix = literal_prefix(pattern)
    if not separator:
        return prefix.startswith((f"{path}/", f"{path}::"))
    node = f"{path}::{inside}"
    # What follows the name of a class or function is a member of it or its parameters; anything else is another name.
    return pattern == node or prefix.startswith((f"{node}::", f"{node}["))


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    first, *others = (_segment(text) for text in re.split(r"\*+", pattern))
    if not others:
        return re.compile(first, re.DOTALL)
    # Each part between two stars is taken where it comes first and never sought again: a pattern with many stars
    # costs no more than one with few.
    middle = "".join(f"(?>.*?{segment})" for segment in others[:-1])
    return re.compile(f"{first}{middle}.*{others[-1]}", re.DOTALL)


def _segment(text: str) -> str:
    return "".join("." if character == "?" else re.escape(character) for character in text)
