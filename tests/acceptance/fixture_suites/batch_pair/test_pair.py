"""A case that keeps more memory each time it runs, if another case has created the list for it."""

from __future__ import annotations

import pytest

KEPT: dict[str, list[bytearray]] = {}


@pytest.mark.parametrize("n", range(4))
def test_before(n: int) -> None:
    assert str(n) not in KEPT


def test_makes_a_list() -> None:
    KEPT.setdefault("list", [])


def test_adds_to_it() -> None:
    if "list" in KEPT:
        KEPT["list"].append(bytearray(100 << 10))


@pytest.mark.parametrize("n", range(18))
def test_after(n: int) -> None:
    assert str(n) not in KEPT
