"""Texts for reports: restricted to the characters that XML allows and to a length, and numbers with their nouns."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

# Everything outside the Char production of XML 1.0 (https://www.w3.org/TR/xml/#charsets), including lone surrogates.
_UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPES = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF)
    if chr(code) not in "\t\n\r"
}
#: Controls but the tab, marks of lines and of the direction of text: what can act on a terminal or forge a line.
_ACTIVE = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def _escape(character: re.Match[str]) -> str:
    code = ord(character[0])
    if character[0] in "\n\r":
        return "\\n" if character[0] == "\n" else "\\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def escape_invalid_xml(text: str) -> str:
    r"""Return the text with every character that XML 1.0 forbids escaped: ``\x00``, ``\ufffe``, ``\udc80``."""
    # Nearly every text is valid. A search is ten times faster than a translation, which is faster than `re.sub`.
    return text if _UNFIT.search(text) is None else text.translate(_ESCAPES)


def inert_line(text: str) -> str:
    r"""Return the text as one line that nothing in it can end or restyle: ``\n``, ``\x1b``, ``\u202e`` are escaped.

    For terminals and logs, to which the texts of a run must be plain text.
    """
    return text if text.isascii() and text.isprintable() else _ACTIVE.sub(_escape, text)


def single_line(text: str, limit: int = 1000) -> str:
    """Return the first line of the cleaned text that is not blank, at most `limit` characters; "" if all are blank."""
    for line in escape_invalid_xml(text[: 4 * limit]).splitlines():
        if line.strip():
            line = inert_line(line.strip())
            return line if len(line) <= limit else f"{line[: limit - 1]}…"
    return ""


def last_error_line(output: str) -> str:
    """Return the most informative line of a program's output: the last one about an error, otherwise the last one."""
    lines = [line for line in output.splitlines() if line.strip()]
    for sign in ("E  ", "ERROR"):
        if errors := [line.removeprefix("E  ").strip() for line in lines if line.startswith(sign)]:
            return single_line(errors[-1], 300)
    return single_line(lines[-1], 300) if lines else ""


def truncate_middle(text: str, limit: int) -> str:
    """Return the head and tail of the text, `limit` characters, around a line with the number of cut characters.

    The line does not count. A text within the limit is returned unchanged. With a limit of 0, only the line is
    returned.
    """
    cut = len(text) - limit
    if cut <= 0:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n[... {cut} of {len(text)} characters cut ...]\n{text[len(text) - tail :]}"


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return the key that sorts texts with the numbers in them by size: ``580.95`` before ``580.105``."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return the number with its noun: ``1 case``, ``2 cases``.

    `plural`: the plural of a noun that does not just add an s.
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def list_first(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, each on one line: ``a, b, c, …``."""
    return ", ".join(map(single_line, names[:most])) + (", …" if len(names) > most else "")


def format_exit_code(status: int) -> str:
    """Return the text for an exit code of ``os.waitstatus_to_exitcode``: ``exit status 3``, ``SIGSEGV``."""
    return f"exit status {status}" if status >= 0 else signal_name(-status)


def signal_name(number: int) -> str:
    """Return the name of a signal; ``signal 42`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def markdown_row(cells: Iterable[str]) -> str:
    """Return a row of a table in Markdown."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def format_bytes(count: int) -> str:
    """Return a number of bytes in the largest binary unit that it reaches, with one decimal, rounded down.

    The number is rounded down, so that a device with 11.96 GiB, which fails ``>=12GiB``, is not shown as 12.0GiB.
    """
    unit, name = next(((u, n) for u, n in _UNITS if count >= u), (1, "B"))
    if unit == 1:
        return f"{count}B"
    tenths = count * 10 // unit
    return f"{tenths // 10}.{tenths % 10}{name}"


_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
