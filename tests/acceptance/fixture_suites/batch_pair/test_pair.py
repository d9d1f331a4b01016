"""A case that keeps more each time it runs, if another has run before it and made what it keeps it in."""

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
