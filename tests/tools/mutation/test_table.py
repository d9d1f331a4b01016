"""The table of breaks and the cases that caught them, with plain values."""

from __future__ import annotations

import json

from harness.tools.mutation.table import BreakRow, Table, mutation_json, mutation_text

A, B, C = (f"suites/amp/test_a.py::{name}" for name in "abc")
RAN = frozenset({A, B, C})

MANY = BreakRow("many", "Much is wrong.", "cpu", {A: "failed", B: "crashed"}, RAN)
ALONE = BreakRow("alone", "Little is wrong.", "cpu", {A: "failed"}, RAN)
MISSED = BreakRow("missed", "Nobody sees it.", "soft", {}, RAN)
UNUSABLE = BreakRow("unusable", "It has no effect.", "cpu", unusable="its demonstration shows nothing: 1")


def test_what_follows_from_the_rows() -> None:
    table = Table((MANY, ALONE, MISSED, UNUSABLE))
    assert table.missed == ("missed",)
    assert table.caught_alone == {"alone": A}
    assert table.blind == (C,)
    assert table.unusable == {"unusable": "its demonstration shows nothing: 1"}
    assert not table.green


def test_green_is_all_tried_all_caught_and_nothing_red_without() -> None:
    assert Table((MANY, ALONE)).green
    assert not Table((MANY, MISSED)).green
    assert not Table((MANY, UNUSABLE)).green
    assert not Table((MANY,), {C: "failed"}).green


def test_the_text() -> None:
    assert mutation_text(Table((MANY, ALONE, MISSED, UNUSABLE), {B: "failed"})) == (
        "break     device  caught by\n"
        "many      cpu             2  test_a.py::a (failed), test_a.py::b (crashed)\n"
        "alone     cpu             1  test_a.py::a (failed)\n"
        "missed    soft       MISSED  Nobody sees it. (3 cases ran)\n"
        "unusable  cpu     not tried  its demonstration shows nothing: 1\n"
        "\n"
        "2 of 3 breaks caught (67%)\n"
        "missed: missed\n"
        "not tried: unusable\n"
        "caught by one case alone: 1 break, by 1 case in all\n"
        "2 of 3 cases caught something\n"
        f"    caught nothing: 1 case of {C.partition('::')[0]}\n"
        f"red without a break: failed {B}\n"
    )


def test_the_text_is_silent_of_lone_cases_where_there_are_none() -> None:
    assert mutation_text(Table((MANY,))).splitlines()[3:5] == [
        "1 of 1 break caught (100%)",
        "2 of 3 cases caught something",
    ]


def test_the_json_has_every_case() -> None:
    values = json.loads(mutation_json(Table((MANY, ALONE, MISSED, UNUSABLE))))
    assert values["breaks"][0] == {
        "name": "many",
        "breaks": "Much is wrong.",
        "device": "cpu",
        "caught_by": {A: "failed", B: "crashed"},
        "ran": 3,
        "unusable": "",
        "stumbled": {},
    }
    assert values["missed"] == ["missed"]
    assert values["caught_alone"] == {"alone": A}
    assert values["caught_nothing"] == [C]
