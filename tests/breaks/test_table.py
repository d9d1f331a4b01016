"""The table of breaks and the cases that noticed them, with plain values."""

from __future__ import annotations

import json

import pytest

from tests.breaks.table import Result, Table, Verdict, table_json, table_text

A, B, C = (f"suites/amp/test_a.py::{name}" for name in "abc")
RAN = frozenset({A, B, C})

MANY = Result("many", "Much is wrong.", "cpu", {A: "failed", B: "crashed"}, RAN)
ALONE = Result("alone", "Little is wrong.", "cpu", {A: "failed"}, RAN)
MISSED = Result("missed", "Nobody sees it.", "soft", {}, RAN, struck=4)
UNUSABLE = Result("unusable", "It has no effect.", "cpu", unusable="its demonstration shows nothing: 1")


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (MANY, "noticed"),
        (MISSED, "missed"),
        (UNUSABLE, "unusable"),
        (Result("own", "It is wrong.", "cpu", {}, RAN, stumbled={A: "TypeError: x"}), "stumbled"),
        (Result("own", "It is wrong.", "cpu", {B: "failed"}, RAN, stumbled={A: "TypeError: x"}), "noticed"),
    ],
)
def test_the_verdict_of_a_break(result: Result, verdict: Verdict) -> None:
    assert result.verdict == verdict


def test_what_follows_from_the_rows() -> None:
    table = Table((MANY, ALONE, MISSED, UNUSABLE))
    assert table.missed == ("missed",)
    assert table.noticed_alone == {"alone": A}
    assert table.blind == (C,)
    assert table.unusable == {"unusable": "its demonstration shows nothing: 1"}
    assert not table.green


@pytest.mark.parametrize(
    ("table", "green"),
    [
        (Table((MANY, ALONE)), True),
        (Table((MANY, MISSED)), False),
        (Table((MANY, UNUSABLE)), False),
        (Table((MANY,), 2, {C: "failed"}), False),
        (Table((MANY,), 3, {}, ("alone",)), False),
    ],
    ids=["all_noticed", "missed", "unusable", "red_without", "not_run"],
)
def test_green_is_all_tried_all_noticed_and_nothing_red_without(table: Table, green: bool) -> None:
    assert table.green is green


def test_the_text() -> None:
    assert table_text(Table((MANY, ALONE, MISSED, UNUSABLE), 2, {B: "failed"}, ("later",))) == (
        "break     device  noticed by\n"
        "many      cpu              2  test_a.py::a (failed), test_a.py::b (crashed)\n"
        "alone     cpu              1  test_a.py::a (failed)\n"
        "missed    soft        MISSED  Nobody sees it. (3 cases ran; occurred 4 times)\n"
        "unusable  cpu      not tried  its demonstration shows nothing: 1\n"
        "\n"
        "2 of 3 breaks noticed (67%)\n"
        "missed: missed\n"
        "not tried: unusable\n"
        "not run: later\n"
        "noticed by one case alone: 1 break, by 1 case in all\n"
        "2 of 3 cases noticed something\n"
        f"    noticed nothing: 1 case of {C.partition('::')[0]}\n"
        "without a break: 2 cases passed, 1 red\n"
        f"    failed {B}\n"
    )


def test_the_text_is_silent_of_what_there_is_not() -> None:
    assert table_text(Table((MANY,), 3)).splitlines()[3:] == [
        "1 of 1 break noticed (100%)",
        "2 of 3 cases noticed something",
        f"    noticed nothing: 1 case of {C.partition('::')[0]}",
        "without a break: 3 cases passed, 0 red",
    ]


def test_the_table_names_a_few_of_the_cases_that_do_not_count() -> None:
    row = Result("slow", "takes long", "soft", {A: "timeout"}, RAN, not_counted=(B, C, "d", A))
    lines = table_text(
        Table((row, Result("own", "It is wrong.", "cpu", {}, RAN, stumbled={A: "TypeError: x"})))
    ).splitlines()
    assert f"not counted for slow: 4 cases in which it did not occur, green alone: {B}, {C}, d, …" in lines
    assert f"not counted for own: 1 case in which no check failed, but a call: {A}" in lines
    assert "own    cpu         MISSED  It is wrong. (3 cases ran; 1 failed without a check)" in lines


def test_the_json_has_every_case() -> None:
    values = json.loads(table_json(Table((MANY, ALONE, MISSED, UNUSABLE), 3, {C: "failed"}, ("later",))))
    assert values["breaks"][0] == {
        "name": "many",
        "breaks": "Much is wrong.",
        "device": "cpu",
        "noticed_by": {A: "failed", B: "crashed"},
        "ran": 3,
        "unusable": "",
        "stumbled": {},
        "struck": 0,
        "not_counted": [],
    }
    assert {name: value for name, value in values.items() if name != "breaks"} == {
        "missed": ["missed"],
        "not_run": ["later"],
        "noticed_alone": {"alone": A},
        "noticed_nothing": [C],
        "passed_without_a_break": 3,
        "red_without_a_break": {C: "failed"},
    }
