"""The cases of a shard: a pure function of the id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.caseid import Shard, shard_index

IDS = [f"suites/streams/test_x.py::test_{number}" for number in range(3000)]


@pytest.mark.parametrize(("text", "index", "count"), [("1/1", 1, 1), ("2/3", 2, 3), ("007/9", 7, 9)])
def test_a_shard_is_written_as_index_and_count(text: str, index: int, count: int) -> None:
    assert Shard.parse(text) == Shard(index, count)
    assert str(Shard.parse(text)) == f"{index}/{count}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5/4", "with I from 1 to N, for example 1/4"),
        ("0/4", "with I from 1 to N, for example 1/4"),
        ("1/0", "with I from 1 to N, for example 1/1"),
        *(
            (text, "with whole numbers, for example 1/3")
            for text in ("", "1", "/", "1/", "-1/3", "a/b", "1/3/5", "1 /3")
        ),
        ("1/1000000000", "with whole numbers"),
        ("\u0661/3", "with whole numbers"),
    ],
)
def test_anything_else_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Shard.parse(text)


@given(st.lists(st.text(), unique=True), st.integers(1, 50))
def test_each_case_belongs_to_exactly_one_shard(ids: list[str], count: int) -> None:
    shards = [Shard(index, count) for index in range(1, count + 1)]
    for case in ids:
        assert [shard for shard in shards if shard.has(case)] == [Shard(shard_index(case, count), count)]


def test_the_hash_is_the_same_in_every_version_and_process() -> None:
    assert [shard_index(case, 7) for case in IDS[:12]] == [5, 5, 3, 6, 4, 4, 4, 6, 6, 4, 4, 2]


def test_shards_are_about_as_large_as_each_other() -> None:
    sizes = [sum(Shard(index, 3).has(case) for case in IDS) for index in (1, 2, 3)]
    assert sum(sizes) == len(IDS)
    assert max(sizes) - min(sizes) < 150


def test_an_id_that_no_encoding_has_belongs_to_a_shard_too() -> None:
    assert 1 <= shard_index("test[\udc80]", 3) <= 3
