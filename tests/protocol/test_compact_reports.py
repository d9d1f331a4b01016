"""Reports between xdist's worker and its controller: a plain pass is one text, all others have pytest's form."""

from __future__ import annotations

from typing import Any

import pytest

from harness.protocol.compact_reports import compact_report, expand_report

PLAIN: dict[str, Any] = {
    "nodeid": "suites/test_a.py::test_b[\udc80é]",
    "location": ("suites/test_a.py", None, "test_b"),
    "keywords": {"a": 1},
    "outcome": "passed",
    "longrepr": None,
    "when": "call",
    "sections": [("Captured log call", "text")],
    "duration": 0.25,
    "start": 1.0,
    "stop": 1.25,
}


def test_a_plain_pass_arrives_as_it_was() -> None:
    report = pytest.TestReport(**PLAIN)
    sent = compact_report(report)
    assert sent is not None
    assert len(sent) == 1
    assert all(isinstance(value, str) for value in sent.values())
    arrived = expand_report({**sent, "worker_id": "gw0", "testrun_uid": "1"})
    assert arrived is not None
    assert vars(arrived) == {**vars(report), "worker_id": "gw0", "testrun_uid": "1"}


def test_a_case_arrives_as_one() -> None:
    whole = [
        pytest.TestReport(**{**PLAIN, "when": when, "duration": duration, "sections": sections})
        for when, duration, sections in (
            ("setup", 1.0, []),
            ("call", 2.0, [("Captured stdout call", "x")]),
            ("teardown", 3.0, []),
        )
    ]
    sent = compact_report(whole[-1], whole)
    assert sent is not None
    assert len(sent) == 1
    arrived = expand_report({**sent, "worker_id": "gw0", "item_index": 3})
    assert arrived is not None
    before = vars(arrived).pop("harness_before")
    added = {"worker_id": "gw0", "item_index": 3}
    assert [vars(report) for report in (*before, arrived)] == [{**vars(report), **added} for report in whole]


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "failed", "longrepr": "why"},
        {"outcome": "skipped", "longrepr": ("file.py", 3, "Skipped: because")},
        {"marked_by_a_plugin": "yes"},
        {"user_properties": [("size", object())]},
    ],
)
def test_every_other_report_is_left_to_pytest(changes: dict[str, Any]) -> None:
    assert compact_report(pytest.TestReport(**{**PLAIN, **changes})) is None


def test_a_report_of_a_collection_is_left_to_pytest() -> None:
    assert compact_report(pytest.CollectReport("suites", "passed", None, [])) is None


def test_what_pytest_has_packed_is_left_to_pytest() -> None:
    assert expand_report({"$report_type": "TestReport"}) is None
