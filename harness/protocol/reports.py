"""pytest's reports and warnings on the wire and back, and the outcome that a report carries."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from harness.outcome import Outcome
from harness.protocol.wire import Message, ProtocolError

Report = pytest.TestReport

#: The attributes of a plain report; one with more was marked by a plugin and travels whole.
_PLAIN = vars(Report("", ("", None, ""), {}, "passed", None, "call")).keys()
_WARNING_MODULES = {"builtins": builtins, "pytest": pytest}
_PHASES = ("setup", "call", "teardown")


def pack(config: pytest.Config, report: Report) -> Message:
    """A report as a message. A plain pass, nearly every report of a run, is sent without what the receiver knows."""
    if report.passed and type(report) is Report and report.longrepr is None and vars(report).keys() <= _PLAIN:
        message: Message = {
            "op": "pass",
            "when": report.when,
            "duration": report.duration,
            "start": report.start,
            "stop": report.stop,
            "location": report.location,
        }
        if report.sections:
            message["sections"] = report.sections
        if report.user_properties:
            message["properties"] = report.user_properties
        return message
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    return {"op": "report", "data": data}


def unpack(item: pytest.Item, messages: Sequence[Message]) -> list[Report]:
    """The reports of `item` that `messages` hold. Raises ProtocolError when one holds none."""
    keywords = dict.fromkeys(item.keywords, 1)
    try:
        return [_unpacked(item, keywords, message) for message in messages]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the executor sent a report that cannot be read ({error!r})") from error


def _unpacked(item: pytest.Item, keywords: dict[str, Any], message: Message) -> Report:
    if message["op"] == "pass":
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=_location(message["location"]),
            keywords=keywords,
            outcome="passed",
            longrepr=None,
            when=phase(message["when"]),
            sections=[(str(name), str(text)) for name, text in message.get("sections", ())],
            duration=float(message["duration"]),
            start=float(message["start"]),
            stop=float(message["stop"]),
            user_properties=[(name, value) for name, value in message.get("properties", ())],
        )
    data = message["data"]
    data["nodeid"] = item.nodeid  # --dist=loadgroup has its own idea of the id in the worker
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
    if not isinstance(report, pytest.TestReport):
        raise TypeError(f"a {type(report).__name__}, expected a test report")
    if isinstance(report.longrepr, list):  # what JSON makes of the place and reason of a skip
        report.longrepr = tuple(report.longrepr)
    return report


class Failure(NamedTuple):
    """An exception that was raised in another process, in one line, and its traceback."""

    error: str
    traceback: str


def unpack_failure(message: object) -> Failure:
    """The exception that `message` holds. Raises ProtocolError when it holds none."""
    match message:
        case {"error": str(error), "traceback": str(traceback)}:
            return Failure(error, traceback)
        case other:
            raise ProtocolError(f"an executor sent {other!r}, expected an error and its traceback")


class RecordedWarning(NamedTuple):
    """A warning and the moment of pytest's in which it was recorded."""

    warning: warnings.WarningMessage
    when: str


def pack_warning(warning: warnings.WarningMessage, when: str) -> Message:
    """A warning that pytest recorded, as a message.

    A class of one's own is replaced by the nearest one that Python or pytest brings, its name put before the text: an
    xdist controller would import its module, and end the run when it cannot.
    """
    own = warning.category
    category = next(base for base in own.__mro__ if base.__module__ in _WARNING_MODULES)
    prefix = "" if category is own else f"{own.__name__}: "
    return {
        "op": "warning",
        "when": when,
        "text": f"{prefix}{warning.message}",
        "category": [category.__module__, category.__name__],
        "file": warning.filename,
        "line": warning.lineno,
    }


def unpack_warning(message: Message) -> RecordedWarning:
    """The warning that `message` holds. Raises ProtocolError when it holds none."""
    try:
        module, name = message["category"]
        category = getattr(_WARNING_MODULES[module], name)
        if not (isinstance(category, type) and issubclass(category, Warning)):
            raise TypeError(f"{name} is no warning")
        warning = warnings.WarningMessage(str(message["text"]), category, str(message["file"]), int(message["line"]))
        return RecordedWarning(warning, str(message["when"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the executor sent a warning that cannot be read ({error!r})") from error


def _location(value: object) -> tuple[str, int | None, str]:
    """A place as pytest has it. The executor's, since to find it costs more than all the rest of a report."""
    match value:
        case [str(path), int() | None as line, str(name)]:
            return path, line, name
        case other:
            raise TypeError(f"location {other!r}, expected path, line and name")


def phase(word: object) -> Any:
    if word not in _PHASES:
        raise ValueError(f"unknown phase {word!r}")
    return word


def mark(report: Report, outcome: Outcome) -> None:
    """Attach the outcome to a report; plain attributes survive xdist's and our own serialisation."""
    report.harness_outcome = outcome.value  # type: ignore[attr-defined]


def outcome_of(report: object) -> Outcome | None:
    """The outcome attached by `mark`, or None."""
    value = getattr(report, "harness_outcome", None)
    return None if value is None else Outcome(value)
