"""A strict reader for exported traces: content that a viewer would have to guess is an error.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Only `load` reads files.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any


class TraceError(ValueError):
    """The file is not a valid trace."""


@dataclass(frozen=True, slots=True)
class Span:
    """A complete event: a duration on one line of the trace (a thread of a process)."""

    category: str
    name: str
    line: tuple[str, str]
    start_ns: int
    end_ns: int
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """An event without duration: an instant (`i`), or the start (`s`) or end (`f`) of a flow arrow."""

    phase: str
    category: str
    name: str
    line: tuple[str, str]
    at_ns: int
    arrow: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace: its events in file order, and the file's other fields."""

    spans: tuple[Span, ...]
    moments: tuple[Moment, ...]
    properties: Mapping[str, Any]

    def of(self, *categories: str) -> list[Span]:
        """Return the spans of these categories, each before those within it."""
        spans = [span for span in self.spans if span.category in categories]
        return sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))


HOST = ("cpu_op", "user_annotation")  # operators and autograd nodes; scopes
_REQUIRED = {
    "X": ("name", "cat", "pid", "tid", "ts", "dur"),
    "i": ("name", "pid", "tid", "ts", "s"),
    "s": ("name", "cat", "pid", "tid", "ts", "id"),
    "f": ("name", "cat", "pid", "tid", "ts", "id", "bp"),
    "M": ("name", "pid", "args"),
}


def load(file: Path) -> Trace:
    """Return the trace in a file, compressed if its name ends in `.gz`. Raise TraceError if it is invalid."""
    content = file.read_bytes()
    return parse(gzip.decompress(content) if file.suffix == ".gz" else content)


def parse(content: bytes) -> Trace:
    """Return the trace in the bytes of a file.

    Raise TraceError for data that is not strict JSON (RFC 8259: no NaN, no duplicate keys, UTF-8), lacks the list of
    events, or has an event with an unknown phase, a missing field, or an invalid time.
    """
    try:
        document = json.loads(
            content.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_object, parse_float=Decimal
        )
    except ValueError as error:
        raise TraceError(f"not strict JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise TraceError("no list 'traceEvents' at the top of the file")
    events = document.pop("traceEvents")
    for event in events:
        _check(event)
    return Trace(
        spans=tuple(_span(event) for event in events if event["ph"] == "X"),
        moments=tuple(_moment(event) for event in events if event["ph"] in ("i", "s", "f")),
        properties=document,
    )


def crossing(spans: Iterable[Span]) -> tuple[Span, Span] | None:
    """Return two spans of one line that overlap without nesting; None if all nest."""
    open_spans: dict[tuple[str, str], list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        stack = open_spans.setdefault(span.line, [])
        while stack and stack[-1].end_ns <= span.start_ns:
            stack.pop()
        if stack and stack[-1].end_ns < span.end_ns:
            return stack[-1], span
        stack.append(span)
    return None


def indented(spans: Iterable[Span]) -> list[tuple[int, str]]:
    """Return the spans in order of time, each with its nesting depth on its line, and its name.

    The spans must nest and be in the order of `Trace.of`.
    """
    open_spans: dict[tuple[str, str], list[Span]] = {}
    result: list[tuple[int, str]] = []
    for span in spans:
        stack = open_spans.setdefault(span.line, [])
        while stack and stack[-1].end_ns <= span.start_ns:
            stack.pop()
        result.append((len(stack), span.name))
        stack.append(span)
    return result


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"duplicate keys in an object with the keys {[name for name, _ in pairs]}")
    return fields


def _check(event: Any) -> None:
    phase = event.get("ph") if isinstance(event, dict) else None
    if phase not in _REQUIRED:
        raise TraceError(f"an event of phase {phase!r}, expected one of {sorted(_REQUIRED)}: {event}")
    missing = [name for name in _REQUIRED[phase] if name not in event]
    if missing:
        raise TraceError(f"an event of phase {phase!r} without {missing}: {event}")
    for name in ("ts", "dur"):
        value = event.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or value < 0:
            raise TraceError(f"{name} is {value!r}, which is not a time: {event}")
    if not isinstance(event["name"], str) or not isinstance(event.get("args", {}), dict):
        raise TraceError(f"a name that is not a string, or args that are not an object: {event}")


def _line(event: Mapping[str, Any]) -> tuple[str, str]:
    return str(event["pid"]), str(event["tid"])


def _ns(microseconds: Decimal | int) -> int:
    return int(microseconds * 1000)


def _span(event: Mapping[str, Any]) -> Span:
    start = _ns(event["ts"])
    end = start + _ns(event["dur"])
    return Span(event["cat"], event["name"], _line(event), start, end, event.get("args", {}))


def _moment(event: Mapping[str, Any]) -> Moment:
    return Moment(
        event["ph"],
        event.get("cat", ""),
        event["name"],
        _line(event),
        _ns(event["ts"]),
        str(event.get("id", "")),
        event.get("args", {}),
    )
