"""Reports and warnings on the wire: they arrive in pytest unchanged, and invalid messages are rejected."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from harness.core.outcome import Outcome
from harness.protocol import reports
from harness.protocol.wire import ProtocolError, decode_message, encode_message
from harness.supervisor import case_reports

pytest_plugins = ["pytester"]


def _travelled(message: dict[str, Any]) -> dict[str, Any]:
    return decode_message(encode_message(message)[:-1], "executor e1")


def _report(request: pytest.FixtureRequest, **changes: Any) -> pytest.TestReport:
    fields: dict[str, Any] = {
        "nodeid": request.node.nodeid,
        "location": request.node.location,
        "keywords": {"a": 1},
        "outcome": "passed",
        "longrepr": None,
        "when": "call",
        "sections": [("Captured log call", "text")],
        "duration": 0.25,
        "start": 1.0,
        "stop": 1.25,
        "user_properties": [("size", 3)],
    }
    return pytest.TestReport(**{**fields, **changes})


def test_a_plain_pass_travels_short_and_arrives_whole(request: pytest.FixtureRequest) -> None:
    message = reports.pack_report(request.config, _report(request))
    assert message["op"] == "pass"
    assert request.node.nodeid not in encode_message(message).decode()
    (arrived,) = reports.unpack_reports(request.node, [_travelled(message)])
    assert (arrived.nodeid, arrived.outcome, arrived.when) == (request.node.nodeid, "passed", "call")
    assert arrived.location == request.node.location
    assert (arrived.duration, arrived.start, arrived.stop) == (0.25, 1.0, 1.25)
    assert arrived.sections == [("Captured log call", "text")]
    assert arrived.user_properties == [("size", 3)]
    assert request.node.name in arrived.keywords


def test_only_a_pass_without_anything_else_is_bare(request: pytest.FixtureRequest) -> None:
    bare: dict[str, Any] = {"sections": [], "user_properties": []}
    location = request.node.location
    assert reports.is_default_pass(_report(request, **bare), location)
    assert not reports.is_default_pass(_report(request, **bare), ("a", 1, "b"))
    more: list[dict[str, Any]] = [
        {"sections": [("Captured log call", "text")]},
        {"user_properties": [("size", 3)]},
        {"outcome": "failed", "longrepr": "why"},
        {"outcome": "skipped", "wasxfail": "known"},
        {"marked_by_a_plugin": "yes"},
        {"when": "lunch"},
    ]
    assert not any(reports.is_default_pass(_report(request, **{**bare, **each}), location) for each in more)


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "failed", "longrepr": "why"},
        {"outcome": "skipped", "longrepr": ("file.py", 3, "Skipped: because")},
        {"marked_by_a_plugin": "yes"},
        {"outcome": "skipped", "wasxfail": "known", "longrepr": "text"},
    ],
)
def test_any_other_report_travels_whole(request: pytest.FixtureRequest, changes: dict[str, Any]) -> None:
    message = reports.pack_report(request.config, _report(request, **changes))
    assert message["op"] == "report"
    (arrived,) = reports.unpack_reports(request.node, [_travelled(message)])
    assert {name: getattr(arrived, name) for name in changes} == changes


@pytest.mark.parametrize(
    "message",
    [
        {"op": "pass"},
        {"op": "pass", "when": "call", "duration": 0, "start": 0, "stop": 0, "location": None},
        {"op": "pass", "when": "lunch", "duration": 0, "start": 0, "stop": 0, "location": ["a", 1, "b"]},
        {"op": "pass", "when": "call", "duration": "x", "start": 0, "stop": 0, "location": ["a", 1, "b"]},
        {"op": "pass", "when": "call", "duration": 0, "start": 0, "stop": 0, "location": ["a", "b"]},
        {"op": "pass", "when": "call", "duration": 0, "start": 0, "stop": 0, "location": ["a", 1, "b"], "sections": 3},
        {"op": "report"},
        {"op": "report", "data": {}},
        {
            "op": "report",
            "data": {"$report_type": "CollectReport", "outcome": "passed", "longrepr": None, "result": []},
        },
    ],
)
def test_what_is_no_report_is_refused(request: pytest.FixtureRequest, message: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="sent an invalid"):
        reports.unpack_reports(request.node, [message])


def test_an_outcome_stays_on_its_report(request: pytest.FixtureRequest) -> None:
    shown = case_reports.synthetic(request.node, outcome=Outcome.CRASHED, text="SIGSEGV")
    hook = request.config.hook
    data = hook.pytest_report_to_serializable(config=request.config, report=shown)
    again = hook.pytest_report_from_serializable(config=request.config, data=data)
    assert again.harness_outcome == "crashed"


class _OwnWarning(UserWarning):
    pass


class _Recorder:
    def __init__(self) -> None:
        self.heard: list[tuple[str, type[Warning], str]] = []

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, nodeid: str) -> None:
        self.heard.append((str(warning_message.message), warning_message.category, nodeid))


@pytest.mark.parametrize(
    ("warning", "text", "category"),
    [
        (DeprecationWarning("old"), "old", DeprecationWarning),
        (pytest.PytestWarning("hm"), "hm", pytest.PytestWarning),
        (_OwnWarning("odd"), "_OwnWarning: odd", UserWarning),
    ],
)
def test_a_warning_arrives_with_a_class_that_everyone_knows(
    pytester: pytest.Pytester, warning: Warning, text: str, category: type[Warning]
) -> None:
    item = pytester.getitem("def test_x(): pass", "test_x")
    recorder = _Recorder()
    item.config.pluginmanager.register(recorder)
    recorded = warnings.WarningMessage(warning, type(warning), "file.py", 3)
    arrived = reports.unpack_warning(_travelled(reports.pack_warning(recorded, "runtest")))
    case_reports.show_warning(item, arrived)
    assert recorder.heard[-1] == (text, category, item.nodeid)


@pytest.mark.parametrize("category", [["os", "system"], ["builtins", "print"], ["builtins", "int"], "x", None])
def test_what_is_no_warning_is_refused(category: object) -> None:
    message = {"op": "warning", "when": "runtest", "text": "t", "category": category, "file": "f", "line": 1}
    with pytest.raises(ProtocolError, match="sent an invalid"):
        reports.unpack_warning(message)
