from __future__ import annotations

import enum
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core import plain_values
from harness.core.plain_values import safe_repr, safe_str, to_plain_json


class _Broken:
    def __repr__(self) -> str:
        raise KeyboardInterrupt

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError


class _Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError


class _Number(enum.IntEnum):
    ONE = 1


def _itself() -> list[object]:
    loop: list[object] = [1]
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (_Number.ONE, 1),
        (_Text("text"), "text"),
        ((1, [2.5, "three"]), [1, [2.5, "three"]]),
        ({(1, 2): 3, 4: 5, "name": {6}}, {"(1, 2)": 3, "4": 5, "name": "{6}"}),
        (_itself(), [1, "…"]),
        (10**10_000, "an integer of 33220 bits"),
        (_Broken(), "<a _Broken that cannot be shown: it raised KeyboardInterrupt>"),
        (b"\xff", "b'\\xff'"),
    ],
    ids=range(10),
)
def test_values(value: object, expected: object) -> None:
    found = to_plain_json(value)
    assert found == expected
    assert type(found) is type(expected)


def test_what_is_too_much_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_values, "MOST_VALUES", 10)
    monkeypatch.setattr(plain_values, "MOST_TEXTS", 10)
    assert to_plain_json(["x" * 100] * 2) == ["x" * 100] * 2  # short texts may be names
    monkeypatch.setattr(plain_values, "SHORT", 0)
    assert to_plain_json(list(range(100))) == [*range(9), "…"]
    assert len(to_plain_json({number: number for number in range(100)})) == 10
    whole, cut = to_plain_json(["12345678"] * 2)
    assert whole == "12345678"
    assert "6 of 8 characters cut" in cut
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert json.dumps(to_plain_json(deep)).count("[") < 20


def test_texts() -> None:
    assert safe_str(3) == safe_repr(3) == "3"
    assert safe_str("text") == "text"
    assert safe_repr("text") == "'text'"
    assert type(safe_str(_Text("text"))) is str
    for shown in (safe_str(_Broken()), safe_repr(_Broken())):
        assert shown == "<a _Broken that cannot be shown: it raised KeyboardInterrupt>"


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner),
)


@given(_VALUES)
def test_all_of_it_is_json(value: object) -> None:
    found = to_plain_json(value)
    again = json.loads(json.dumps(found))
    assert again == found or _has_nan(found)


def _leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for entry in value.values() for leaf in _leaves(entry)]
    if isinstance(value, list):
        return [leaf for entry in value for leaf in _leaves(entry)]
    return [value]


def _has_nan(value: object) -> bool:
    return any(isinstance(leaf, float) and math.isnan(leaf) for leaf in _leaves(value))
