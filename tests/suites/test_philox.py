"""The reference of `suites/rng`, compared with the numbers that Philox's authors published with it (Random123)."""

from __future__ import annotations

import numpy as np
import pytest

from suites.rng.philox import philox4x32


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
    ids=["zeros", "ones", "digits of pi"],
)
def test_the_published_numbers(counter: str, key: str, expected: str) -> None:
    first, second = (int(word, 16) for word in key.split())
    given = np.array([[int(word, 16) for word in counter.split()]] * 2, np.uint64)

    found = philox4x32(given, (first, second))

    assert [f"{word:08x}" for word in found[1]] == expected.split()
