"""Statistics of a history: intervals of rates, corrections for many comparisons. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: The standard normal quantile of an interval with 95 % coverage.
_TWO_SIDED_95 = 1.959964


def wilson(bad: int, total: int, z: float = _TWO_SIDED_95) -> tuple[float, float]:
    """Return the score interval of a rate (Wilson 1927), which is valid for few observations and rare events.

    Without observations, the interval is (0, 1).
    """
    if total <= 0:
        return 0.0, 1.0
    rate, square = bad / total, z * z
    centre = rate + square / (2 * total)
    half = z * math.sqrt(rate * (1 - rate) / total + square / (4 * total * total))
    whole = 1 + square / total
    return max(0.0, (centre - half) / whole), min(1.0, (centre + half) / whole)


def poisson_tail(seen: int, expected: float) -> float:
    """Return the probability of `seen` or more events if `expected` are expected.

    For a sum of rare events with different rates this is an upper bound in the tail: the variance of such a sum is
    smaller than that of a Poisson number.
    """
    if seen <= 0:
        return 1.0
    if expected <= 0:
        return 0.0
    # The shorter tail is summed. Its terms decrease.
    if seen <= expected:
        return max(0.0, 1 - math.fsum(_poisson(k, expected) for k in range(seen)))
    total, term, k = 0.0, _poisson(seen, expected), seen
    while term > total * 1e-15:
        total += term
        k += 1
        term *= expected / k
    return min(1.0, total)


def _poisson(k: int, expected: float) -> float:
    """Return the probability of `k` events."""
    return math.exp(k * math.log(expected) - expected - math.lgamma(k + 1))


def holm(chances: Sequence[float]) -> list[float]:
    """Return the probabilities corrected for their number (S. Holm 1979), in the same order.

    A limit on the corrected probabilities limits the probability of any false alarm.
    """
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected = [1.0] * len(chances)
    worst = 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(chances) - rank) * chances[index]))
        corrected[index] = worst
    return corrected


def hypergeometric(everything: int, inside: int, bad: int) -> float:
    """Return the probability that `bad` of `everything`, drawn at random, are all `inside`, if the first of them is.

    The first bad result selects the suspect, so it is no evidence against it. Therefore a single bad result has
    probability 1.
    """
    if not 0 < bad <= inside <= everything:
        return 1.0
    return math.comb(inside - 1, bad - 1) / math.comb(everything - 1, bad - 1)
