"""Values that follow from the ids of cases: suite, seed, and the hash of a list."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import PurePosixPath


def suite_of(case_id: str) -> str:
    """Return the suite of a case.

    This is the folder directly below ``suites/``, else the folder of its file, else the file's stem.
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


def function_of(case_id: str) -> str:
    """Return the id without its parameters."""
    path, separator, inside = case_id.partition("::")
    return f"{path}{separator}{inside.partition('[')[0]}"


def case_seed(run_seed: int, case: str) -> int:
    """Return the seed of `case`, in [0, 2**32), from the run's seed and the case id."""
    digest = hashlib.sha256(f"{run_seed}\0{case}".encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:4], "big")


def digest_of_ids(ids: Iterable[str]) -> str:
    r"""Return the hash that identifies a list of cases: ``sha256:`` and the hex digest of the ids joined by ``\n``.

    A lone surrogate is hashed as its visible escape, because readers of journals return surrogates in this form.
    """
    return "sha256:" + hashlib.sha256("\n".join(ids).encode("utf-8", "backslashreplace")).hexdigest()
