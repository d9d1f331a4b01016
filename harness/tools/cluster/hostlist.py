"""Lists of hosts in Slurm's notation: ``gpu[001-064,070],login1``. Pure functions.

Slurm's own reader (``scontrol show hostnames``) needs Slurm, and a fleet over ssh has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from harness.core.errors import HarnessError

#: The most hosts of a list, so that a mistake such as ``a[1-1000000000]`` ends at once.
MOST_HOSTS = 65_536
_NAME = re.compile(r"[A-Za-z0-9@:._%/-]{1,200}")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?", re.ASCII)
#: The last number of a name that is read backwards, between what follows and what precedes it.
_LAST_NUMBER = re.compile(r"(\D*)(\d{1,12})(.*)", re.ASCII | re.DOTALL)


class HostlistError(HarnessError):
    """A list of hosts cannot be read."""


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, in order. Raise HostlistError, also for a host that is in it twice.

    >>> expand("a[1-3,08],b")
    ('a1', 'a2', 'a3', 'a08', 'b')
    """
    hosts: list[str] = []
    for part in _parts(text):
        for host in _expanded(part, text):
            if not _NAME.fullmatch(host):
                raise HostlistError(f"{text!r}: {host!r} is no host; expected names such as a[1-64],b7")
            hosts.append(host)
            if len(hosts) > MOST_HOSTS:
                raise HostlistError(f"{text!r} has more than {MOST_HOSTS} hosts; write a shorter list")
    if not hosts:
        raise HostlistError(f"{text!r} has no host; expected names such as a[1-64],b7")
    if len({*hosts}) < len(hosts):
        twice = next(host for host in hosts if hosts.count(host) > 1)
        raise HostlistError(f"{text!r} has {twice!r} twice; write each host once")
    return tuple(hosts)


def _parts(text: str) -> Iterator[str]:
    """Split at commas outside of brackets."""
    depth, part = 0, ""
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if not 0 <= depth <= 1:
            raise HostlistError(f"{text!r} has brackets that do not match; expected names such as a[1-64],b7")
        if character == "," and not depth:
            yield part.strip()
            part = ""
        else:
            part += character
    if depth:
        raise HostlistError(f"{text!r} has a bracket that is not closed; expected names such as a[1-64],b7")
    yield part.strip()


def _expanded(part: str, text: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        if part:
            yield part
        return
    inside, _, tail = rest.partition("]")
    for words in inside.split(","):
        match = _RANGE.fullmatch(words.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first or last - first >= MOST_HOSTS:
            raise HostlistError(f"{text!r}: {words!r} is no range; expected numbers such as 1-64 or 001-064")
        width = len(match[1])
        for number in range(first, last + 1):
            for end in _expanded(tail, text) if tail else [""]:
                yield f"{head}{number:0{width}}{end}"


def fold(hosts: Iterable[str]) -> str:
    """Return the hosts as a list, in order of name and number; `expand` is the inverse but for the order.

    >>> fold(["a3", "b", "a1", "a2", "a08"])
    'a[1-3,08],b'
    """
    numbered: dict[tuple[str, str], list[str]] = {}
    plain: list[str] = []
    for host in {*hosts}:
        match = _LAST_NUMBER.fullmatch(host[::-1])
        tail, digits, head = (part[::-1] for part in match.groups()) if match else ("", "", host)
        if not digits or any(character in head for character in ":@/"):
            plain.append(host)
        else:
            numbered.setdefault((head, tail), []).append(digits)
    merged = {key: _folded_numbers(digits) for key, digits in sorted(numbered.items())}
    texts = [
        f"{head}[{','.join(ranges)}]{tail}" if len(ranges) > 1 or "-" in ranges[0] else f"{head}{ranges[0]}{tail}"
        for (head, tail), ranges in merged.items()
    ]
    return ",".join(sorted([*texts, *plain]))


def _folded_numbers(numbers: Sequence[str]) -> list[str]:
    """Return the ranges of numbers. ``010`` and ``9`` are in different ones; ``10`` may follow ``09``."""
    padded = {len(number) for number in numbers if number.startswith("0") and len(number) > 1}
    widths: dict[int, list[int]] = {}
    for number in numbers:
        widths.setdefault(len(number) if len(number) in padded else 0, []).append(int(number))
    return [text for width, values in sorted(widths.items()) for text in _ranges(sorted(values), width)]


def _ranges(numbers: list[int], width: int) -> Iterator[str]:
    begin = before = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == before + 1:
            before = number
            continue
        yield f"{begin:0{width}}" if begin == before else f"{begin:0{width}}-{before:0{width}}"
        if number is not None:
            begin = before = number
