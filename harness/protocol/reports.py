"""Serialises pytest's reports and warnings for the wire, and stores the outcome in a report."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from harness.outcome import Outcome
from harness.protocol.phase_page import PHASES
from harness.protocol.wire import Message, ProtocolError

Report = pytest.TestReport
Location = tuple[str, int | None, str]

#: The attributes of a plain report. A report with more was changed by a plugin, and is sent whole.
_PLAIN = vars(Report("", ("", None, ""), {}, "passed", None, "call")).keys()
_WARNING_MODULES = {"builtins": builtins, "pytest": pytest}


def pack(config: pytest.Config, report: Report, location: object = None) -> Message:
    """Returns a report as a message. Of a plain pass only unknown facts are sent.

    `location` is that of the case, which the receiver knows.
    """
    if is_plain_pass(report):
        message: Message = {
            "op": "pass",
            "when": report.when,
            "duration": report.duration,
            "start": report.start,
            "stop": report.stop,
        }
        if report.location is not location:
            message["location"] = report.location
        if report.sections:
            message["sections"] = report.sections
        if report.user_properties:
            message["properties"] = report.user_properties
        return message
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    return {"op": "report", "data": data}


def unpack(item: pytest.Item, messages: Sequence[Message]) -> list[Report]:
    """Returns the reports of `item` in `messages`. Raises ProtocolError for a message without a valid report."""
    keywords = dict.fromkeys(item.keywords, 1)
    try:
        return [_unpacked(item, keywords, message) for message in messages]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the executor sent an invalid report ({error!r})") from error


def _unpacked(item: pytest.Item, keywords: dict[str, Any], message: Message) -> Report:
    if message["op"] == "pass":
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=_location(message["location"]) if "location" in message else item.location,
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
    data["nodeid"] = item.nodeid  # --dist=loadgroup changes the id in the worker
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
    if not isinstance(report, pytest.TestReport):
        raise TypeError(f"a {type(report).__name__}, expected a test report")
    if isinstance(report.longrepr, list):  # JSON turns the tuple of a skip into a list
        report.longrepr = tuple(report.longrepr)
    return report


def is_bare_pass(report: Report, location: object) -> bool:
    """Whether a report says of a phase of the case at `location` only that it has passed, and when."""
    known = report.location is location and report.when in PHASES
    return known and is_plain_pass(report) and not report.sections and not report.user_properties


def is_plain_pass(report: Report) -> bool:
    """Whether a report says that a phase has passed, and has nothing that a plugin added."""
    return report.passed and type(report) is Report and report.longrepr is None and vars(report).keys() <= _PLAIN


class Failure(NamedTuple):
    """An exception of another process: one line of text, and its traceback."""

    error: str
    traceback: str


def unpack_failure(message: object) -> Failure:
    """Returns the exception in `message`. Raises ProtocolError if it has none."""
    match message:
        case {"error": str(error), "traceback": str(traceback)}:
            return Failure(error, traceback)
        case other:
            raise ProtocolError(f"an executor sent {other!r}, expected an error and its traceback")


class RecordedWarning(NamedTuple):
    """A warning, and pytest's `when` of its recording."""

    warning: warnings.WarningMessage
    when: str


def pack_warning(warning: warnings.WarningMessage, when: str) -> Message:
    """Returns a warning that pytest recorded, as a message.

    A custom category is replaced by its nearest base class of Python or pytest, and its name is put before the text.
    Otherwise an xdist controller would import the category's module, and end the run if the import fails.
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
    """Returns the warning in `message`. Raises ProtocolError if it has none."""
    try:
        module, name = message["category"]
        category = getattr(_WARNING_MODULES[module], name)
        if not (isinstance(category, type) and issubclass(category, Warning)):
            raise TypeError(f"{name} is not a warning category")
        warning = warnings.WarningMessage(str(message["text"]), category, str(message["file"]), int(message["line"]))
        return RecordedWarning(warning, str(message["when"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the executor sent an invalid warning ({error!r})") from error


def _location(value: object) -> Location:
    """Returns a location as pytest stores it."""
    match value:
        case [str(path), int() | None as line, str(name)]:
            return path, line, name
        case other:
            raise TypeError(f"location {other!r}, expected path, line and name")


def phase(word: object) -> Any:
    if word not in PHASES:
        raise ValueError(f"unknown phase {word!r}")
    return word


def mark(report: Report, outcome: Outcome) -> None:
    """Attach the outcome to a report. Plain attributes survive the serialisation of xdist and of the harness."""
    report.harness_outcome = outcome.value  # type: ignore[attr-defined]


def unmark(report: Report) -> None:
    """Remove the outcome that `mark` attached."""
    del report.harness_outcome


def mark_replayed(report: Report) -> None:
    """Note on a report that its case did not run now: it had its verdict before the run was resumed."""
    report.harness_replayed = True  # type: ignore[attr-defined]


def outcome_of(report: object) -> Outcome | None:
    """Returns the outcome attached by `mark`, or None."""
    value = getattr(report, "harness_outcome", None)
    return None if value is None else Outcome(value)
