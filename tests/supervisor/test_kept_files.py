"""Temporary files that are kept: moved, without following links, and within the limits on size."""

from __future__ import annotations

import os
from pathlib import Path

from harness.core import temp_folder
from harness.supervisor import executor_files
from tests.deep_folders import make_deep


def test_files_are_moved_with_their_folders_and_links_as_links(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "results" / "main-e1"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "dump").write_text("x" * 10)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    (source / "link").symlink_to(tmp_path / "outside")
    assert executor_files.keep_files(source, target, 1000) == 10 + len(str(tmp_path / "outside"))
    assert (target / "deep" / "er" / "dump").read_text() == "x" * 10
    assert not (source / "deep" / "er" / "dump").exists()
    assert (target / "link").is_symlink()
    assert (tmp_path / "outside" / "file").read_text() == "mine"
    assert not executor_files.list_of_left_out(target).exists()
    assert executor_files.kept_files_note(target) == f"temporary files are kept in {target}"


def test_what_is_too_large_or_no_file_is_left_out_and_named(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "main-e1"
    source.mkdir()
    (source / "a").write_text("x" * 60)
    (source / "b").write_text("x" * 60)
    (source / "c").write_text("x" * 40)
    os.mkfifo(source / "fifo")
    assert executor_files.keep_files(source, target, 100) == 100
    assert sorted(path.name for path in target.iterdir()) == ["a", "c"]
    listed = executor_files.list_of_left_out(target).read_text()
    assert listed == "b: 60B, more than may be kept\nfifo: not a regular file\n"
    assert "left-out.txt" in executor_files.kept_files_note(target)


def test_where_there_is_nothing_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "source" / "empty").mkdir(parents=True)
    assert executor_files.keep_files(tmp_path / "source", tmp_path / "target", 100) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_whether_there_is_anything_to_keep(tmp_path: Path) -> None:
    def has_any() -> bool:
        return executor_files.has_files_to_keep(tmp_path / "source", lambda path: path.name == "shared")

    assert not has_any(), "there is no folder"
    (tmp_path / "source" / "empty" / "folder").mkdir(parents=True)
    (tmp_path / "source" / "shared").symlink_to(tmp_path)
    assert not has_any()
    (tmp_path / "source" / "empty" / "link").symlink_to(tmp_path)
    assert has_any()


def test_what_is_too_deep_is_left_out_and_the_rest_is_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "main-e1"
    source.mkdir()
    make_deep(source, 60, "d" * 100)
    make_deep(source, 1500, "e")
    make_deep(source, 90, "f")
    (source / "z").write_text("kept")
    assert executor_files.keep_files(source, target, 100) == 4
    assert (target / "z").read_text() == "kept"
    assert (target / "/".join("f" * 90) / "file").exists()
    long, deep = executor_files.list_of_left_out(target).read_text().splitlines()
    assert long.endswith("d: File name too long")
    assert deep.endswith("e/e: more than 100 folders deep")
    assert len(long) < 400
    temp_folder.remove_temp_folder(source)  # pytest could not


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    source, target, others = tmp_path / "source", tmp_path / "main-e1", tmp_path / "others"
    others.mkdir()
    (others / "file").write_text("not ours")
    source.symlink_to(others)
    assert executor_files.keep_files(source, target, 100) == 0
    assert (others / "file").read_text() == "not ours"
    assert executor_files.list_of_left_out(target).read_text() == ".: the folder was replaced by a link\n"
