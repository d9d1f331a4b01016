"""Arguments of marks as JSON values."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable

import pytest

from harness.collection.description import OpaqueValue, decode_plain, encode_plain


class Word(str, enum.Enum):  # noqa: UP042 - for a StrEnum, `str` returns the value
    """A word with its own class, whose `str` is not its value."""

    CUDA = "cuda"


class Size(int):
    """A number with its own class."""


class Unprintable:
    """An object whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def _deep() -> list[object]:
    outer: list[object] = []
    outer.append(outer)
    return outer


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -5, 1.5, "", "größe", "\ud800", [], [1, [2]], (), (1, ("a",)), {}, {"a": (1,)}, {"tuple": [1]}],
)
def test_plain_values_survive(value: object) -> None:
    back = decode_plain(json.loads(json.dumps(encode_plain(value))))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(("value", "plain"), [(Word.CUDA, "cuda"), (Size(3), 3), ([Word.CUDA], ["cuda"])])
def test_a_value_of_a_subclass_keeps_its_value(value: object, plain: object) -> None:
    back = decode_plain(json.loads(json.dumps(encode_plain(value))))
    assert back == plain
    assert type(back) is type(plain)


@pytest.mark.parametrize("make", [object, Unprintable, lambda: {1: 2}, lambda: {1, 2}, lambda: 1 << 70, lambda: b"x"])
def test_other_values_are_marked_as_not_plain(make: Callable[[], object]) -> None:
    back = decode_plain(json.loads(json.dumps(encode_plain(make()))))
    assert isinstance(back, OpaqueValue)
    assert repr(back).startswith("<not plain: ")


def test_a_list_within_itself_ends() -> None:
    assert "not plain" in repr(decode_plain(encode_plain(_deep())))


def test_a_long_repr_is_cut() -> None:
    back = decode_plain(encode_plain(frozenset({"x" * 10_000})))
    assert isinstance(back, OpaqueValue)
    assert len(back.text) < 500
