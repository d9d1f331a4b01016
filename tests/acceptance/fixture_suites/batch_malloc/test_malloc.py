"""Two dozen cases, one of which leaks each time it runs, by less than the threshold for a single case."""

from __future__ import annotations

import ctypes

import pytest

MALLOC = ctypes.CDLL(None).malloc
MALLOC.restype = ctypes.c_void_p
MALLOC.argtypes = [ctypes.c_size_t]


@pytest.mark.parametrize("n", range(24))
def test_case(n: int) -> None:
    if n == 15:
        assert MALLOC(100 << 10)
