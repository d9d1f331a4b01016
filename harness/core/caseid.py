"""Values that follow from the ids of cases: suite, seed, shard, and the hash of a list."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
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


_FORM = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """Part `index` of `count` parts, counted from 1. Its text is ``I/N``.

    The part of a case follows from its id alone, so all hosts agree, whatever else they run.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard that `text` names. Raise ValueError with what was expected."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError("I/N with whole numbers, for example 1/3")
        shard = cls(int(match[1]), int(match[2]))
        if not 1 <= shard.index <= shard.count:
            raise ValueError(f"I/N with I from 1 to N, for example 1/{max(shard.count, 1)}")
        return shard

    def has(self, case_id: str) -> bool:
        """Return whether this case belongs to the shard."""
        return shard_index(case_id, self.count) == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def shard_index(case_id: str, count: int) -> int:
    """Return the number, from 1 to `count`, of the shard to which a case belongs."""
    digest = hashlib.sha256(case_id.encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:8], "big") % count + 1
