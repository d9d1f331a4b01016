"""Recurrent networks in NumPy: the formulas of torch's documentation of `RNN`, `LSTM` and `GRU`, for any length.

Arrays may be complex, for derivatives by an imaginary step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .activations import relu, sigmoid
from .oracle import Array

KINDS = ("tanh", "relu", "LSTM", "GRU")


def cell(kind: str, x: Array, h: Array, c: Array, weights: Mapping[str, Array], suffix: str) -> tuple[Array, Array]:
    """Return the states after one step of rows `x`, with the weights whose names end with `suffix`."""
    one = x @ weights[f"weight_ih{suffix}"].T + weights.get(f"bias_ih{suffix}", 0.0)
    two = h @ weights[f"weight_hh{suffix}"].T + weights.get(f"bias_hh{suffix}", 0.0)
    if kind == "tanh":
        return np.tanh(one + two), c
    if kind == "relu":
        return relu(one + two), c
    if kind == "GRU":
        (reset_x, update_x, new_x), (reset_h, update_h, new_h) = np.split(one, 3, -1), np.split(two, 3, -1)
        update = sigmoid(update_x + update_h)
        new = np.tanh(new_x + sigmoid(reset_x + reset_h) * new_h)
        return (1 - update) * new + update * h, c
    enter, forget, candidate, leave = np.split(one + two, 4, -1)
    c = sigmoid(forget) * c + sigmoid(enter) * np.tanh(candidate)
    h = sigmoid(leave) * np.tanh(c)
    projection = weights.get(f"weight_hr{suffix}")
    return (h if projection is None else h @ projection.T), c


@dataclass(frozen=True, slots=True)
class Network:
    """Layers of a kind. `directions`: 1 or 2."""

    kind: str
    layers: int = 1
    directions: int = 1

    def run(self, arrays: Mapping[str, Any], lengths: Array) -> tuple[Array, Array, Array]:
        """Return outputs (steps, rows, features), and the last states of each layer and direction.

        `arrays`: `x` (steps, rows, features), the states `h` and `c`, and the weights by torch's names. A row has no
        steps after its length: its outputs are zero there, and its states are those of its last step.
        """
        x = arrays["x"]
        steps = x.shape[0]
        last_h, last_c = [], []
        for layer in range(self.layers):
            outputs = []
            for direction in range(self.directions):
                place = layer * self.directions + direction
                suffix = f"_l{layer}" + "_reverse" * direction
                h, c = arrays["h"][place], arrays["c"][place]
                made: list[Any] = [None] * steps
                for step in range(steps) if not direction else reversed(range(steps)):
                    more = (step < lengths)[:, None]
                    new_h, new_c = cell(self.kind, x[step], h, c, arrays, suffix)
                    h, c = np.where(more, new_h, h), np.where(more, new_c, c)
                    made[step] = np.where(more, new_h, 0)
                outputs.append(np.stack(made))
                last_h.append(h)
                last_c.append(c)
            x = np.concatenate(outputs, -1)
        return x, np.stack(last_h), np.stack(last_c)
