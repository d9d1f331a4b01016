"""The cases among pytest's items."""

from __future__ import annotations

import pytest

from harness.scheduling.selection import Selection

#: The id with which a case was collected. xdist's ``loadgroup`` changes the node id later, and only in workers.
CASE_ID = pytest.StashKey[str]()


def is_case(item: pytest.Item) -> bool:
    return CASE_ID in item.stash


def select_cases(config: pytest.Config, items: list[pytest.Item], selection: Selection) -> list[str]:
    """Keep the cases that this session runs, in the order of the run. Tests that are not cases keep their place.

    Return the ids of all selected cases, of all shards, in collection order.
    """
    cases = [item for item in items if is_case(item)]
    ids = [case.stash[CASE_ID] for case in cases]
    chosen = selection.choose(ids)
    kept = [cases[position] for position in chosen.here]
    keep = {id(case) for case in kept}
    dropped = [case for case in cases if id(case) not in keep]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    following = iter(kept)
    left = [item for item in items if not is_case(item) or id(item) in keep]
    items[:] = [next(following) if is_case(item) else item for item in left]
    return [ids[position] for position in chosen.selected]
