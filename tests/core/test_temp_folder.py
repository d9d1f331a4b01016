"""Folders for temporary files: their owners, and those that a later run may remove."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core import temp_folder
from harness.core.temp_folder import OWNER_FILE, TempFolderOwner
from tests.deep_folders import make_deep

HERE = TempFolderOwner("host", "boot", "pid:[1]", 100, 5000)
OTHER = TempFolderOwner("host", "boot", "pid:[1]", 200, 6000)


@pytest.mark.parametrize(
    ("owner", "started", "dead"),
    [
        (OTHER, 6000, False),
        (OTHER, None, True),
        (OTHER, 6001, True),  # its number now belongs to another process
        (replace(OTHER, boot="earlier"), 6000, True),
        (replace(OTHER, host="elsewhere"), None, False),
        (replace(OTHER, host="elsewhere", boot="earlier"), None, False),
        (replace(OTHER, namespace="pid:[2]"), None, False),
        (replace(OTHER, boot=""), None, False),
    ],
)
def test_only_who_is_dead_beyond_doubt_is_dead(owner: TempFolderOwner, started: int | None, dead: bool) -> None:
    assert owner.is_dead(HERE, started) is dead


def test_nothing_is_known_where_the_kernel_tells_no_boot() -> None:
    assert not OTHER.is_dead(replace(HERE, boot=""), None)


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"pid": 3}', HERE.to_json().replace("100", '"100"')])
def test_what_names_no_owner(text: str) -> None:
    assert TempFolderOwner.from_json(text) is None


def test_an_owner_survives_the_file() -> None:
    assert TempFolderOwner.from_json(OTHER.to_json()) == OTHER


def abandoned(parent: Path) -> Path:
    """Return a folder created by a process that has ended."""
    code = (
        "import pathlib, sys; from harness.core import temp_folder; "
        "print(temp_folder.make_temp_folder(pathlib.Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(parent)], capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip())
    assert folder.is_dir()
    return folder


def test_the_folder_of_a_dead_process_is_removed_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    mine, left = temp_folder.make_temp_folder(tmp_path), abandoned(tmp_path)
    locked = left / "locked"
    (locked / "below").mkdir(parents=True)
    locked.chmod(0)
    temp_folder.remove_abandoned_temp_folders(tmp_path)
    assert not left.exists()
    assert mine.is_dir()
    assert mine.stat().st_mode & 0o777 == 0o700


def test_where_there_is_no_room_nothing_is_left(tmp_path: Path) -> None:
    code = (
        "import pathlib, resource, sys; from harness.core import errors, temp_folder\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "try: temp_folder.make_temp_folder(pathlib.Path(sys.argv[1]))\n"
        "except errors.WriteError as error: sys.exit(str(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stderr.startswith(f"cannot write into {str(tmp_path)!r}: [Errno 27]")
    assert not list(tmp_path.iterdir())


def test_links_are_not_followed(tmp_path: Path) -> None:
    parent = tmp_path / "tmp"
    parent.mkdir()
    left = abandoned(parent)
    elsewhere = tmp_path / "elsewhere"
    left.rename(elsewhere)
    (elsewhere / "precious").touch()
    (parent / "harness-link").symlink_to(elsewhere)
    other = abandoned(parent)
    (other / "link").symlink_to(elsewhere)
    temp_folder.remove_abandoned_temp_folders(parent)
    assert (elsewhere / "precious").exists()
    assert not other.exists()


def test_a_folder_without_a_readable_owner_stays(tmp_path: Path) -> None:
    bare, odd, linked, fifo = (tmp_path / f"harness-{name}" for name in ("bare", "odd", "linked", "fifo"))
    for folder in (bare, odd, linked, fifo):
        folder.mkdir()
    (odd / OWNER_FILE).write_text("nobody")
    left = abandoned(tmp_path)
    (linked / OWNER_FILE).symlink_to(left / OWNER_FILE)
    os.mkfifo(fifo / OWNER_FILE)
    temp_folder.remove_abandoned_temp_folders(tmp_path)
    assert all(folder.is_dir() for folder in (bare, odd, linked, fifo))


def test_another_users_folder_stays(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    left = abandoned(tmp_path)
    os.chown(left, 12345, -1)
    temp_folder.remove_abandoned_temp_folders(tmp_path)
    assert left.is_dir()


def test_folders_that_are_too_deep_to_be_named_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for levels, name in ((60, "d" * 100), (1500, "e")):
        make_deep(folder, levels, name)
    temp_folder.remove_temp_folder(folder)
    assert not folder.exists()


def test_what_was_put_in_the_place_of_a_folder_is_removed_and_no_more(tmp_path: Path) -> None:
    others = tmp_path / "others"
    (others / "inner").mkdir(parents=True)
    (others / "inner").chmod(0o500)
    for make in (lambda path: path.symlink_to(others), Path.touch):
        folder = tmp_path / "folder"
        make(folder)
        temp_folder.remove_temp_folder(folder)
        assert not folder.is_symlink()
        assert not folder.exists()
    assert (others / "inner").stat().st_mode & 0o777 == 0o500
