"""pytest's reports on the wire and back, and the reports that stand for what pytest could not see."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from harness.isolation.wire import Message, ProtocolError
from harness.outcome import Outcome, Ruling

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
            when=_phase(message["when"]),
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


def show_warning(item: pytest.Item, recorded: RecordedWarning) -> None:
    """Have pytest record a warning on `item`."""
    told = {"warning_message": recorded.warning, "when": recorded.when, "nodeid": item.nodeid, "location": None}
    item.config.hook.pytest_warning_recorded.call_historic(kwargs=told)


def _location(value: object) -> tuple[str, int | None, str]:
    """A place as pytest has it. The executor's, since to find it costs more than all the rest of a report."""
    match value:
        case [str(path), int() | None as line, str(name)]:
            return path, line, name
        case other:
            raise TypeError(f"location {other!r}, expected path, line and name")


def _phase(word: object) -> Any:
    if word not in _PHASES:
        raise ValueError(f"unknown phase {word!r}")
    return word


def synthetic(
    item: pytest.Item,
    *,
    outcome: Outcome,
    text: str,
    when: str = "call",
    duration: float = 0.0,
    sections: Sequence[tuple[str, str]] = (),
) -> Report:
    """A failing report for an outcome that pytest has no word for (crashed, timeout, leaked …)."""
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when=_phase(when),
        sections=sections,
        duration=duration,
    )
    mark(report, outcome)
    return report


def skipped(item: pytest.Item, *, outcome: Outcome, text: str) -> Report:
    """The one report, of the setup phase, of a case that was not run on purpose."""
    path, line, _ = item.location
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="skipped",
        longrepr=(str(path), (line or 0) + 1, text),
        when="setup",
    )
    mark(report, outcome)
    return report


def gated(item: pytest.Item, why: str, objection: Ruling | None) -> Report:
    """The report of a case that is not run because a requirement is unmet; a failure where the run objects to that."""
    if objection is None:
        return skipped(item, outcome=Outcome.GATED, text=f"gated: {why}")
    return synthetic(item, outcome=objection.outcome, text=objection.text, when="setup")


def expected(item: pytest.Item, reason: str, duration: float) -> Report:
    """The report of a case that went wrong as a waiver expects: to pytest, an expected failure."""
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="skipped",
        longrepr=reason,
        when="call",
        duration=duration,
    )
    report.wasxfail = reason
    return report


def plain(item: pytest.Item, when: str) -> Report:
    """A passed report of a phase that took no time, to complete a case whose other phases never reported."""
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="passed",
        longrepr=None,
        when=_phase(when),
    )


def mark(report: Report, outcome: Outcome) -> None:
    """Attach the outcome to a report; plain attributes survive xdist's and our own serialisation."""
    report.harness_outcome = outcome.value  # type: ignore[attr-defined]


def outcome_of(report: object) -> Outcome | None:
    """The outcome attached by `mark`, or None."""
    value = getattr(report, "harness_outcome", None)
    return None if value is None else Outcome(value)


def log(item: pytest.Item, shown: Sequence[Report]) -> None:
    """Show pytest, and through it every other plugin, what became of `item`."""
    location = shown[0].location
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=location)
    for report in shown:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=location)
