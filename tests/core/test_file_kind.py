"""Files of a kind: valid files, and the error for each invalid file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.core.file_kind import FileKind


class ListError(HarnessError):
    """The error of the kind."""


KIND = FileKind("list", "give a list", ListError, 4)


@pytest.mark.parametrize("kind", [KIND, FileKind("list", "give a list", ListError)], ids=["limit", "no limit"])
def test_a_file_within_the_limit_is_read_whole(kind: FileKind, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"four")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    assert kind.read(tmp_path / "x") == kind.read(tmp_path / "link") == kind.read_if_exists(tmp_path / "x") == b"four"


def test_a_file_that_does_not_exist_may_be_none(tmp_path: Path) -> None:
    assert KIND.read_if_exists(tmp_path / "x") is None


REFUSED: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing", str, "there is no list at '{}': give a list"),
    ("too large", lambda path: path.write_bytes(b"five5"), "'{}' has 5 bytes, and the limit is 4: give a list"),
    ("a folder", lambda path: path.mkdir(), "'{}' is not a regular file: give a list"),
    ("a named pipe", os.mkfifo, "'{}' is not a regular file: give a list"),
    ("a link to itself", lambda path: path.symlink_to(path), "cannot read the list '{}': Too many levels of"),
]


@pytest.mark.parametrize(("make", "text"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_another_file_is_refused_in_one_sentence(make: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(ListError) as caught:
        KIND.read(path)
    assert str(caught.value).startswith(text.format(path))
    if make is not str:
        with pytest.raises(ListError):
            KIND.read_if_exists(path)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for name in ("gone", "."):
        with pytest.raises(ListError):
            KIND.open(tmp_path / name)
    (tmp_path / "x").write_bytes(b"four")
    KIND.read(tmp_path / "x")
    assert os.listdir("/proc/self/fd") == before
