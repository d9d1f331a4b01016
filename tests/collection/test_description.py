"""The description of a collection: its file, and the order of the items."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.collection import description
from harness.collection.description import (
    CollectionDescription,
    DescriptionError,
    MarkRecord,
    NodeRecord,
    OpaqueValue,
    sort_by_order,
)

ITEM = NodeRecord(
    name="test_it[1]",
    marks=(0, 1),
    keywords=("special",),
    extra=("more",),
    attributes=("special",),
    location=("suites/test_a.py", 3, "TestA.test_it[1]"),
)
FULL = CollectionDescription(
    hash="sha256:1",
    order=("suites/test_a.py::TestA::test_it[1]",),
    marks=(MarkRecord("requires", (), {"device": "cuda"}), MarkRecord("covers", ("a", ("b",)))),
    modules={
        "/x/suites/test_a.py": NodeRecord("test_a.py", children=(NodeRecord("TestA", marks=(1,), children=(ITEM,)),)),
        "/x/suites/test_b.py": NodeRecord("test_b.py", children=(), report={"outcome": "failed", "longrepr": "no"}),
        "/x/suites/test_c.py": NodeRecord("test_c.py", children=()),
    },
    warnings=({"op": "warning", "text": "mind the gap"},),
    local=("conftest.py implements pytest_itemcollected",),
    ended="status 3",
)


@pytest.mark.parametrize("whole", [FULL, CollectionDescription("sha256:2")])
def test_a_description_survives_its_file(tmp_path: Path, whole: CollectionDescription) -> None:
    path = tmp_path / description.DESCRIPTION_FILE
    description.write_description(path, whole)
    assert description.read_description(path) == whole
    assert description.read_collection_hash(path) == whole.hash
    assert [each.name for each in tmp_path.iterdir()] == [description.DESCRIPTION_FILE]


def test_a_value_that_is_not_plain_is_marked(tmp_path: Path) -> None:
    path = tmp_path / description.DESCRIPTION_FILE
    description.write_description(path, CollectionDescription("h", marks=(MarkRecord("covers", (object(),)),)))
    ((value,),) = (mark.args for mark in description.read_description(path).marks)
    assert isinstance(value, OpaqueValue)


@pytest.mark.parametrize("name", ["filterwarnings", "parametrize", "usefixtures"])
def test_arguments_that_only_matter_where_the_case_runs_are_left_out(tmp_path: Path, name: str) -> None:
    path = tmp_path / description.DESCRIPTION_FILE
    description.write_description(
        path, CollectionDescription("h", marks=(MarkRecord(name, ("ignore::package.Warning",)),))
    )
    assert description.read_description(path).marks == (MarkRecord(name),)


@pytest.mark.parametrize("text", ["", "{}\n", "[]\n[]\n", "not json\n", '{"hash": "h"}\n{"order": []}\n'])
def test_a_file_that_is_no_description(tmp_path: Path, text: str) -> None:
    path = tmp_path / description.DESCRIPTION_FILE
    path.write_text(text)
    with pytest.raises(DescriptionError, match="not a list of collected tests"):
        description.read_description(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match="cannot be read"):
        description.read_collection_hash(tmp_path / description.DESCRIPTION_FILE)


@pytest.mark.parametrize(
    ("ids", "order", "wanted"),
    [
        ("", "", ""),
        ("abc", "abc", "abc"),
        ("abc", "cab", "cab"),
        ("abcd", "db", "dbac"),  # a and c are deselected in the zygote: they come last, in their order
        ("abc", "xcya", "cab"),  # x and y do not exist here
        ("aab", "aba", "aba"),  # --keep-duplicates
        ("aaa", "a", "aaa"),
    ],
)
def test_order(ids: str, order: str, wanted: str) -> None:
    assert "".join(sort_by_order(list(ids), list(ids), list(order))) == wanted


def test_items_of_one_id_keep_their_order() -> None:
    assert sort_by_order(["a1", "b", "a2"], ["a", "b", "a"], ["b", "a", "a"]) == ["b", "a1", "a2"]
