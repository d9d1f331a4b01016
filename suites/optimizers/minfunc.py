"""L-BFGS with minFunc's line search, for one number, in Python floats (float64).

The direction is algorithm 7.4 of Nocedal and Wright, *Numerical Optimization* (2006). The search and the termination of
a step are those of Mark Schmidt's minFunc (`WolfeLineSearch.m` with cubic interpolation, `polyinterp.m`, `minFunc.m`),
on which L-BFGS is modelled according to torch's documentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

#: Constants of the strong Wolfe conditions, and the length below which a bracket is not divided.
SUFFICIENT_DECREASE, CURVATURE, SHORTEST = 1e-4, 0.9, 1e-9

#: Returns value and gradient of the function at a point.
Evaluate = Callable[[float], tuple[float, float]]


class Point(NamedTuple):
    """A point of a search: the distance along the direction, the value, the slope there, and the gradient."""

    length: float
    value: float
    slope: float
    gradient: float


def minimum_of_cubic(one: Point, other: Point, bounds: tuple[float, float] | None = None) -> float:
    """Return the minimum of the cubic through both points with their slopes, within bounds.

    Without a minimum, return the middle of the bounds. The bounds are the two points by default. Raise
    ZeroDivisionError if the cubic is a line.
    """
    left, right = sorted((one, other))
    least, most = bounds if bounds is not None else (left.length, right.length)
    one_third = left.slope + right.slope - 3 * (left.value - right.value) / (left.length - right.length)
    square = one_third**2 - left.slope * right.slope
    if square < 0:
        return (least + most) / 2
    root = math.sqrt(square)
    share = (right.slope + root - one_third) / (right.slope - left.slope + 2 * root)
    return min(max(right.length - (right.length - left.length) * share, least), most)


def search(at: Callable[[float], Point], first: float, start: Point, width: float, most: int) -> Point:
    """Return the point at which a search along a direction ends.

    `first`: the first guess of the length. `start`: the point of length 0. `width`: the largest entry of the direction.
    `most`: the maximum number of points after the first guess.
    """

    def is_too_high(point: Point) -> bool:
        return point.value > start.value + SUFFICIENT_DECREASE * point.length * start.slope

    def is_flat(point: Point) -> bool:
        return abs(point.slope) <= -CURVATURE * start.slope

    before, new, tried = start, at(first), 0
    while tried < most:
        if is_too_high(new) or (tried > 1 and new.value >= before.value):
            break
        if is_flat(new):
            return new
        if new.slope >= 0:
            break
        bounds = new.length + 0.01 * (new.length - before.length), 10 * new.length
        before, new, tried = new, at(minimum_of_cubic(before, new, bounds)), tried + 1
    else:
        before = start
    bracket, stuck = [before, new], False
    while True:
        low = 0 if bracket[0].value <= bracket[1].value else 1
        high = 1 - low
        if tried >= most or abs(bracket[1].length - bracket[0].length) * width < SHORTEST:
            return bracket[low]
        length = minimum_of_cubic(bracket[0], bracket[1])
        left, right = sorted(point.length for point in bracket)
        margin = 0.1 * (right - left)
        if min(right - length, length - left) < margin:
            moved = stuck or not left < length < right
            if moved:
                length = right - margin if right - length < length - left else left + margin
            stuck = not moved
        else:
            stuck = False
        new, tried = at(length), tried + 1
        if is_too_high(new) or new.value >= bracket[low].value:
            bracket[high] = new
        elif is_flat(new):
            return new
        else:
            if new.slope * (bracket[high].length - bracket[low].length) >= 0:
                bracket[high] = bracket[low]
            bracket[low] = new


@dataclass
class Lbfgs:
    """L-BFGS of one weight. `searching`: with a line search. `iterations` and `evaluations`: the totals of all steps.

    `moved`: whether the last iteration moved the weight.
    """

    lr: float
    max_iter: int
    max_eval: int
    tolerance_grad: float
    tolerance_change: float
    history_size: int
    searching: bool
    iterations: int = field(default=0, init=False)
    evaluations: int = field(default=0, init=False)
    moved: bool = field(default=True, init=False)
    _pairs: list[tuple[float, float]] = field(default_factory=list, init=False)
    _step: float = field(default=0.0, init=False)
    _gradient: float = field(default=0.0, init=False)

    def step(self, x: float, evaluate: Evaluate) -> float:
        """Return the weight after one more step."""
        earlier = self.evaluations

        def counted(point: float) -> tuple[float, float]:
            self.evaluations += 1
            return evaluate(point)

        value, gradient = counted(x)
        if abs(gradient) <= self.tolerance_grad:
            return x
        for number in range(1, self.max_iter + 1):
            self.iterations += 1
            direction = self._direction(gradient)
            self._gradient, before = gradient, value
            length = self.lr * (min(1.0, 1.0 / abs(gradient)) if self.iterations == 1 else 1.0)
            slope = gradient * direction
            self.moved = slope <= -self.tolerance_change
            if not self.moved:
                break
            if self.searching:

                def at(length: float, x: float = x, direction: float = direction) -> Point:
                    value, gradient = counted(x + length * direction)
                    return Point(length, value, gradient * direction, gradient)

                left = self.max_eval - (self.evaluations - earlier)
                end = search(at, length, Point(0.0, value, slope, gradient), abs(direction), left)
                length, value, gradient = end.length, end.value, end.gradient
            self._step = length * direction
            x += self._step
            if not self.searching and number < self.max_iter:
                value, gradient = counted(x)
            if self.evaluations - earlier >= self.max_eval or abs(gradient) <= self.tolerance_grad:
                break
            if abs(self._step) <= self.tolerance_change or abs(value - before) < self.tolerance_change:
                break
        return x

    def _direction(self, gradient: float) -> float:
        if self.iterations == 1:
            return -gradient
        moved, changed = self._step, gradient - self._gradient
        if moved * changed > 1e-10:
            self._pairs = [*self._pairs, (moved, changed)][-self.history_size :]
        q, shares = -gradient, []
        for moved, changed in reversed(self._pairs):
            shares.append(moved * q * (1.0 / (changed * moved)))
            q -= shares[-1] * changed
        if self._pairs:
            moved, changed = self._pairs[-1]
            q *= moved * changed / (changed * changed)
        for (moved, changed), share in zip(self._pairs, reversed(shares), strict=True):
            q += moved * (share - changed * q * (1.0 / (changed * moved)))
        return q
