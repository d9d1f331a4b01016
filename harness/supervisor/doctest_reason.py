"""Extracts why a doctest failed, in one line, from its report, which begins with the lines of the docstring. Pure."""

from __future__ import annotations

import re

from harness.core.text import single_line

_END = re.compile(r":(?P<line>[0-9]+): (?:DocTestFailure|UnexpectedException)\s*\Z")
_UNEXPECTED = re.compile(r"^UNEXPECTED EXCEPTION: (?P<error>.*)$", re.MULTILINE)
_EXPECTED = re.compile(r"^Expected(?: (?P<nothing>nothing)|:\n(?P<text>(?: {4}.*\n?|\n)*))", re.MULTILINE)
_GOT = re.compile(r"^Got(?: (?P<nothing>nothing)|:\n(?P<text>(?: {4}.*\n?|\n)*))", re.MULTILINE)
_SHOWN = 200


def doctest_reason(report: str) -> str:
    """Return the reason, such as ``line 8: expected 5, got 3``.

    The text is empty if this is not the report of a doctest.
    """
    end = _END.search(report)
    if end is None:
        return ""
    where = f"line {end['line']}"
    unexpected = _UNEXPECTED.search(report)
    if unexpected is not None:
        return f"{where}: {single_line(unexpected['error'], _SHOWN)}"
    expected, got = _EXPECTED.search(report), _GOT.search(report)
    if expected is None or got is None:
        return f"{where}: the output differs"
    return f"{where}: expected {_shown(expected)}, got {_shown(got)}"


def _shown(match: re.Match[str]) -> str:
    if match["nothing"]:
        return "nothing"
    lines = match["text"].strip().splitlines()
    return single_line(match["text"], _SHOWN) + (" …" if len(lines) > 1 else "")
