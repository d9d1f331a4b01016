"""One part of a run that is split over several hosts, and the cases that belong to it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

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
