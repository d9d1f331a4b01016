"""Cases that a must-pass list may name."""

import pytest


def test_passes() -> None:
    pass


def test_fails() -> None:
    assert int("1") == 2


def test_waived() -> None:
    assert int("1") == 3


def test_left_out() -> None:
    pass


@pytest.mark.requires(memory=">=1000TiB")
def test_gated() -> None:
    pass
