"""Select and order the collected cases of a run. Pure functions over ids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from harness.core.caseid import suite_of
from harness.gating.policy import Policy


def selected_positions(policy: Policy, ids: Sequence[str]) -> list[int]:
    """Return the positions in `ids` of the cases that the run's profile selects."""
    return [position for position, case_id in enumerate(ids) if policy.selects(case_id, suite_of(case_id))]


def shuffled_positions(ids: Sequence[str], seed: int) -> list[int]:
    """Return the positions of `ids` in a random order that `seed` determines.

    The relative order of two cases depends only on the seed and on their ids. It is the same in every worker, and also
    with fewer cases, for example during a bisection.
    """
    return sorted(range(len(ids)), key=lambda position: (_draw(seed, ids[position]), position))


def _draw(seed: int, case_id: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{case_id}".encode("utf-8", "backslashreplace")).digest()
