"""The record of renamed cases, and texts that follow it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.gating.renamed import Renamed, RenamedError

FILE = "suites/a/test_a.py"
RECORD = Renamed({f"{FILE}::test_old": f"{FILE}::test_new", f"{FILE}::TestX::test_y": "suites/b/test_b.py::test_y"})


@pytest.mark.parametrize(
    ("case", "now"),
    [
        (f"{FILE}::test_old", f"{FILE}::test_new"),
        (f"{FILE}::test_old[cuda-1]", f"{FILE}::test_new[cuda-1]"),
        (f"{FILE}::test_old[a::b[c]]", f"{FILE}::test_new[a::b[c]]"),
        (f"{FILE}::test_older", f"{FILE}::test_older"),
        (f"{FILE}::TestX::test_y", "suites/b/test_b.py::test_y"),
        ("suites/[x]/test_a.py::test_old", "suites/[x]/test_a.py::test_old"),
    ],
)
def test_a_case_has_the_new_name_of_its_test_and_keeps_its_parameters(case: str, now: str) -> None:
    assert RECORD.now(case) == now


def test_a_second_renaming_follows_the_first_and_an_existing_name_is_its_own() -> None:
    later = RECORD.followed_by({f"{FILE}::test_new": f"{FILE}::test_newest"}, {f"{FILE}::test_newest"})
    assert later.now(f"{FILE}::test_old") == later.now(f"{FILE}::test_new") == f"{FILE}::test_newest"
    back = later.followed_by({f"{FILE}::test_newest": f"{FILE}::test_old"}, {f"{FILE}::test_old"})
    assert back.now(f"{FILE}::test_old") == f"{FILE}::test_old"
    assert back.now(f"{FILE}::test_new") == f"{FILE}::test_old"


def test_a_record_is_written_and_read(tmp_path: Path) -> None:
    assert Renamed.load(tmp_path) == Renamed()
    (tmp_path / "renamed.json").write_bytes(RECORD.to_bytes())
    assert Renamed.load(tmp_path) == RECORD


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("[]", "Input should be a valid dictionary"),
        ('{"schema": 2, "renamed": {}}', "schema: Input should be 1"),
        ('{"schema": 1, "renamed": {"a": 1}}', "renamed.a: Input should be a valid string"),
        ('{"schema": 1}', "renamed: Field required"),
    ],
)
def test_a_record_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "renamed.json"
    path.write_text(text)
    with pytest.raises(RenamedError) as caught:
        Renamed.read(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (f"- case: {FILE}::test_old[*]  # why", f"- case: {FILE}::test_new[*]  # why"),
        (f"pytest '{FILE}::TestX::test_y[1]'", "pytest 'suites/b/test_b.py::test_y[1]'"),
        ("pytest suites -k 'test_old and not test_other'", "pytest suites -k 'test_new and not test_other'"),
        ("- case: '*::test_old[cuda]'", "- case: '*::test_new[cuda]'"),
        ("`test_old`, test_older, my_test_old", "`test_new`, test_older, my_test_old"),
        ("covers test_cuda::TestCuda::test_old", "covers test_cuda::TestCuda::test_old"),
        ("suites/other/test_a.py::test_old", "suites/other/test_a.py::test_old"),
    ],
)
def test_a_text_gets_the_new_names(text: str, written: str) -> None:
    found = RECORD.rewrite(text)
    assert (found.text, found.names, found.doubts) == (written, int(text != written), ())
    assert RECORD.rewrite(found.text).text == found.text


def test_a_name_that_had_two_meanings_is_replaced_with_its_file_only() -> None:
    record = Renamed({f"{FILE}::test_old": f"{FILE}::test_one", "suites/b.py::test_old": "suites/b.py::test_two"})
    assert record.rewrite(f"-k test_old {FILE}::test_old").text == f"-k test_old {FILE}::test_one"


def test_a_name_that_another_test_has_now_is_not_replaced_alone() -> None:
    record = Renamed({f"{FILE}::test_old": f"{FILE}::test_new", "suites/b.py::test_b": "suites/b.py::test_old"})
    assert record.rewrite("-k test_old").text == "-k test_old"


@pytest.mark.parametrize(
    ("pattern", "lost"),
    [
        (f"{FILE}::test_o*", True),
        ("*::test_ol?[cuda]", True),
        (f"{FILE}::test_*", False),
        ("suites/a/*", False),
        ("suites/c/*::test_x*", False),
    ],
)
def test_a_pattern_that_has_lost_tests_is_a_doubt(pattern: str, lost: bool) -> None:
    record = Renamed({f"{FILE}::test_old": f"{FILE}::test_new"})
    found = record.rewrite(f"waivers:\n  - case: {pattern}\n")
    assert [number for number, _ in found.doubts] == ([2] if lost else [])
    assert all(json.dumps(pattern).strip('"') in text for _, text in found.doubts)
