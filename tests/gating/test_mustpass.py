"""Must-pass lists: written, read back, and rejected if they do not match their header."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.caseid import digest_of_ids
from harness.gating.mustpass import (
    MustPass,
    MustPassError,
    check_must_pass,
    read_must_pass,
    write_must_pass,
)

A, B, C = "suites/a/test_a.py::test_a", "suites/a/test_a.py::test_b[x y # z]", "suites/b/test_ü.py::test_c"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "streams.txt"


def test_a_list_is_readable_text(path: Path) -> None:
    written = write_must_pass(path, [C, A, B], "streams\n  on one GPU")
    assert written == MustPass("streams.txt", "streams on one GPU", (A, B, C), digest_of_ids([A, B, C]))
    assert path.read_text(encoding="utf-8").splitlines() == [
        "# must-pass list, written by: harness catalog --must-pass FILE",
        "# description: streams on one GPU",
        "# cases: 3",
        f"# {digest_of_ids([A, B, C])}",
        A,
        B,
        C,
    ]


@pytest.mark.parametrize("description", ["", "streams on one GPU", "# cases: 4"])
def test_what_was_written_is_read_back(path: Path, description: str) -> None:
    written = write_must_pass(path, [B, A], description)
    assert read_must_pass(path) == written
    assert write_must_pass(path, [C], description) == read_must_pass(path) != written


def test_an_id_with_a_lone_surrogate_is_written_as_reports_have_it(path: Path) -> None:
    write_must_pass(path, ["a::\udc80"])
    assert read_must_pass(path).ids == ("a::\\udc80",)


def test_other_line_ends_and_comments_do_no_harm(path: Path) -> None:
    written = write_must_pass(path, [A, B])
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n") + b"# more words\r\n\r\n")
    assert read_must_pass(path) == written


def test_missing_cases_are_returned_in_order(path: Path) -> None:
    must_pass = write_must_pass(path, [C, B, A])
    assert check_must_pass(must_pass, {B, "another"}) == (A, C)
    assert check_must_pass(must_pass, [A, B, C]) == ()


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "no cases for the must-pass list"),
        ([A, B, A], f"'{A}' appears 2 times"),
        ([A, ""], "'' is not a valid line"),
        ([" a"], "' a' is not a valid line"),
        (["# a"], "'# a' is not a valid line"),
        (["a\nb"], r"'a\\nb' is not a valid line"),
        (["a\rb"], r"'a\\rb' is not a valid line"),
    ],
)
def test_invalid_ids_are_not_written(path: Path, ids: list[str], words: str) -> None:
    with pytest.raises(MustPassError, match=words.replace("[", r"\[")):
        write_must_pass(path, ids)
    assert not path.exists()


def test_a_list_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(MustPassError, match="cannot write the must-pass list"):
        write_must_pass(tmp_path / "nowhere" / "streams.txt", [A])


@pytest.mark.parametrize(
    ("edit", "number", "words"),
    [
        pytest.param(
            lambda text: text.replace("test_a\n", "test_x\n"), 4, "the list was edited by hand", id="another id"
        ),
        pytest.param(lambda text: text.replace(f"{A}\n{B}", f"{B}\n{A}"), 4, "the list was edited by hand", id="order"),
        pytest.param(
            lambda text: text.replace(f"{A}\n", ""), 3, "says 2 cases, but the list has 1", id="one id missing"
        ),
        pytest.param(
            lambda text: text.replace("cases: 2", "cases: 3"), 3, "says 3 cases, but the list has 2", id="count"
        ),
        pytest.param(lambda text: f"{text}{A}\n", 7, f"'{A}' appears twice, first on line 5", id="an id twice"),
        pytest.param(lambda text: text[: text.index(A)], 1, "has no cases", id="cut after the header"),
        pytest.param(lambda _: "", 1, "has no cases", id="empty"),
        pytest.param(lambda _: f"{A}\n", 1, "has no line '# sha256:…'", id="no header"),
        pytest.param(lambda text: text.replace("sha256:", "sha256: "), 1, "has no line '# sha256:…'", id="no hash"),
    ],
)
def test_a_list_that_does_not_match_its_header_is_rejected_with_its_line(
    path: Path, edit: Callable[[str], str], number: int, words: str
) -> None:
    write_must_pass(path, [A, B])
    path.write_text(edit(path.read_text()))
    with pytest.raises(MustPassError) as caught:
        read_must_pass(path)
    assert str(caught.value).startswith(f"{path}:{number}: ")
    assert words in str(caught.value)


def test_the_error_for_a_list_edited_by_hand_says_how_to_write_it_again(path: Path) -> None:
    write_must_pass(path, [A])
    path.write_text(path.read_text().replace(A, B))
    with pytest.raises(MustPassError, match="write it again with: harness catalog --must-pass FILE"):
        read_must_pass(path)


def test_a_path_that_is_not_a_text_file_is_rejected(tmp_path: Path, path: Path) -> None:
    with pytest.raises(MustPassError, match="there is no must-pass list at"):
        read_must_pass(path)
    with pytest.raises(MustPassError, match="is not a regular file"):
        read_must_pass(tmp_path)
    os.mkfifo(path)
    with pytest.raises(MustPassError, match="is not a regular file"):
        read_must_pass(path)
    path.unlink()
    path.write_bytes(b"# cases: 1\nsuites/\xff\n")
    with pytest.raises(MustPassError, match=r":2: byte 0xff is not UTF-8"):
        read_must_pass(path)
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(MustPassError, match="has 67108865 bytes, and the limit is 67108864"):
        read_must_pass(path)
