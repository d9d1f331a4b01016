"""What follows from a case's id: its suite and its seed."""

from __future__ import annotations

import functools
import hashlib
from pathlib import PurePosixPath


def suite_of(case_id: str) -> str:
    """Return the suite of a case: the folder directly below ``suites/``, else the folder of its file, else the file's
    stem.
    """
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


def case_seed(run_seed: int, case: str) -> int:
    """Return the seed of `case`, in [0, 2**32), from the run's seed and the case id."""
    digest = hashlib.sha256(f"{run_seed}\0{case}".encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:4], "big")
