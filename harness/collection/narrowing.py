"""Skips the files without a selected case, so that a run of few cases need not import all files."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.collection.scope import CaseScope
from harness.scheduling.order import Reach


class NarrowCollection:
    """A plugin of every process that collects for a run. Files that the user has named are always read."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._unread: dict[str, None] = {}

    @property
    def unread(self) -> list[str]:
        """The beginnings of the ids in skipped folders and files.

        For example ``suites/amp/`` and ``suites/rng/test_seeds.py::``.
        """
        return sorted(self._unread)

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        if self._reach.is_everything or not CaseScope.of(config).has(collection_path):
            return None
        try:
            path = collection_path.relative_to(config.rootpath).as_posix()
        except ValueError:
            return None
        if collection_path.suffix == ".py":
            reached, start = self._reach.has_file(path), f"{path}::"
        elif collection_path.is_dir():
            reached, start = self._reach.has_folder(path), f"{path}/"
        else:
            return None
        if reached:
            return None
        self._unread[start] = None
        return True
