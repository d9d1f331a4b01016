"""The fingerprint of a failure: the parts of message and stack that are equal in other runs, on other machines.

Pure functions.

Failures with one fingerprint are one group. The key is a hash of the title: the message without everything that differs
between two runs of one defect, and the innermost frame outside the tests. A message that many defects share, such as a
failed assertion, is too unspecific, so the suite of the case is then part of the title.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from harness.core.outcome import Outcome
from harness.core.text import escape_invalid_xml
from harness.reporting.page.inert import inert_text

#: Maximum characters of a message, and of a stack, that are used.
MOST_OF_MESSAGE = 600
MOST_OF_STACK = 20_000
#: Maximum characters of a title.
MOST_OF_TITLE = 300

_RULES = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        # Ids come first: the rules for numbers and paths would leave parts of them.
        (r"\b(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F/-]{7,}", "<uuid>"),
        (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<uuid>"),
        (r"\b[\w./-]+\.py::[\w:]+(?:\[[^\]\n]*\])?", "<case>"),
        (r"\b[a-z]+://[^\s'\")>]+", "<url>"),
        (r"(?<![\w.])(?:~|\.{1,2})?(?:/[\w.+@~=,-]+){2,}/?(?::\d+)*", "<path>"),
        (r"(?<![\w])(?:[\w.+@-]+/)+[\w.+@-]+\.\w{1,4}(?::\d+)*", "<path>"),
        (r"\b0x[0-9a-fA-F]+", "<address>"),
        (r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}\b", "<id>"),
        (r"(?<!\w)[-+](?=\d)", ""),
        (r"\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?", "#"),
        (r"#(?:(?:\s*[,x;]\s*|\s+)#)+", "#"),
        (r"\[[#,.\s…]*\]", "[#]"),
        (r"\b(?:tensor|array)\((?:[^()]|\([^()]*\))*\)", "tensor(#)"),
        (r"# (?:bytes?|[KMGT]i?B)\b", "# bytes"),
        (r"\s+", " "),
    )
)
#: The start of a message that many defects share.
_GENERIC = re.compile(
    r"assert\b|AssertionError\b|a comparison|Failed: |timeout\b|did not finish|leak|crashed\b", re.IGNORECASE
)
#: pytest's text for an assertion without a message: values, which differ between cases of one cause.
_COMPARISON = re.compile(
    r"(?:AssertionError: )?assert \(?(?:not |True|False|None|#|\[#\]|tensor\(#\)|[-+()\s<>=!]|in|is)+"
)
_PYTHON_FRAME = re.compile(r'^\s*File "([^"\n]+)", line \d+,? in ([\w.<>]+)', re.MULTILINE)
_PYTEST_FRAME = re.compile(r"^([\w./@+-]+\.py):\d+: ?(?:in )?([\w.<>]*)", re.MULTILINE)
_TESTS = re.compile(r"(?:^|/)(?:suites|tests?)/|(?:^|/)(?:test_|conftest)")
#: Frames of the code that runs every case.
_MACHINERY = re.compile(r"(?:^|/)(?:harness|_pytest|pluggy|pytest|threading|runpy)(?:/|\.py$)")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The group of a failure. `title`: for people."""

    key: str
    title: str


def fingerprint(outcome: Outcome, message: str, stack: str, suite: str) -> Fingerprint:
    """Return the fingerprint of a red or flaky case. `stack`: the traceback, or the stacks of a crash; may be empty."""
    plain = normalised(message) or str(outcome)
    frame = innermost_frame(stack)
    parts = [_kind(outcome), plain]
    if frame:
        parts.append(f"in {frame}")
    if _GENERIC.match(plain) and not frame:
        parts.append(f"suite {suite}")
    title = ": ".join(parts[:2]) + "".join(f" ({part})" for part in parts[2:])
    digest = hashlib.sha256(title.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    return Fingerprint(digest, title if len(title) <= MOST_OF_TITLE else f"{title[: MOST_OF_TITLE - 1]}…")


def _kind(outcome: Outcome) -> str:
    """Return the kind of failure. A case that is red, flaky or waived for one reason is in one group."""
    same = (Outcome.FAILED, Outcome.FLAKY, Outcome.WAIVED)
    return "failure" if outcome in same else str(outcome)


def normalised(text: str) -> str:
    """Return the text on one line without numbers, addresses, paths, ids and seeds."""
    text = escape_invalid_xml(inert_text(text[: 4 * MOST_OF_MESSAGE]))[:MOST_OF_MESSAGE]
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = text.strip(" :")
    return "a comparison failed" if _COMPARISON.fullmatch(text) else text.removeprefix("AssertionError: ")


def innermost_frame(stack: str) -> str:
    """Return file and function of the last frame outside the tests and the code that runs them; "" without one.

    Line numbers are left out because they change with every release.
    """
    text = stack[-MOST_OF_STACK:]
    frames = [(match.start(), match[1], match[2]) for match in _PYTHON_FRAME.finditer(text)]
    frames += [(match.start(), match[1], match[2]) for match in _PYTEST_FRAME.finditer(text)]
    for _, path, function in sorted(frames, reverse=True):
        if _TESTS.search(path) or _MACHINERY.search(path):
            continue
        short = "/".join(path.split("/")[-2:])
        # In the last frame, pytest names the exception in place of the function.
        is_function = function and not function.endswith(("Error", "Exception", "Failed"))
        return f"{short} {function}" if is_function else short
    return ""
