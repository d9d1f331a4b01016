"""Folders of compiler caches, and the removal of stale locks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.supervisor.executor_files import (
    cache_variables,
    release_cache_locks,
    share_default_cache,
    unshare_default_cache,
)


def test_compilers_keep_what_they_made_in_the_run_unless_the_user_says_where() -> None:
    found = cache_variables(Path("/run"), {"TRITON_CACHE_DIR": "/mine", "TORCH_EXTENSIONS_DIR": "", "HOME": "/root"})
    assert found == {
        "TORCHINDUCTOR_CACHE_DIR": "/run/compiler-caches/inductor",
        "TRITON_CACHE_DIR": "/mine",
        "TORCH_EXTENSIONS_DIR": "/run/compiler-caches/extensions",
    }


def test_a_lock_is_taken_away_unless_somebody_holds_it(tmp_path: Path) -> None:
    home = tmp_path / "compiler-caches" / "extensions"
    for name in ("left", "held", "deep/left", "done"):
        (home / name).mkdir(parents=True)
    for name in ("left/lock", "deep/left/lock", "done/locked.so", "held/lock"):
        (home / name).touch()
    holder = os.open(home / "held" / "lock", os.O_RDONLY)
    (tmp_path / "lock").touch()
    release_cache_locks(tmp_path)
    os.close(holder)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("lock*"))
    assert left == ["compiler-caches/extensions/done/locked.so", "compiler-caches/extensions/held/lock", "lock"]


def test_without_a_cache_there_is_nothing_to_do(tmp_path: Path) -> None:
    release_cache_locks(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_inductors_default_folder_is_shared_by_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    for name in ("gw0-e1", "gw1-e1"):
        (temp := tmp_path / name).mkdir()
        share_default_cache(temp)
        monkeypatch.setattr("tempfile.tempdir", str(temp))
        default = Path(default_cache_dir())
        (default / "precompiled_headers" / "locks").mkdir(parents=True, exist_ok=True)
        (default / name).touch()
        unshare_default_cache(temp)
        assert list(temp.iterdir()) == []
    assert sorted(path.name for path in (tmp_path / "compiler-caches").iterdir()) == [
        "gw0-e1",
        "gw1-e1",
        "precompiled_headers",
    ]


def test_where_no_folder_can_be_made_inductor_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "compiler-caches").touch()
    (temp := tmp_path / "gw0-e1").mkdir()
    share_default_cache(temp)
    unshare_default_cache(temp)
    assert list(temp.iterdir()) == []
