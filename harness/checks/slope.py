"""The slope of a series of readings, with its interval. Pure.

The estimate is that of Theil and Sen: the median of the slopes between any two readings. Its interval follows from
Kendall's rank statistic (P. K. Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau", 1968), so it
assumes no distribution: single steps and spikes hardly move it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median, median_low

#: The normal quantile of a two-sided interval of 99%.
_QUANTILE = 2.576
#: The most points of a slope: a longer series is cut into stretches, each with its median.
_MAX_POINTS = 200


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth per reading. With 99% confidence it is between `low` and `high`, which are infinite if unknown."""

    estimate: float
    low: float
    high: float


def theil_sen_slope(values: Sequence[int]) -> Slope:
    """Return the slope of at least two readings, in order. Fewer than seven have no finite interval."""
    length = -(-len(values) // _MAX_POINTS)
    middles = [median_low(values[start : start + length]) for start in range(0, len(values) - length + 1, length)]
    slopes = sorted((later - earlier) / (j - i) for (i, earlier), (j, later) in combinations(enumerate(middles), 2))
    count = len(middles)
    spread = _QUANTILE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    outside = int((len(slopes) - spread) // 2)
    low, high = (slopes[outside - 1], slopes[-outside]) if outside >= 1 else (-math.inf, math.inf)
    return Slope(median(slopes) / length, low / length, high / length)


def sustained_slope(values: Sequence[int], step: float) -> Slope | None:
    """Return the slope of readings that keep growing by more than `step` each time; None if they do not.

    They do if the whole interval of the slope is above `step`, and if the medians of the thirds rise both times, by at
    least half of what the slope predicts. A single step, a saw-tooth, and growth that slows down do not meet this.
    """
    if len(values) < 3:
        return None
    slope = theil_sen_slope(values)
    third = len(values) // 3
    low, middle, high = (median(values[start : start + third]) for start in (0, third, len(values) - third))
    rises = min(middle - low, high - middle) >= slope.estimate * third / 2
    return slope if slope.low > step and rises else None
