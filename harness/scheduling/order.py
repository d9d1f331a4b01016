"""Which of the collected cases a run takes, and in which order. Pure functions over ids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from harness.caseid import suite_of
from harness.gating.policy import Policy


def chosen(policy: Policy, ids: Sequence[str]) -> list[int]:
    """The positions in `ids` of the cases that the run's profile wants."""
    return [position for position, case_id in enumerate(ids) if policy.selects(case_id, suite_of(case_id))]


def shuffled(ids: Sequence[str], seed: int) -> list[int]:
    """The positions of `ids` in an order drawn by `seed`.

    Where a case comes, before or after another, depends on the seed and on these two ids alone: it is the same for
    every worker, and when fewer cases are run, to find out which of them upset each other.
    """
    return sorted(range(len(ids)), key=lambda position: (_draw(seed, ids[position]), position))


def _draw(seed: int, case_id: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{case_id}".encode("utf-8", "backslashreplace")).digest()
