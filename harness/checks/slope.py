"""Does a series of readings grow? Its slope, with an interval and the probability by chance. Pure.

All questions of this kind come here: repetitions of a case, rounds of a batch, and durations over many runs.

The estimate is that of Theil and Sen: the median of the slopes between any two readings. Its interval and its
probability follow from Kendall's rank statistic (H. B. Mann, "Nonparametric Tests Against Trend", 1945; P. K. Sen,
"Estimates of the Regression Coefficient Based on Kendall's Tau", 1968), so they assume no distribution: single steps
and spikes hardly move them, and up to 29% of the readings may be outliers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, median, median_low

#: The normal quantile of a two-sided interval of 99%.
_QUANTILE = 2.576
#: The most points of a slope: a longer series is cut into stretches, each with its median.
_MAX_POINTS = 200


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth per reading. With 99% confidence it is between `low` and `high`, which are infinite if unknown.

    `chance`: the one-sided probability that readings without a trend rise at least as much.
    """

    estimate: float
    low: float
    high: float
    chance: float


def theil_sen_slope(values: Sequence[float]) -> Slope:
    """Return the slope of at least two readings, in order.

    Fewer than seven have no finite interval, and fewer than four can rise by chance alone.
    """
    length = -(-len(values) // _MAX_POINTS)
    middles = [median_low(values[start : start + length]) for start in range(0, len(values) - length + 1, length)]
    slopes = sorted((later - earlier) / (j - i) for (i, earlier), (j, later) in combinations(enumerate(middles), 2))
    count = len(middles)
    spread = _QUANTILE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    outside = int((len(slopes) - spread) // 2)
    low, high = (slopes[outside - 1], slopes[-outside]) if outside >= 1 else (-math.inf, math.inf)
    return Slope(median(slopes) / length, low / length, high / length, _chance(middles, slopes))


def _chance(values: Sequence[float], slopes: Sequence[float]) -> float:
    """Return the one-sided probability of the Mann-Kendall test. `slopes`: those between any two values."""
    count = len(values)
    score = sum((slope > 0) - (slope < 0) for slope in slopes)
    if count < 4 or score <= 0:  # the least possible probability for 3 values is 1/6
        return 1.0
    ties = Counter(values).values()
    variance = (count * (count - 1) * (2 * count + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    return 1.0 if variance <= 0 else 1 - NormalDist().cdf((score - 1) / math.sqrt(variance))


def sustained_slope(values: Sequence[float], step: float) -> Slope | None:
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
