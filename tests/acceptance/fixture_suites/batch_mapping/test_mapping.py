"""Two dozen cases, one of which maps 3 MiB each time it runs and never unmaps them."""

from __future__ import annotations

import mmap

import pytest

MAPS: list[mmap.mmap] = []


@pytest.mark.parametrize("n", range(24))
def test_case(n: int) -> None:
    if n == 3:
        MAPS.append(mmap.mmap(-1, 3 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
