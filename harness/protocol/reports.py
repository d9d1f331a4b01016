"""Serialises pytest's reports and warnings for the wire, and stores the outcome in a report."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from harness.core.outcome import Outcome
from harness.core.plain_values import safe_str, to_plain_json
from harness.protocol.phase_page import PHASES
from harness.protocol.wire import Message, ProtocolError, decode_message, encode_message

Report = pytest.TestReport
Location = tuple[str, int | None, str]

#: The attributes of a plain report. A report with more attributes was changed by a plugin, and is sent in full.
_PLAIN = vars(Report("", ("", None, ""), {}, "passed", None, "call")).keys()
_WARNING_MODULES = {"builtins": builtins, "pytest": pytest}
#: The most seconds of a duration, and of a moment since 1970, that the journal accepts.
_MOST_SECONDS, _LAST_MOMENT = 1e9, 2.5e11


class PhaseTimes(NamedTuple):
    """The times of a phase: its duration, begin and end in seconds, by the clocks of `harness.core.clock`."""

    duration: float
    start: float
    stop: float


def pack_report(
    config: pytest.Config, report: Report, location: object = None, *, when: str = "", times: PhaseTimes | None = None
) -> Message:
    """Return a report as a message that `unpack_reports` takes.

    A plain pass carries only facts that the receiver lacks. `location` is that of the case, which the receiver knows.
    `when` and `times` are the sender's own values for the phase. They replace impossible values, which a hook of a
    plugin may have set. Exceptions of hooks are passed on.
    """
    phase_now = report.when if type(report.when) is str and report.when in PHASES else when or "call"
    taken = phase_times_of(report, times)._asdict()
    if is_plain_pass(report):
        message: Message = {"op": "pass", "when": phase_now, **taken}
        if report.location is not location:
            message["location"] = report.location
        if report.sections:
            message["sections"] = _sections(report.sections)
        if report.user_properties:
            message["properties"] = _pairs(report.user_properties)
        return message
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    # Convert each attribute separately, so that a large one does not use up the limits of the others.
    data = {str(name): to_plain_json(value) for name, value in (data or {}).items()}
    data |= {"when": phase_now, "outcome": outcome_of_phase(report), **taken}
    data |= {"sections": _sections(report.sections), "user_properties": _pairs(report.user_properties)}
    if not _is_readable(config, data):
        # A plugin has added a value that pytest cannot deserialise. Keep its representation as text.
        data["longrepr"] = None if report.longrepr is None else safe_str(report.longrepr)
    return {"op": "report", "data": data}


def phase_times_of(report: Report, times: PhaseTimes | None) -> PhaseTimes:
    """Return the times in a report. Impossible ones are replaced by the given ones."""
    given = times or PhaseTimes(0.0, 0.0, 0.0)
    return PhaseTimes(
        _possible(report.duration, given.duration, _MOST_SECONDS),
        _possible(report.start, given.start, _LAST_MOMENT),
        _possible(report.stop, given.stop, _LAST_MOMENT),
    )


def _possible(value: object, instead: float, most: float) -> float:
    return value if type(value) is float and 0.0 <= value <= most else instead


def outcome_of_phase(report: Report) -> str:
    """Return pytest's word for the outcome of a report, or the value that a plugin has set instead."""
    return report.outcome if type(report.outcome) is str else safe_str(report.outcome)


def _pairs(entries: object) -> list[list[Any]]:
    """Return pairs of a name and a value, from entries that should be such pairs."""
    plain_entries = to_plain_json(entries)
    if not isinstance(plain_entries, list):
        return [] if not plain_entries else [["", plain_entries]]
    pairs = [entry if isinstance(entry, list) and len(entry) == 2 else ["", entry] for entry in plain_entries]
    return [[name if isinstance(name, str) else safe_str(name), value] for name, value in pairs]


def _sections(entries: object) -> list[list[str]]:
    """Return pairs of texts, from entries that should be such pairs."""
    return [[name, value if isinstance(value, str) else safe_str(value)] for name, value in _pairs(entries)]


