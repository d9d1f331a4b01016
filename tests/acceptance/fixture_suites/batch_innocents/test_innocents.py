"""Two dozen cases after which a process has grown, but does not grow further when they run again."""

from __future__ import annotations

from collections import OrderedDict

import pytest

EACH = 90 << 10
CACHE: OrderedDict[int, bytearray] = OrderedDict()
MOST = 6
TABLES: dict[int, bytearray] = {}


@pytest.mark.parametrize("n", range(12))
def test_cache_of_so_many_entries(n: int) -> None:
    """The cache evicts the oldest entry, so each run creates a new one."""
    CACHE.pop(n, None)
    CACHE[n] = bytearray(EACH)
    while len(CACHE) > MOST:
        CACHE.popitem(last=False)


@pytest.mark.parametrize("n", range(12))
def test_table_made_at_first_use(n: int) -> None:
    assert TABLES.setdefault(n, bytearray(EACH))[0] == 0
