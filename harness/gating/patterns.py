"""Patterns for case ids, as in waivers, profiles and quarantines. Plain strings, no files.

A pattern matches whole ids. ``*`` matches any run of characters, ``/`` and ``::`` included; ``?`` matches one
character. Every other character matches itself. This includes brackets, since ids contain them:
``suites/streams/test_x.py::test_copy[cuda-*]``.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Collection, Sequence

_WILDCARDS = re.compile(r"[*?]")


def matches_pattern(pattern: str, case_id: str) -> bool:
    """Return whether `pattern` matches the whole of `case_id`."""
    return _compiled(pattern).fullmatch(case_id) is not None


def literal_prefix(pattern: str) -> str:
    """Return the text before the first wildcard of `pattern`. Every id that `pattern` matches starts with it."""
    return _WILDCARDS.split(pattern, maxsplit=1)[0]


def may_begin(start: str, beginnings: Collection[str]) -> bool:
    """Return whether an id that begins with `start` may also begin with one of `beginnings`."""
    return any(beginning.startswith(start) or start.startswith(beginning) for beginning in beginnings)


def pattern_reaches(pattern: str, arguments: Sequence[str]) -> bool:
    """Return whether a run with these collection arguments would collect every case that `pattern` can match.

    `arguments` are folders, files and case ids with ``/``, relative to the same folder as case ids. One argument alone
    must cover the whole pattern: only a run over the whole project, ``.``, reaches ``*::test_copy``.
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
    # A class or function name is followed by its members (``::``) or its parameters (``[``). Any other text continues a
    # longer name.
    return pattern == node or prefix.startswith((f"{node}::", f"{node}["))


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    first, *others = (_segment(text) for text in re.split(r"\*+", pattern))
    if not others:
        return re.compile(first, re.DOTALL)
    # The atomic groups match each part between two stars at its first position and never backtrack: a pattern with many
    # stars costs no more than one with few.
    middle = "".join(f"(?>.*?{segment})" for segment in others[:-1])
    return re.compile(f"{first}{middle}.*{others[-1]}", re.DOTALL)


def _segment(text: str) -> str:
    return "".join("." if character == "?" else re.escape(character) for character in text)