def _is_readable(config: pytest.Config, data: dict[str, Any]) -> bool:
    """Return whether pytest can make a report from the data, which only an attempt shows."""
    try:
        copy = decode_message(encode_message({"op": "report", "data": data}), "this process")["data"]
        report = config.hook.pytest_report_from_serializable(config=config, data=copy)
        return isinstance(report, Report) and isinstance(report.longreprtext, str)
    except Exception:  # noqa: BLE001 - of pytest or of a plugin
        return False


def unpack_reports(item: pytest.Item, messages: Sequence[Message]) -> list[Report]:
    """Return the reports of `item` in `messages`. Raise ProtocolError for a message without a valid report."""
    keywords = dict.fromkeys(item.keywords, 1)
    try:
        return [_unpacked(item, keywords, message) for message in messages]
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the executor sent an invalid report ({error!r})") from error


def _unpacked(item: pytest.Item, keywords: dict[str, Any], message: Message) -> Report:
    if message["op"] == "pass":
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=_location(message["location"]) if "location" in message else item.location,
            keywords=keywords,
            outcome="passed",
            longrepr=None,
            when=parse_phase_name(message["when"]),
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


def is_default_pass(report: Report, location: object) -> bool:
    """Return whether a report contains only that a phase of the case at `location` has passed, and when."""
    is_known_phase = report.location is location and type(report.when) is str and report.when in PHASES
    return is_known_phase and is_plain_pass(report) and not report.sections and not report.user_properties


def is_plain_pass(report: Report) -> bool:
    """Return whether a report contains only that a phase has passed, without additions of a plugin."""
    has_passed = type(report.outcome) is str and report.outcome == "passed"
    return has_passed and type(report) is Report and report.longrepr is None and report.__dict__.keys() <= _PLAIN


class RecordedWarning(NamedTuple):
    """A warning, and pytest's `when` of its recording."""

    warning: warnings.WarningMessage
    when: str


def pack_warning(warning: warnings.WarningMessage, when: str) -> Message:
    """Return a warning that pytest recorded, as a message.

    A custom category is replaced by its nearest base class of Python or pytest, and its name is put before the text.
    Otherwise an xdist controller would import the category's module, and end the run if the import fails.
    """
    own = warning.category
    category = next(base for base in own.__mro__ if base.__module__ in _WARNING_MODULES)
    prefix = "" if category is own else f"{own.__name__}: "
    return {
        "op": "warning",
        "when": when,
        "text": prefix + safe_str(warning.message),
        "category": [category.__module__, category.__name__],
        "file": safe_str(warning.filename),
        "line": warning.lineno if type(warning.lineno) is int else 0,
    }


def unpack_warning(message: Message) -> RecordedWarning:
    """Return the warning in `message`. Raise ProtocolError if it has none."""
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
    """Return a location as pytest stores it."""
    match value:
        case [str(path), int() | None as line, str(name)]:
            return path, line, name
        case other:
            raise TypeError(f"location {other!r}, expected path, line and name")


def parse_phase_name(word: object) -> Any:
    if word not in PHASES:
        raise ValueError(f"unknown phase {word!r}")
    return word


def attach_outcome(report: Report, outcome: Outcome) -> None:
    """Attach the outcome to a report. Plain attributes survive the serialisation of xdist and of the harness."""
    report.harness_outcome = outcome.value  # type: ignore[attr-defined]


def outcome_of_case(report: Report) -> Outcome | None:
    """Return the outcome that `attach_outcome` attached, or None."""
    value: str | None = getattr(report, "harness_outcome", None)
    return None if value is None else Outcome(value)


def detach_outcome(report: Report) -> None:
    """Remove the outcome that `attach_outcome` attached."""
    del report.harness_outcome


def attach_xml_attributes(report: Report, attributes: Mapping[str, str]) -> None:
    """Attach the attributes that a case recorded by ``record_xml_attribute`` to its report."""
    report.harness_xml_attributes = dict(attributes)  # type: ignore[attr-defined]


def xml_attributes_of(report: Report) -> Mapping[str, str]:
    """Return the attributes that the case of a report recorded by ``record_xml_attribute``."""
    attributes: object = getattr(report, "harness_xml_attributes", None)
    return attributes if isinstance(attributes, dict) else {}


def attach_replayed(report: Report) -> None:
    """Mark a report as that of a case that did not run now, because it had its verdict before the run was resumed."""
    report.harness_replayed = True  # type: ignore[attr-defined]
