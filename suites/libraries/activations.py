"""Activations in NumPy, for networks that cases compute by torch's formulas.

Arrays may be complex, for derivatives by an imaginary step.
"""

from __future__ import annotations

import math

import numpy as np

from .oracle import Array


def relu(x: Array) -> Array:
    return np.where(x.real > 0, x, 0)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def gelu(x: Array) -> Array:
    found: Array = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return found
