"""Texts of cases on a page: without terminal escapes, and with visible badges for invisible characters."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from harness.core.text import truncate_middle

#: Maximum characters of a name or a message.
MOST_OF_LINE = 1000

#: Characters that do not show as themselves: controls, bidirectional marks, characters without width or with a special
#: appearance, lone surrogates. Tab and line feed are not included. Pairs of first and last.
HIDDEN = (
    (0x00, 0x08),
    (0x0B, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x34F, 0x34F),
    (0x600, 0x605),
    (0x61C, 0x61C),
    (0x6DD, 0x6DD),
    (0x70F, 0x70F),
    (0x890, 0x891),
    (0x8E2, 0x8E2),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xD800, 0xDFFF),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0xFFFE, 0xFFFF),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
_HIDDEN = re.compile("[" + "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in HIDDEN) + "]")
#: The same characters for a JavaScript regular expression with the flag ``u``.
HIDDEN_IN_SCRIPT = "[" + "".join(f"\\u{{{first:x}}}-\\u{{{last:x}}}" for first, last in HIDDEN) + "]"

# Control sequences, operating system commands (titles, links) and other strings, and single escapes, of ECMA-48. The
# length of a string is limited, so that one without an end does not hide the text after it.
_TERMINAL = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,2000}(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]+[0-~]"
    "|\x1b[0-Z\\\\^-~]"
)


def inert_text(text: str) -> str:
    """Return the text without terminal escapes. A carriage return, as progress bars print it, becomes a line feed."""
    if "\x1b" in text or not text.isascii():
        text = _TERMINAL.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def inert_line(text: str, limit: int = MOST_OF_LINE) -> str:
    """Return the text as plain text on one line of at most `limit` characters.

    A cut text ends with the number of cut characters.
    """
    if len(text) <= limit and text.isascii() and text.isprintable():  # the common case
        return text.strip()
    text = " ".join(inert_text(text).split("\n")).strip()
    if len(text) <= limit:
        return text
    return truncate_middle(text, limit).replace("\n", " ")


def inert_indented_line(text: str) -> str:
    """Return the text as `inert_line` does, with at most 500 characters after the spaces at its begin, which stay."""
    indent = len(text) - len(text.lstrip(" "))
    return " " * indent + inert_line(text, 500)


def inert_markup(text: str) -> Markup:
    """Return the text as escaped HTML, with a small badge such as ``U+202E`` for each invisible character."""
    parts: list[str] = []
    end = 0
    for match in _HIDDEN.finditer(text):
        parts += [escape(text[end : match.start()]), f'<span class="hidden-char">U+{ord(match[0]):04X}</span>']
        end = match.end()
    return Markup("".join([*parts, escape(text[end:])]))
