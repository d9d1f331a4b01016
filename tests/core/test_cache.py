"""Code is loaded only from caches that nobody else can write to."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from harness.core.cache import CacheError, code_cache


def test_missing_folders_are_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = code_cache(tmp_path / "a" / "cache", "kind", "key")
    assert folder == tmp_path / "a" / "cache" / "kind" / "key"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent, folder.parent.parent)]
    assert modes == [0o700, 0o700, 0o700]
    assert code_cache(tmp_path / "a" / "cache", "kind", "key") == folder


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o757, 0o2770])
@pytest.mark.parametrize("name", ["cache", "cache/kind", "cache/kind/key"])
def test_a_folder_that_others_can_write_to_is_refused(name: str, mode: int, tmp_path: Path) -> None:
    (tmp_path / "cache" / "kind" / "key").mkdir(parents=True)
    (tmp_path / name).chmod(mode)
    with pytest.raises(CacheError, match=re.escape(f"{str(tmp_path / name)!r} has mode {mode:04o}, so others could")):
        code_cache(tmp_path / "cache", "kind", "key")


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o500])
def test_other_folders_are_used(mode: int, tmp_path: Path) -> None:
    folder = code_cache(tmp_path / "cache", "kind")
    folder.chmod(mode)
    assert code_cache(tmp_path / "cache", "kind") == folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = code_cache(tmp_path / "cache", "kind")
    os.chown(folder, 12345, -1)
    with pytest.raises(CacheError, match="belongs to user 12345"):
        code_cache(tmp_path / "cache", "kind")
