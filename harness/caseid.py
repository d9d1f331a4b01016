"""Parses case ids."""

from __future__ import annotations

import functools
from pathlib import PurePosixPath


def suite_of(case_id: str) -> str:
    """The suite of a case: the folder directly below ``suites/``, else the folder of its file, else the file's stem."""
    return _suite_of_file(case_id.partition("::")[0]) or case_id


@functools.cache
def _suite_of_file(name: str) -> str:
    path = PurePosixPath(name)
    folders = path.parts[:-1]
    if "suites" in folders[:-1]:
        return folders[folders.index("suites") + 1]
    if folders and folders[-1] not in ("/", ".."):
        return folders[-1]
    return path.stem
