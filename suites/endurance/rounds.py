"""Rounds of work for the time of a case."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator


def rounds(seconds: float) -> Iterator[int]:
    """Yield the number of each round from 0: at least one round, and more until `seconds` have passed."""
    end = time.monotonic() + seconds
    for number in itertools.count():
        if number and time.monotonic() >= end:
            return
        yield number
